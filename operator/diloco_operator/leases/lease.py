"""Leader election: one works at a time, the holder of a Lease, and it stops before another one may start.

Another holder's lease has expired when it has not changed for long enough by our own clock, because clocks of machines
differ (client-go does the same). The Lease is that of coordination.k8s.io.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from diloco_operator.api_server.api import Api
from diloco_operator.api_server.errors import ApiError, ConflictError, NotFoundError
from diloco_operator.api_server.kinds import LEASE, Object

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Times for the holder and for those that wait, in seconds."""

    duration_seconds: float = 30.0
    """A lease that has not changed for this long has expired: anyone may take it."""
    give_up_seconds: float = 20.0
    """The holder stops if it could not renew the lease for this long; the rest is a margin for writes under way."""
    renew_seconds: float = 5.0
    """Time between renewals, and between reads of a lease that another process holds."""

    def __post_init__(self) -> None:
        if not self.renew_seconds < self.give_up_seconds < self.duration_seconds:
            raise ValueError("renewals come before giving up, and giving up before the lease expires")


MARK: Final = "diloco.dev/home-version"
"""Annotation of a Lease with a mark."""
_LONGEST_MARK: Final = 20


class LeaseLostError(Exception):
    """This process may no longer write, because another one may be working by now."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Where the time comes from."""

    now: Callable[[], datetime]
    """Wall-clock time with a time zone, which is written into the Lease."""
    monotonic: Callable[[], float]
    """Monotonic seconds, which all decisions use."""


