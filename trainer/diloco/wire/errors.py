"""Errors between two processes, for both sides: each class is one gRPC status code and one line of text.

When a server raises one of these, its client raises the same class with the same text; except ``ClosedError``, which
says that one's own side ended the call.

    WireError
    ├── InvalidMessageError   INVALID_ARGUMENT      not a message of this protocol, or a value out of range
    ├── ProtocolVersionError  UNIMPLEMENTED         the other side speaks another version
    ├── TooLargeError         RESOURCE_EXHAUSTED    larger than is accepted; memory is not taken
    ├── CorruptedError        DATA_LOSS             a checksum does not hold, or bytes are missing
    ├── RefusedError          FAILED_PRECONDITION   understood and rejected (stale, not requested)
    ├── IdentityError         PERMISSION_DENIED     the certificate is for another learner or job
    ├── RevokedError          UNAUTHENTICATED       the certificate was revoked: a new one may be accepted
    ├── UnavailableError      UNAVAILABLE           no answer, or the connection broke: try again
    ├── DeadlineError         DEADLINE_EXCEEDED     took too long
    └── PeerFailedError       INTERNAL              a fault in the other process
"""

from typing import ClassVar

import grpc

LONGEST_TEXT = 512
"""Longest text that is sent; gRPC puts it in a trailer of at most 8 KiB."""


def one_line(text: str) -> str:
    """``text`` on one line, printable, at most ``LONGEST_TEXT`` characters."""
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_TEXT else line[: LONGEST_TEXT - 3] + "..."


class WireError(RuntimeError):
    """An error between two processes. ``str()`` is one line."""

    status: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN
    retryable: ClassVar[bool] = False
    """Whether the same call may succeed later without any change."""

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text))


class InvalidMessageError(WireError):
    """Not a message of this protocol, or one with a value out of range."""

    status = grpc.StatusCode.INVALID_ARGUMENT


class ProtocolVersionError(WireError):
    """The two sides speak different versions of the protocol."""

    status = grpc.StatusCode.UNIMPLEMENTED


class TooLargeError(WireError):
    """A message, payload or queue larger than is accepted."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED


class CorruptedError(WireError):
    """Bytes changed or missing on the way."""

    status = grpc.StatusCode.DATA_LOSS
    retryable = True


class RefusedError(WireError):
    """The other side understood the message and rejects it: stale, fenced, not requested."""

    status = grpc.StatusCode.FAILED_PRECONDITION


class IdentityError(WireError):
    """The certificate does not allow the peer to speak for that learner or job."""

    status = grpc.StatusCode.PERMISSION_DENIED


class RevokedError(WireError):
    """The certificate was revoked. Once it is replaced on disk, the same call succeeds."""

    status = grpc.StatusCode.UNAUTHENTICATED
    retryable = True


class UnavailableError(WireError):
    """No answer, or the connection broke."""

    status = grpc.StatusCode.UNAVAILABLE
    retryable = True


class DeadlineError(WireError):
    """It took longer than allowed."""

    status = grpc.StatusCode.DEADLINE_EXCEEDED
    retryable = True


class PeerFailedError(WireError):
    """The other process has failed; its own log says more."""

    status = grpc.StatusCode.INTERNAL
    retryable = True


_ALL: tuple[type[WireError], ...] = (
    InvalidMessageError,
    ProtocolVersionError,
    TooLargeError,
    CorruptedError,
    RefusedError,
    IdentityError,
    RevokedError,
    UnavailableError,
    DeadlineError,
    PeerFailedError,
)
_CLASSES = {cls.status: cls for cls in _ALL} | {
    # Only gRPC itself, or a proxy in between, returns these.
    grpc.StatusCode.OUT_OF_RANGE: InvalidMessageError,
}


_SERVER_IS_BUSY = "Too many pending requests"
"""How gRPC itself rejects a call that is in order."""
_NOT_WRITTEN = "Internal error from Core"
"""How grpc.aio says that it could not write to a connection, whose end it has not noticed yet."""


def error_of(status: grpc.StatusCode, details: str | None) -> WireError:
    """The error for a call's final status, at a client that has not ended the call itself."""
    text = details or ""
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and text.startswith(_SERVER_IS_BUSY):
        return UnavailableError(text)
    if status is grpc.StatusCode.INTERNAL and text == _NOT_WRITTEN:
        return UnavailableError("the connection broke")
    if status is grpc.StatusCode.CANCELLED:
        # gRPC also rejects calls like this when its server is busy, as does a proxy that shuts down.
        return UnavailableError(f"the call was refused ({text or status.name})")
    return _CLASSES.get(status, PeerFailedError)(text or f"the call ended with {status.name}")
