"""The learner as a process: signals in, exit code and one line out.

Every mistake of a user and every refusal is one line; only what nobody expected has a traceback, in the log.
"""

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from diloco.core.fragments import LayoutError
from diloco.learner.checkpoint import CheckpointMismatchError
from diloco.learner.data import DataError, DataUnavailableError
from diloco.learner.learner import Learner
from diloco.learner.mailboxes.orders import Ending, EndKind, Orders
from diloco.learner.mailboxes.wakeup import Wakeup
from diloco.learner.options import LearnerOptions
from diloco.learner.training.device import DeviceError
from diloco.learner.training.optimizer import OptimizerError
from diloco.learner.training.torch_threads import settle_torch_threads
from diloco.learner.training.trainer import TrainingDivergedError
from diloco.model import ModelError
from diloco.runtime.addresses import AddressError
from diloco.runtime.exits import EXIT_BAD_INPUT, EXIT_OK, EXIT_REFUSED, EXIT_UNEXPECTED
from diloco.runtime.files import UnusableFileError
from diloco.runtime.http import HttpServer, HttpServerError
from diloco.runtime.loading import Loading
from diloco.wire.tls import TlsFileError

_log = logging.getLogger(__name__)

_SWITCH_SECONDS = 0.0005

_MISTAKES = (
    AddressError,
    CheckpointMismatchError,
    DataError,
    DeviceError,
    HttpServerError,
    LayoutError,
    ModelError,
    OptimizerError,
    TlsFileError,
    UnusableFileError,
)
_EXITS = {EndKind.STOPPED: EXIT_OK, EndKind.FINISHED: EXIT_OK, EndKind.REFUSED: EXIT_REFUSED}


def run_learner(options: LearnerOptions) -> int:
    """Run one learner until it is stopped, the job is over, or the syncer will not have it; returns the exit code.

    Logging is the caller's to set up. SIGTERM and SIGINT are taken over while it runs, if called in the main thread.
    """
    wakeup = Wakeup()
    orders = Orders(wakeup)
    settle_torch_threads(options.threads)
    with _signals(orders), _quick_switches():
        try:
            return _run(options, orders, wakeup)
        except (DataUnavailableError, TrainingDivergedError) as error:
            _log.error("%s", error)  # one line, and no mistake of the user's
            return EXIT_UNEXPECTED
        except _MISTAKES as error:
            _log.error("%s", error)  # so is this
            return EXIT_BAD_INPUT
        except SystemExit as error:
            _log.error("the job's model or data has called sys.exit(%s) in training; it must return", error.code)
            return EXIT_UNEXPECTED
        except Exception:  # noqa: BLE001  # a traceback in the log, an exit code for the supervisor
            _log.exception("stopped by an unexpected error")
            return EXIT_UNEXPECTED


def _run(options: LearnerOptions, orders: Orders, wakeup: Wakeup) -> int:
    with _http(options) as http:
        return _live(options, orders, wakeup, http)


def _live(options: LearnerOptions, orders: Orders, wakeup: Wakeup, http: HttpServer | None) -> int:
    learner = Learner(options, orders, wakeup)
    try:
        if http is not None:
            http.serve(learner.pages())
        ending = learner.run()
        _tell(ending)
        if options.stay and ending.kind is EndKind.FINISHED:
            learner.stay()
    finally:
        learner.close()
    if ending.kind is EndKind.STOPPED and not learner.kept:
        return EXIT_UNEXPECTED
    return _EXITS[ending.kind]


@contextmanager
def _http(options: LearnerOptions) -> Iterator[HttpServer | None]:
    """Its pages, from before anything that may take long: whoever watches this process sees that it loads."""
    if options.http_address is None:
        yield None
        return
    loading = Loading()
    loading.turn_to("creating the model and opening the data")
    with HttpServer(options.http_address, loading.pages()) as http:
        _log.info("serving /metrics, /healthz and /readyz at http://%s", http.address)
        yield http


def _tell(ending: Ending) -> None:
    match ending.kind:
        case EndKind.REFUSED:
            _log.error("the syncer refuses this learner: %s", ending.reason)
        case EndKind.FINISHED:
            _log.info("the job is over: %s", ending.reason)
        case EndKind.STOPPED:
            pass


@contextmanager
def _quick_switches() -> Iterator[None]:
    """Let the inner loop have the interpreter back soon: each torch call gives it away, and other threads are at work.

    Python's own 5 ms are longer than all that is to be done between two steps.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def _signals(orders: Orders) -> Iterator[None]:
    """SIGTERM and SIGINT ask the inner loop to stop; further ones change nothing, as the end is bounded anyway."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: FrameType | None) -> None:
        orders.stop(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
