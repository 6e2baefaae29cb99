"""What can go wrong between two processes, for both sides: each class is one gRPC status code and one line of text.

A server that raises one of these makes its client raise the same class with the same text; all but ``ClosedError``,
which is about one's own side. It must not know what was being done: the text says that.

    WireError
    ├── InvalidMessageError   INVALID_ARGUMENT      not a message of this protocol, or a value out of range
    ├── ProtocolVersionError  UNIMPLEMENTED         the other side speaks another version
    ├── TooLargeError         RESOURCE_EXHAUSTED    larger than is accepted; memory is not taken
    ├── CorruptedError        DATA_LOSS             a checksum does not hold, or bytes are missing
    ├── RefusedError          FAILED_PRECONDITION   understood, and not wanted (stale, not asked for)
    ├── IdentityError         PERMISSION_DENIED     it speaks for somebody else
    ├── UnavailableError      UNAVAILABLE           nobody there, or the connection broke: try again
    ├── DeadlineError         DEADLINE_EXCEEDED     took too long
    ├── ClosedError           CANCELLED             this side ended it
    └── PeerFailedError       INTERNAL              a fault in the other process
"""

from typing import ClassVar

import grpc

LONGEST_TEXT = 512
"""Characters of a text that travels; gRPC puts it in a trailer of at most 8 KiB."""


def one_line(text: str) -> str:
    """``text`` on one line, printable, at most ``LONGEST_TEXT`` characters."""
    line = "".join(character if character.isprintable() else " " for character in text)
    line = " ".join(line.split())
    return line if len(line) <= LONGEST_TEXT else line[: LONGEST_TEXT - 3] + "..."


class WireError(RuntimeError):
    """Anything that went wrong between two processes. ``str()`` is one line."""

    status: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN
    retryable: ClassVar[bool] = False
    """Whether the same call may succeed later without anybody changing anything."""

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
    """The other side understood and does not want it: stale, fenced, not asked for."""

    status = grpc.StatusCode.FAILED_PRECONDITION


class IdentityError(WireError):
    """The certificate does not allow it to speak for that learner or job."""

    status = grpc.StatusCode.PERMISSION_DENIED


class UnavailableError(WireError):
    """Nobody answers, or the connection broke."""

    status = grpc.StatusCode.UNAVAILABLE
    retryable = True


class DeadlineError(WireError):
    """It took longer than it may."""

    status = grpc.StatusCode.DEADLINE_EXCEEDED
    retryable = True


class ClosedError(WireError):
    """This side ended the call or the client."""

    status = grpc.StatusCode.CANCELLED


class PeerFailedError(WireError):
    """A fault in the other process; its own log says more."""

    status = grpc.StatusCode.INTERNAL
    retryable = True


_ALL: tuple[type[WireError], ...] = (
    InvalidMessageError,
    ProtocolVersionError,
    TooLargeError,
    CorruptedError,
    RefusedError,
    IdentityError,
    UnavailableError,
    DeadlineError,
    ClosedError,
    PeerFailedError,
)
_CLASSES = {cls.status: cls for cls in _ALL} | {
    # Only gRPC itself, or a proxy between, says these.
    grpc.StatusCode.UNAUTHENTICATED: IdentityError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidMessageError,
}


_SERVER_IS_BUSY = "Too many pending requests"
"""How gRPC itself turns a call away: nothing is wrong with the call."""


def error_of(status: grpc.StatusCode, details: str | None) -> WireError:
    """The error that a call's final status stands for, at a client that has not ended the call itself."""
    text = details or ""
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and text.startswith(_SERVER_IS_BUSY):
        return UnavailableError(text)
    if status is grpc.StatusCode.CANCELLED:
        # gRPC turns calls away like this too when its server is busy, as does a proxy that ends.
        return UnavailableError(f"the call was refused ({text or status.name})")
    return _CLASSES.get(status, PeerFailedError)(text or f"the call ended with {status.name}")
