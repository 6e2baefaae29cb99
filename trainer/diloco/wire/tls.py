"""Mutual TLS: whose certificates, and whom a certificate lets speak.

A learner's certificate carries the URI ``diloco://JOB/learner/REGION/POOL/INDEX`` as a subject alternative name; with
mutual TLS its holder can speak for that learner of that job and for nobody else. The syncer's certificate is checked as
any server's: by the name it was called by. It must not know what is said.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import grpc

from diloco.wire.errors import IdentityError

_SCHEME = "diloco"


class TlsFileError(ValueError):
    """A key or certificate file that cannot be used; the text names it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a certificate lets its holder speak for."""

    job: str
    learner: str
    """``region/pool/index``."""

    @property
    def uri(self) -> str:
        """As it stands in the certificate."""
        return f"{_SCHEME}://{self.job}/learner/{self.learner}"


def identity_of(names: Iterable[str]) -> Identity | None:
    """The identity among a certificate's subject alternative names; None if there is none or more than one."""
    found = []
    for name in names:
        try:
            uri = urlsplit(name)
        except ValueError:
            continue
        parts = uri.path.split("/")
        if uri.scheme == _SCHEME and uri.netloc and len(parts) == 5 and parts[1] == "learner" and all(parts[2:]):
            found.append(Identity(job=uri.netloc, learner="/".join(parts[2:])))
    return found[0] if len(found) == 1 else None


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a call."""

    address: str
    """As the transport names it, for logs."""
    learner: str | None = None
    """From its certificate; None without TLS."""
    job: str | None = None

    def must_be(self, learner: str, job: str | None = None) -> None:
        """Check what a message claims against the certificate.

        Raises:
            IdentityError: it may not speak for that learner or job.
        """
        if self.learner is not None and self.learner != learner:
            raise IdentityError(f"the certificate is that of learner {self.learner}, the message says {learner}")
        if self.job is not None and job is not None and self.job != job:
            raise IdentityError(f"the certificate is for job {self.job}, the message says {job}")


def _read(path: Path, kind: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TlsFileError(f"{kind} {path}: {error.strerror or error}") from error
    if b"-----BEGIN " not in content:
        raise TlsFileError(f"{kind} {path}: not a PEM file")
    return content


@dataclass(frozen=True, slots=True)
class _Files:
    ca: Path
    """Certificate(s) of the authority that the other side's certificate must come from, PEM."""
    certificate: Path
    """This side's certificate chain, PEM."""
    key: Path
    """Its private key, PEM."""

    def _contents(self) -> tuple[bytes, bytes, bytes]:
        return _read(self.ca, "CA certificate"), _read(self.key, "private key"), _read(self.certificate, "certificate")


@dataclass(frozen=True, slots=True)
class ServerTls(_Files):
    """The syncer's side. Clients without a certificate from ``ca`` are not let in."""

    def credentials(self) -> grpc.ServerCredentials:
        """For gRPC.

        Raises:
            TlsFileError: a file cannot be read or is no PEM.
        """
        ca, key, certificate = self._contents()
        return grpc.ssl_server_credentials([(key, certificate)], root_certificates=ca, require_client_auth=True)


@dataclass(frozen=True, slots=True)
class ClientTls(_Files):
    """A learner's side."""

    def credentials(self) -> grpc.ChannelCredentials:
        """For gRPC.

        Raises:
            TlsFileError: a file cannot be read or is no PEM.
        """
        ca, key, certificate = self._contents()
        return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=certificate)
