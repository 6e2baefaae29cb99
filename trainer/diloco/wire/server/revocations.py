"""Certificates that the syncer refuses although its authority has issued them and they have not expired.

A file lists pools, each with a time: the pool's certificates that are valid from before that time are revoked, whoever
holds them. So nobody has to know their serial numbers, those of certificates that were replaced earlier included. The
file is looked at with every call and every second; calls under way, sessions included, are ended at once.
"""

import asyncio
import contextlib
import datetime as dt
import logging
from collections.abc import AsyncIterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from diloco.runtime.files import FileSignature, open_regular, signature_of
from diloco.wire.errors import RevokedError
from diloco.wire.tls.files import TlsFileError

_log = logging.getLogger(__name__)

_LIMIT_BYTES: Final = 1 << 20
"""Largest file: a line of at most 150 bytes for each of the 4096 pools that a job can have."""
_LOOK_SECONDS: Final = 1.0
_CERTIFICATES: Final = 4096
"""Certificates whose dates are remembered: one for each pool."""

RevokedBefore = Mapping[str, dt.datetime]
"""By pool, ``region/pool``: certificates that are valid from before this time are revoked."""


def read_revoked(path: Path) -> RevokedBefore:
    """The pools in a file with lines ``REGION/POOL YYYY-MM-DDTHH:MM:SSZ``.

    Raises:
        TlsFileError: it cannot be read, or a line is not of that form.
    """
    try:
        with open_regular(path) as file:
            content = file.read(_LIMIT_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise TlsFileError(f"revoked certificates {path}: {error.strerror or error}") from error
    if len(content) > _LIMIT_BYTES:
        raise TlsFileError(f"revoked certificates {path}: larger than {_LIMIT_BYTES} bytes")
    found: dict[str, dt.datetime] = {}
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        if not line.strip():
            continue
        try:
            pool, before = _entry(line)
        except ValueError:
            text = f"revoked certificates {path}: line {number} is not REGION/POOL YYYY-MM-DDTHH:MM:SSZ"
            raise TlsFileError(text) from None
        found[pool] = max(before, found.get(pool, before))
    return found


def _entry(line: str) -> tuple[str, dt.datetime]:
    """Pool and time of a line.

    Raises:
        ValueError: it has another form.
    """
    pool, time = line.split()
    if pool.count("/") != 1:
        raise ValueError
    return pool, dt.datetime.strptime(time, "%Y-%m-%dT%H:%M:%S%z")


class Revocations:
    """The file, and the calls that it may end. Owned by the event loop."""

    def __init__(self, path: Path) -> None:
        """Nothing is read before ``start``."""
        self._path = path
        self._signature: FileSignature | None = None
        self._before: RevokedBefore = {}
        self._open: dict[asyncio.Timeout, tuple[str, bytes]] = {}
        """Calls under way: pool and certificate of each."""
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Read the file, and follow it until ``stop``.

        Raises:
            TlsFileError: it cannot be used.
        """
        self._signature = signature_of(self._path)
        self._before = read_revoked(self._path)
        self._looking = asyncio.get_running_loop().create_task(self._follow())

    def stop(self) -> None:
        """Do not follow the file any more."""
        if self._looking is not None:
            self._looking.cancel()

    @contextlib.asynccontextmanager
    async def watched(self, learner: str, certificate: bytes) -> AsyncIterator[None]:
        """Raise RevokedError in what is awaited inside once the certificate (PEM) is revoked, or at once if it is.

        ``learner``: the learner or pool that it is for.
        """
        self.look()
        pool = "/".join(learner.split("/")[:2])
        if self._revoked(pool, certificate):
            raise _error(pool)
        timeout = asyncio.timeout(None)
        self._open[timeout] = pool, certificate
        try:
            async with timeout:
                yield
        except TimeoutError:
            if timeout.expired():
                raise _error(pool) from None
            raise
        finally:
            del self._open[timeout]

    def look(self) -> None:
        """Read the file if it has changed, and end the calls whose certificates it revokes. Never raises."""
        signature = signature_of(self._path)
        # A file that is gone revokes no less: it may be about to be replaced.
        if signature is None or signature == self._signature:
            return
        self._signature = signature
        try:
            self._before = read_revoked(self._path)
        except TlsFileError as error:
            _log.warning("%s; the previous list stays in use", error)
            return
        _log.info("certificates of %d pools are revoked (%s)", len(self._before), self._path)
        now = asyncio.get_running_loop().time()
        for timeout, (pool, certificate) in self._open.items():
            if not timeout.expired() and self._revoked(pool, certificate):
                with contextlib.suppress(RuntimeError):  # it has just ended
                    timeout.reschedule(now)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.look()

    def _revoked(self, pool: str, certificate: bytes) -> bool:
        before = self._before.get(pool)
        return before is not None and _valid_from(certificate) < before


def _error(pool: str) -> RevokedError:
    return RevokedError(f"the certificate of pool {pool} has been revoked; a new one is needed")


@lru_cache(_CERTIFICATES)
def _valid_from(certificate: bytes) -> dt.datetime:
    from cryptography import x509  # noqa: PLC0415  # a tenth of a second, only where something is revoked

    return x509.load_pem_x509_certificate(certificate).not_valid_before_utc
