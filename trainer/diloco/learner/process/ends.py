"""What a learner's process ends with: an exit code, and one line of text.

Every user's mistake and every refusal is one line; only an unexpected error has a traceback, in the log.
"""

import logging
from collections.abc import Callable

from diloco.core.fragments import LayoutError
from diloco.learner.data import DataError, DataUnavailableError
from diloco.learner.data.source import DataStoppedError
from diloco.learner.training.devices.device import DeviceError
from diloco.learner.training.optimizers.optimizer import OptimizerError
from diloco.learner.training.steps import TrainingDivergedError
from diloco.learner.unit.joining import UnitError
from diloco.model import ModelError
from diloco.model.entrypoint import one_line
from diloco.runtime.addresses import AddressError
from diloco.runtime.files import UnusableFileError
from diloco.runtime.http import HttpServerError
from diloco.runtime.process.exits import EXIT_BAD_INPUT, EXIT_OK, EXIT_REFUSED, EXIT_UNEXPECTED
from diloco.wire.tls.tls import TlsFileError

_log = logging.getLogger(__name__)

_MISTAKES = (
    AddressError,
    DataError,
    DeviceError,
    HttpServerError,
    LayoutError,
    ModelError,
    OptimizerError,
    TlsFileError,
    UnusableFileError,
)


def exit_code_of(body: Callable[[], int], await_cause: Callable[[], None] = lambda: None) -> int:
    """What ``body`` returns, or the code of what it raises.

    ``await_cause`` is called before an error is told, as it may come from the end of another process.
    """
    try:
        return body()
    except DataStoppedError as error:
        _log.info("%s", error)
        return EXIT_OK
    except (Exception, SystemExit) as error:  # noqa: BLE001  # told in the log; an exit code for the supervisor
        await_cause()
        return _told(error)


def _told(error: Exception | SystemExit) -> int:
    code = EXIT_UNEXPECTED
    if isinstance(error, SystemExit):
        _log.error("the job's model or data has called sys.exit(%s) in training; it must return", error.code)
    elif isinstance(error, DataUnavailableError | TrainingDivergedError):
        _log.error("%s", error)  # one line, though not a user's mistake
    elif isinstance(error, _MISTAKES):
        _log.error("%s", error)
        code = EXIT_BAD_INPUT
    elif isinstance(error, UnitError):
        _log.error("%s", error)
        code = EXIT_REFUSED
    else:
        _log.error("stopped by an unexpected error: %s", one_line(error), exc_info=error)
    return code
