"""Mutual TLS: credentials of both sides, and the learner or pool that a certificate may speak for.

A learner's certificate carries a URI as a subject alternative name: ``diloco://JOB/learner/REGION/POOL/INDEX`` lets its
holder speak for that learner of that job, ``diloco://JOB/learner/REGION/POOL`` for any learner of that pool, and
neither for any other. The syncer's certificate is checked for one fixed name, wherever it is reached
(``spec/syncer_name.py``). Certificates are renewed while processes run, so the files are read again for new
connections.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import grpc

from diloco.wire.errors import IdentityError
from diloco.wire.tls.files import Credentials, FollowedFiles, TlsFileError, TlsFiles

__all__ = ["ClientTls", "Identity", "Peer", "ServerTls", "TlsFileError", "client_credentials", "identity_of"]

_SCHEME = "diloco"


@dataclass(frozen=True, slots=True)
class Identity:
    """The learner or pool that a certificate may speak for."""

    job: str
    learner: str
    """``region/pool/index``, or ``region/pool`` for every learner of the pool."""

    @property
    def uri(self) -> str:
        """The URI in the certificate."""
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
        if uri.scheme == _SCHEME and uri.netloc and len(parts) in (4, 5) and parts[1] == "learner" and all(parts[2:]):
            found.append(Identity(job=uri.netloc, learner="/".join(parts[2:])))
    return found[0] if len(found) == 1 else None


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a call."""

    address: str
    """As the transport names it, for logs."""
    learner: str | None = None
    """From its certificate: a learner, or a pool for any learner of it; None without TLS."""
    job: str | None = None

    def must_be(self, learner: str, job: str | None = None) -> None:
        """Check what a message claims against the certificate.

        Raises:
            IdentityError: it may not speak for that learner or job.
        """
        if self.learner is not None:
            is_pool = self.learner.count("/") == 1
            if self.learner != (learner.rpartition("/")[0] if is_pool else learner):
                kind = "pool" if is_pool else "learner"
                raise IdentityError(f"the certificate is that of {kind} {self.learner}, the message says {learner}")
        if self.job is not None and job is not None and self.job != job:
            raise IdentityError(f"the certificate is for job {self.job}, the message says {job}")


@dataclass(frozen=True, slots=True)
class ServerTls(TlsFiles):
    """The syncer's side. Clients without a certificate from ``ca`` are rejected."""

    @property
    def revoked(self) -> Path:
        """The file that lists revoked certificates, which need not exist (``wire/server/revocations.py``)."""
        return self.certificate.with_name("revoked.txt")

    def credentials(self) -> grpc.ServerCredentials:
        """For gRPC, which asks at every new connection whether there are newer ones.

        Raises:
            TlsFileError: a file cannot be used.
        """
        followed = FollowedFiles(self)

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            credentials = followed.renewed()
            return None if credentials is None else _configuration(credentials)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(followed.credentials),
            renewed,  # type: ignore[arg-type]  # None is documented: no change; the stubs leave it out
            require_client_authentication=True,
        )


@dataclass(frozen=True, slots=True)
class ClientTls(TlsFiles):
    """A learner's side."""

    server_name: str | None = None
    """The name that the syncer's certificate must have, wherever it is reached (``spec/syncer_name.py``); None: the
    host of its address."""


def client_credentials(read: Credentials) -> grpc.ChannelCredentials:
    """For gRPC, which keeps them for the life of a channel."""
    return grpc.ssl_channel_credentials(
        root_certificates=read.ca, private_key=read.key, certificate_chain=read.certificate
    )


def _configuration(read: Credentials) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(read.key, read.certificate)], root_certificates=read.ca)
