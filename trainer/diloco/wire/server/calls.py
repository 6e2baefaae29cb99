"""What every call on the server shares: who calls, how long it may say nothing, and how a failure ends it.

A peer that misbehaves, disappears or is cut off costs one line in the log, never a traceback.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias, cast

import grpc

from diloco.wire.errors import (
    DeadlineError,
    IdentityError,
    PeerFailedError,
    RefusedError,
    UnavailableError,
    WireError,
    one_line,
)
from diloco.wire.server.revocations import Revocations
from diloco.wire.tls.tls import Peer, identity_of

_log = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
AuthContext = Mapping[str, Iterable[bytes]]
"""What TLS knows of a peer."""
Call = Callable[[Any, Context, Peer], Awaitable[None]]
"""Serves a call."""
_FIRST_MESSAGE_SECONDS: Final = 5.0
"""How long a caller that is refused is given for its first message (ours: some round trips of a long link)."""


async def read_message(context: Context) -> bytes | None:
    """The next message of a call; None if there is none any more."""
    message: Any = await context.read()
    return None if message is grpc.aio.EOF else cast("bytes", message)


async def first_message(context: Context, seconds: float, what: str) -> bytes | None:
    """The first message of a call; None if it ends without one. ``what`` names the expected message, for the error.

    Raises:
        DeadlineError: none came in time.
    """
    try:
        async with asyncio.timeout(seconds):
            return await read_message(context)
    except TimeoutError:
        raise DeadlineError(f"no {what} came within {seconds:g} s") from None


async def _pass_first_message(context: Context) -> None:
    """Read what a refused caller sends first: ended while it writes that, a client of grpc.aio loses the status."""
    with contextlib.suppress(WireError, grpc.aio.BaseError, asyncio.InvalidStateError):
        await first_message(context, _FIRST_MESSAGE_SECONDS, "message")


class Patience:
    """The time limit of a call that waits for its peer, which other code can cut short. Used on the event loop."""

    def __init__(self, seconds: float) -> None:
        """Wait for at most ``seconds`` at a time."""
        self._seconds = seconds
        self._timeout: asyncio.Timeout | None = None
        self.cut_short = False

    def cut(self) -> None:
        """End the call's current or next wait now."""
        self.cut_short = True
        self._reschedule(0.0)

    def renew(self) -> None:
        """Restart the time limit, because something came."""
        if not self.cut_short:
            self._reschedule(self._seconds)

    def waiting(self) -> asyncio.Timeout:
        """Raise TimeoutError in whatever is awaited inside when the time is up."""
        self._timeout = asyncio.timeout(0.0 if self.cut_short else self._seconds)
        return self._timeout

    def _reschedule(self, seconds: float) -> None:
        if self._timeout is not None:
            with contextlib.suppress(RuntimeError):  # it has already expired
                self._timeout.reschedule(asyncio.get_running_loop().time() + seconds)


class Caller:
    """Identifies callers, and ends calls that fail."""

    def __init__(self, *, job: str | None, revocations: Revocations | None) -> None:
        """``revocations``: of certificates for mutual TLS, which must be for ``job`` if that is given; None: no TLS."""
        self._job = job
        self._revocations = revocations

    def guarded(self, call: Call, refusals_level: int = logging.INFO) -> Callable[[Any, Context], Awaitable[Any]]:
        """``call`` as gRPC wants it, with the peer as an argument and failures turned into a status and one line.

        Refusals are logged at ``refusals_level``.
        """

        async def guarded_call(request: Any, context: Context) -> None:
            let_in = False
            try:
                tls = {} if self._revocations is None else context.auth_context()
                peer = self._peer(context, tls)
                async with self._while_trusted(peer, tls):
                    let_in = True
                    await call(request, context, peer)
            except WireError as error:
                if not let_in:
                    await _pass_first_message(context)
                level = refusals_level if isinstance(error, RefusedError) else logging.INFO
                await self._abort(context, call.__name__, error, level)
            except (grpc.aio.BaseError, asyncio.InvalidStateError):
                # grpc.aio raises this when the other side is gone.
                await self._abort(context, call.__name__, UnavailableError("the connection broke"))
            except Exception:  # noqa: BLE001 - our own error must still end the call
                _log.exception("%s failed", call.__name__)
                await self._abort(context, call.__name__, PeerFailedError("the syncer failed; see its log"))

        return guarded_call

    def _peer(self, context: Context, tls: AuthContext) -> Peer:
        address = one_line(context.peer())
        if self._revocations is None:
            return Peer(address)
        identity = identity_of(name.decode("utf-8", "replace") for name in tls.get("peer_uri", ()))
        if identity is None:
            raise IdentityError("the certificate names no learner (one URI diloco://JOB/learner/REGION/POOL[/INDEX])")
        if self._job is not None and identity.job != self._job:
            raise IdentityError(f"the certificate is for job {identity.job}; this is job {self._job}")
        return Peer(address, identity.learner, identity.job)

    def _while_trusted(self, peer: Peer, tls: AuthContext) -> contextlib.AbstractAsyncContextManager[None]:
        """Ends what is done within it with RevokedError if, or as soon as, the caller's certificate is revoked."""
        if self._revocations is None or peer.learner is None:
            return contextlib.nullcontext()
        (certificate,) = tls.get("x509_pem_cert", (b"",))
        return self._revocations.watched(peer.learner, bytes(certificate))

    async def _abort(self, context: Context, name: str, error: WireError, level: int = logging.INFO) -> None:
        _log.log(level, "%s of %s ended: %s", name, one_line(context.peer()), error)
        # The other side may be gone already; abort() still ends the call on our side by raising.
        with contextlib.suppress(grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError):
            await context.abort(error.status, str(error))
