"""What every call on the server shares: who calls, and how a failure ends the call.

A peer that misbehaves, disappears or is cut off costs one line in the log, never a traceback.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from diloco.wire.errors import IdentityError, PeerFailedError, RefusedError, UnavailableError, WireError, one_line
from diloco.wire.revocations import Revocations
from diloco.wire.server_context import Context
from diloco.wire.sparse_log import SparseLog
from diloco.wire.tls import Peer, identity_of

_log = logging.getLogger(__name__)

Call = Callable[[Any, Context, Peer], Awaitable[bytes | None]]


class Caller:
    """Identifies callers, and ends calls that fail."""

    def __init__(self, *, job: str | None, revocations: Revocations | None) -> None:
        """``revocations``: of certificates for mutual TLS, which must be for ``job`` if that is given; None: no TLS."""
        self._job = job
        self._revocations = revocations
        self._lines = SparseLog(_log)

    def guarded(
        self, call: Call, refusals_level: int = logging.INFO
    ) -> Callable[[Any, Context], Awaitable[bytes | None]]:
        """``call`` as gRPC wants it, with the peer as an argument and failures turned into a status and one line.

        Refusals are logged at ``refusals_level``.
        """
        return self._guarded(call, self._peer, refusals_level)

    def open_to_all(self, call: Call) -> Callable[[Any, Context], Awaitable[bytes | None]]:
        """``guarded``, without checking the caller's certificate."""
        return self._guarded(call, lambda context: Peer(one_line(context.peer())), logging.DEBUG)

    def _guarded(
        self, call: Call, peer_of: Callable[[Context], Peer], refusals_level: int
    ) -> Callable[[Any, Context], Awaitable[bytes | None]]:
        async def guarded_call(request: Any, context: Context) -> bytes | None:
            try:
                peer = peer_of(context)
                async with self._while_trusted(context, peer):
                    return await call(request, context, peer)
            except RefusedError as error:
                await self._abort(context, call.__name__, error, refusals_level)
            except WireError as error:
                await self._abort(context, call.__name__, error)
            except (grpc.aio.BaseError, asyncio.InvalidStateError):
                # grpc.aio raises this when the other side is gone.
                await self._abort(context, call.__name__, UnavailableError("the connection broke"))
            except Exception:  # noqa: BLE001 - our own error must still end the call
                _log.exception("%s failed", call.__name__)
                await self._abort(context, call.__name__, PeerFailedError("the syncer failed; see its log"))
            return None

        return guarded_call

    def _peer(self, context: Context) -> Peer:
        address = one_line(context.peer())
        if self._revocations is None:
            return Peer(address)
        names = context.auth_context().get("peer_uri", ())
        identity = identity_of(name.decode("utf-8", "replace") for name in names)
        if identity is None:
            raise IdentityError("the certificate names no learner (one URI diloco://JOB/learner/REGION/POOL[/INDEX])")
        if self._job is not None and identity.job != self._job:
            raise IdentityError(f"the certificate is for job {identity.job}; this is job {self._job}")
        return Peer(address, identity.learner, identity.job)

    def _while_trusted(self, context: Context, peer: Peer) -> contextlib.AbstractAsyncContextManager[None]:
        """Ends what is done within it with RevokedError if, or as soon as, the caller's certificate is revoked."""
        if self._revocations is None or peer.learner is None:
            return contextlib.nullcontext()
        (certificate,) = context.auth_context().get("x509_pem_cert", (b"",))
        return self._revocations.watched(peer.learner, bytes(certificate))

    async def _abort(self, context: Context, name: str, error: WireError, level: int = logging.INFO) -> None:
        self._lines.log(level, "%s of %s ended: %s", name, one_line(context.peer()), error)
        # The other side may be gone already; abort() still ends the call on our side by raising.
        with contextlib.suppress(grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError):
            await context.abort(error.status, str(error))
