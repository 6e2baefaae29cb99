"""Reads keys and certificates that may be replaced on disk while the process runs.

They are read again when a ``stat`` of each shows a change, and are used only if they belong together and are valid now.
If a file is half written, a key does not match its certificate, or a certificate has expired, the previous ones stay in
use.
"""

import datetime as dt
import logging
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

from diloco.runtime.files import FileSignature, open_regular, signature_of

_log = logging.getLogger(__name__)

_LIMIT_BYTES = 4 << 20
"""Largest PEM file: thousands of certificates."""


class TlsFileError(ValueError):
    """A key or certificate file cannot be used; the text names it."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The content of the files, PEM."""

    ca: bytes
    key: bytes
    certificate: bytes


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of one side's files."""

    ca: Path
    """Certificate(s) of the authority that must have issued the other side's certificate, PEM."""
    certificate: Path
    """This side's certificate chain, PEM."""
    key: Path
    """Its private key, PEM."""

    def read(self) -> Credentials:
        """Read and check all three.

        Raises:
            TlsFileError: one cannot be read or is not PEM, or the key does not match the certificate.
        """
        found = self._read()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cadata=found.ca.decode("ascii", "replace"))
        except (ssl.SSLError, ValueError) as error:
            raise TlsFileError(f"CA certificate {self.ca}: cannot be used ({_why(error)})") from error
        try:
            # With an empty password, OpenSSL does not ask for one on the terminal.
            context.load_cert_chain(self.certificate, self.key, password="")  # none, not a secret
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise TlsFileError(f"private key {self.key}: does not match {self.certificate} ({_why(error)})") from error
        if self._read() != found:
            raise TlsFileError(f"certificate {self.certificate}: changes while it is read")
        return found

    def signature(self) -> tuple[FileSignature, ...] | None:
        """A value that changes when a file does; None while one is missing."""
        found = [signature_of(path) for path in (self.ca, self.key, self.certificate)]
        there = tuple(one for one in found if one is not None)
        return there if len(there) == len(found) else None

    def _read(self) -> Credentials:
        return Credentials(
            _content(self.ca, "CA certificate"),
            _content(self.key, "private key"),
            _content(self.certificate, "certificate"),
        )


class FollowedFiles:
    """The files and what was last read from them. Used by several threads."""

    def __init__(self, files: TlsFiles) -> None:
        """Read them.

        Raises:
            TlsFileError: they cannot be used.
        """
        self._files = files
        self._lock = threading.Lock()
        self._signature = files.signature()
        self._warned: tuple[FileSignature, ...] | None = None
        self.credentials = files.read()
        """The credentials in use."""

    def renewed(self) -> Credentials | None:
        """Newer credentials, which then are in use; None if there are none. Never raises."""
        with self._lock:
            signature = self._files.signature()
            if signature is None or signature == self._signature:
                return None
            try:
                found = self._files.read()
                problem = out_of_date(found)
                if problem is not None and out_of_date(self.credentials) is None:
                    # Try again later: a certificate that is not valid yet will be.
                    self._warn(f"{self._files.certificate.parent}: {problem}", signature)
                    return None
            except TlsFileError as error:
                self._warn(str(error), signature)
                found = self.credentials
            self._signature = signature
            if found == self.credentials:
                return None
            self.credentials = found
            _log.info("read new certificates from %s", self._files.certificate.parent)
            return found

    def _warn(self, problem: str, signature: tuple[FileSignature, ...]) -> None:
        if self._warned != signature:
            self._warned = signature
            _log.warning("%s; the previous certificates stay in use", problem)


def out_of_date(credentials: Credentials) -> str | None:
    """Why the certificates are not valid now; None: they are."""
    from cryptography import x509  # noqa: PLC0415  # a tenth of a second, only where certificates are renewed

    now = dt.datetime.now(dt.UTC)
    leaf = x509.load_pem_x509_certificates(credentials.certificate)[0]
    for name, found in (("certificate", [leaf]), ("CA certificate", x509.load_pem_x509_certificates(credentials.ca))):
        if not any(one.not_valid_before_utc <= now <= one.not_valid_after_utc for one in found):
            begin, end = found[0].not_valid_before_utc, found[0].not_valid_after_utc
            return f"the {name} is valid from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC only"
    return None


def _content(path: Path, kind: str) -> bytes:
    try:
        with open_regular(path) as file:
            content = file.read(_LIMIT_BYTES)
    except OSError as error:
        raise TlsFileError(f"{kind} {path}: {error.strerror or error}") from error
    if b"-----BEGIN " not in content:
        raise TlsFileError(f"{kind} {path}: not a PEM file")
    return content


def _why(error: Exception) -> str:
    return (getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)).lower().replace("_", " ")
