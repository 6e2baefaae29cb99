"""`diloco-operator`: reads flags and environment, runs the operator, and turns how it ended into an exit code."""

import asyncio
import logging
import os
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from prometheus_client import disable_created_metrics

from diloco.runtime.log import set_up_logging
from diloco.runtime.process.exits import EXIT_BAD_INPUT, EXIT_LEASE_LOST, EXIT_OK, EXIT_UNEXPECTED, end
from diloco_operator.api_server.connection import NoConnectionError, connect, own_namespace
from diloco_operator.options import Arguments, BadArgumentError, parse
from diloco_operator.process.health import BadAddressError
from diloco_operator.process.run import operate

_log = logging.getLogger(__name__)
_QUIET: Final = {
    "kopf": logging.WARNING,
    "asyncio": logging.WARNING,
    # An error in a kubeconfig is reported once, by the code that loads it.
    "kubernetes": logging.ERROR,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the operator. Returns the exit code."""
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv, os.environ, own_namespace())
    except BadArgumentError as error:
        print(f"diloco-operator: {error}", file=sys.stderr)  # noqa: T201 # there is no log yet
        return EXIT_BAD_INPUT
    level = logging.DEBUG if arguments.options.verbose else logging.INFO
    set_up_logging(json=arguments.options.log_json, process="operator", level=level)
    for name, quiet_level in _QUIET.items():
        logging.getLogger(name).setLevel(max(quiet_level, level))
    # Otherwise each counter gets an additional gauge, which is of no use here.
    disable_created_metrics()  # type: ignore[no-untyped-call] # of prometheus_client
    try:
        asyncio.run(_run(arguments))
    except (NoConnectionError, BadAddressError) as error:
        _log.error("%s", error)  # a user's mistake: no traceback
        return EXIT_BAD_INPUT
    except Exception:  # noqa: BLE001 # whatever it was, it is logged and the exit code says so
        _log.exception("the operator stops after an unexpected error")
        return EXIT_UNEXPECTED
    return EXIT_OK


async def _run(arguments: Arguments) -> None:
    connection = await connect(Path(arguments.kubeconfig) if arguments.kubeconfig else None, arguments.context)
    await operate(arguments.options, connection, identity(os.environ, os.getpid()), _fence)


def identity(environment: Mapping[str, str], process: int) -> str:
    """The name of this process, by which it holds the Lease.

    It is unique for each start, so that a process that takes over is not mistaken for its predecessor. Only the first
    process of a container is its pod's: the one before it has ended, and so it need not wait for the Lease to expire.
    """
    pod = environment.get("POD_UID") if process == 1 else None
    return f"{socket.gethostname()}_{pod or secrets.token_hex(4)}"


def _fence(reason: str) -> NoReturn:
    """Exit immediately: no handler or thread runs any further."""
    _log.critical("the operator stops immediately: %s", reason)
    logging.shutdown()
    os._exit(EXIT_LEASE_LOST)


if __name__ == "__main__":
    end(main())
