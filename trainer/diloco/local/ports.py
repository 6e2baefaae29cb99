"""Ports on loopback for a run: free ones, or one that the user wants and that must be free."""

import os
import socket

from diloco.local.plan import LOOPBACK

_HIGHEST_PORT = 65535


class PortError(ValueError):
    """A port that cannot be listened at; the text is one line that names it."""


def free_ports(count: int) -> list[int]:
    """So many different ports that are free now. They are chosen once a run, so that a restarted syncer is found."""
    sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    try:
        return [int(listening.getsockname()[1]) for listening in sockets]
    finally:
        for listening in sockets:
            listening.close()


def check_free(port: int, flag: str) -> int:
    """``port``, if it can be listened at now.

    Raises:
        PortError: it cannot.
    """
    if not 1 <= port <= _HIGHEST_PORT:
        raise PortError(f"{flag} {port}: a port is 1 to {_HIGHEST_PORT}")
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise PortError(f"{flag} {port}: cannot listen at {LOOPBACK}:{port} ({reason}); give a free port") from error
    return port
