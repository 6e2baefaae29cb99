"""Where a learner reaches the syncer: an address, or a file with the address that is followed while it changes.

The operator writes such a file for learners of other clusters, whose way to the syncer may be known late and change.
It is read before each new session, and again after a transfer that found nobody. Connections that work are kept.
"""

import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from diloco.runtime.addresses import AddressError, parse_address
from diloco.runtime.files import FileSignature, open_regular, signature_of
from diloco.wire.errors import UnavailableError

_log = logging.getLogger(__name__)

_LIMIT_BYTES: Final = 512
"""Largest file: a name in DNS has at most 253 characters."""


class RouteError(ValueError):
    """A file contains no address; the text names the file."""


@dataclass(frozen=True, slots=True)
class Target:
    """What to connect to."""

    address: str
    """``host:port``."""
    server_name: str | None = None
    """The name that is sent and that the certificate must have; None: the address's host."""


class Route:
    """The way to the syncer. Used by several threads."""

    def __init__(self, address: str | Path, server_name: str | None = None) -> None:
        """``address``: ``host:port``, or the path of a file that contains it. Nothing is read yet."""
        self._file = _AddressFile(address) if isinstance(address, Path) else None
        self._address = address if isinstance(address, str) else ""
        self._server_name = server_name

    def target(self) -> Target:
        """The target for a new connection.

        Raises:
            UnavailableError: the file has contained no address so far; the text says what is wrong with it.
        """
        address = self._address if self._file is None else self._file.address()
        return Target(address, self._server_name)


class _AddressFile:
    """A file that contains ``host:port``, and what was last read from it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._signature: FileSignature | None = None
        self._address = ""
        self._problem = ""

    def address(self) -> str:
        """The address in the file, or the one before if it contains none now.

        Raises:
            UnavailableError: there has been none so far.
        """
        with self._lock:
            signature = signature_of(self._path)
            if signature is None or signature != self._signature or not self._address:
                self._read(signature)
            if not self._address:
                raise UnavailableError(f"{self._problem}; waiting for the address")
            return self._address

    def _read(self, signature: FileSignature | None) -> None:
        try:
            found = read_address(self._path)
        except RouteError as error:
            if self._address and str(error) != self._problem:
                _log.warning("%s; the previous address, %s, stays in use", error, self._address)
            self._problem = str(error)
        else:
            if self._address and found != self._address:
                _log.info("the syncer's address is now %s (%s)", found, self._path)
            self._address, self._problem = found, ""
        self._signature = signature


def read_address(path: Path) -> str:
    """The address in a file of one line.

    Raises:
        RouteError: it contains none.
    """
    try:
        with open_regular(path) as file:
            content = file.read(_LIMIT_BYTES + 1)
    except FileNotFoundError:
        raise RouteError(f"{path}: is missing") from None
    except OSError as error:
        raise RouteError(f"{path}: cannot be read ({error.strerror or error})") from error
    if len(content) > _LIMIT_BYTES:
        raise RouteError(f"{path}: is larger than {_LIMIT_BYTES} bytes; use one line HOST:PORT")
    text = content.decode("utf-8", "replace").strip()
    if not text:
        raise RouteError(f"{path}: is empty")
    wanted = "use one line HOST:PORT with a port from 1 to 65535"
    if any(not character.isprintable() or character.isspace() for character in text):
        raise RouteError(f"{path}: {text!r} is not an address; {wanted}")
    try:
        port = parse_address(text)[1]
    except AddressError as error:
        raise RouteError(f"{path}: {error}") from error
    if port == 0:
        raise RouteError(f"{path}: address {text!r} has port 0; {wanted}")
    return text