@dataclass(slots=True)
class Lease:
    """The Lease, from the side of a process that wants to hold it."""

    api: Api
    namespace: str
    name: str
    identity: str
    """Who holds it; of several processes with the same identity, the caller lets only one work."""
    clocks: Clocks
    times: LeaseTimes = field(default_factory=LeaseTimes)
    other: str = ""
    """The other holder; empty: none is known."""
    error: ApiError | None = None
    """Why the Lease cannot be read or written at the moment."""
    mark: Callable[[], int] | None = None
    """A number that only grows for as long as the holder's own store lasts. Whoever has a lower one than the Lease is a
    copy from an earlier time, and does not acquire it. None: there is none."""
    told: Callable[[], None] = lambda: None
    """Called after each attempt to acquire it that did not."""
    gate: Callable[[], Awaitable[None]] | None = None
    """Awaited before each attempt and each renewal; None: they are made at once."""
    owners: Callable[[], Awaitable[list[Object]]] | None = None
    """What the object is deleted with, asked when it is created: a change needs the right to delete it, where the API
    server checks that. None: nothing."""
    acquired: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once this process holds it."""
    outdated: bool = False
    """Whether the Lease has a higher mark."""
    _renewed_at: float | None = None
    _seen: tuple[Any, ...] = ()
    _seen_since: float = 0.0
    _live: Object = field(default_factory=dict)

    @property
    def held(self) -> bool:
        """Whether this process may write."""
        return self._renewed_at is not None and self.clocks.monotonic() - self._renewed_at < self.times.give_up_seconds

    def check(self) -> None:
        """Check before each write, because a process that was paused may have lost the lease without knowing it.

        Raises:
            LeaseLostError: it is not held.
        """
        if not self.held:
            raise LeaseLostError(
                f"lease {self.namespace}/{self.name} was not renewed for {self.times.give_up_seconds:.0f} s"
            )

    async def acquire(self) -> None:
        """Wait until this process holds it, even while the API server does not answer."""
        while True:
            try:
                await self._open()
                if await self._try():
                    _log.info("lease %s/%s is held as %s", self.namespace, self.name, self.identity)
                    self.acquired.set()
                    return
                self.error = None
            except ConflictError:
                continue  # another process was quicker: find out which
            except ApiError as error:
                if self.error is None or self.error.message != error.message:
                    _log.warning("%s; retrying", error)
                self.error = error
            self.told()
            await asyncio.sleep(self.times.renew_seconds)

    async def keep(self) -> None:
        """Renew it until it is lost.

        Raises:
            LeaseLostError: it could not be renewed in time, or another has it.
        """
        while True:
            await asyncio.sleep(self.times.renew_seconds)
            try:
                async with asyncio.timeout(self._left_seconds()):
                    await self._open()
                    await self._renew()
            except NotFoundError as error:
                self._renewed_at = None
                raise LeaseLostError(f"the lease was deleted: {error}") from error
            except (ApiError, TimeoutError) as error:
                _log.warning("lease %s/%s not renewed: %s", self.namespace, self.name, str(error) or "no time left")
                self.check()

    async def release(self) -> None:
        """Release it, so that the next process can begin at once. If that fails, the lease expires on its own."""
        if not self.held:
            return
        body = self._body()
        body["spec"].update(holderIdentity="", leaseDurationSeconds=1)
        self._renewed_at = None
        with contextlib.suppress(ApiError):
            await self.api.replace(LEASE, body, timeout_seconds=self.times.renew_seconds)
            _log.info("lease %s/%s is released", self.namespace, self.name)

    async def _open(self) -> None:
        if self.gate is not None:
            await self.gate()

    async def _try(self) -> bool:
        try:
            live = await self.api.get(LEASE, self.namespace, self.name, timeout_seconds=self.times.renew_seconds)
        except NotFoundError:
            await self._write(create=True)
            return True
        self._look_at(live)
        if self.outdated:
            return False
        waited_seconds = self.clocks.monotonic() - self._seen_since
        if self.other not in ("", self.identity) and waited_seconds < self._duration_of(live):
            return False
        await self._write(create=False)
        return True

    def _look_at(self, live: Object) -> None:
        spec = live.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        seen = (holder, live["metadata"]["resourceVersion"])
        if seen != self._seen:
            self._seen, self._seen_since = seen, self.clocks.monotonic()
        if holder != self.other:
            _log.info("lease %s/%s is held by %s", self.namespace, self.name, holder or "no process")
        self.other, self._live = holder, live
        self.outdated = self.mark is not None and self.mark() < _mark_of(live)

    def _duration_of(self, live: Object) -> float:
        # The holder's own duration, as it may be another version of the operator.
        return float((live.get("spec") or {}).get("leaseDurationSeconds") or self.times.duration_seconds)

    async def _renew(self) -> None:
        try:
            await self._write(create=False)
        except ConflictError:
            # It was taken or edited; or our own write succeeded and its answer was lost. Only reading it tells.
            live = await self.api.get(LEASE, self.namespace, self.name, timeout_seconds=self.times.renew_seconds)
            self._look_at(live)
            if self.other != self.identity:
                self._renewed_at = None
                raise LeaseLostError(
                    f"lease {self.namespace}/{self.name} is held by {self.other or 'no process'}"
                ) from None
            await self._write(create=False)

    async def _write(self, *, create: bool) -> None:
        if create:
            self._live = {}
        body = self._body()
        if create and self.owners is not None:
            body["metadata"]["ownerReferences"] = await self.owners()
        # Counted from before the request, because when others first saw it is not known.
        asked_at = self.clocks.monotonic()
        write = self.api.create if create else self.api.replace
        self._live = await write(LEASE, body, timeout_seconds=self.times.renew_seconds)
        self._renewed_at, self.other, self.error = asked_at, "", None

    def _left_seconds(self) -> float:
        if self._renewed_at is None:
            return 0.0
        return max(self.times.give_up_seconds - (self.clocks.monotonic() - self._renewed_at), 0.0)

    def _body(self) -> Object:
        now = self.clocks.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = self._live.get("spec") or {}
        ours = old.get("holderIdentity") == self.identity
        metadata = dict(self._live.get("metadata") or {"namespace": self.namespace, "name": self.name})
        metadata.pop("managedFields", None)
        if self.mark is not None:
            mark = max(self.mark(), _mark_of(self._live))
            metadata["annotations"] = {**metadata.get("annotations", {}), MARK: str(mark)}
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.name,
            "metadata": metadata,
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": max(round(self.times.duration_seconds), 1),
                "acquireTime": old.get("acquireTime") if ours else now,
                "renewTime": now,
                "leaseTransitions": int(old.get("leaseTransitions") or 0) + (0 if ours or not old else 1),
            },
        }


def _mark_of(live: Object) -> int:
    text = ((live.get("metadata") or {}).get("annotations") or {}).get(MARK, "")
    return int(text) if text.isdecimal() and len(text) <= _LONGEST_MARK else 0
