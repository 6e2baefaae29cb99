"""/healthz, /readyz and /metrics: whether this process does its work.

A probe that only answers shows that HTTP works and nothing more. Here readiness depends on the lease and on the age of
every watch. Waiting for the lease counts as ready, or a rolling upgrade would never finish. What one namespace lacks is
told and makes nothing unready: whoever may set a quota there would else switch the operator of all off.
"""

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from diloco.runtime.process.heartbeat import Heartbeat

_log = logging.getLogger(__name__)
MOST_LAG_SECONDS = 30.0
MOST_WATCH_AGE_SECONDS = 180.0
"""Twice the silence after which a watch is restarted."""


class BadAddressError(Exception):
    """The listening address cannot be used. The text is for the user."""


class Work(Protocol):
    """What the operator does."""

    def standing(self) -> str | None:
        """What this process waits for, as text; None: it works."""
        ...

    def stands_by(self) -> bool:
        """Whether waiting is normal: another process holds the Lease."""
        ...

    def ages(self) -> dict[str, float]:
        """Seconds since each watch was last known to be alive."""
        ...

    def problems(self) -> dict[str, str]:
        """Why watches are not watching at the moment, for those that are not."""
        ...

    def refused(self) -> set[str]:
        """Watches that the API server refuses at the moment."""
        ...

    def elsewhere(self) -> list[str]:
        """In which namespaces this operator does not act, and why, one text each."""
        ...


@dataclass(slots=True)
class Health:
    """The state from which the probes are answered."""

    registry: CollectorRegistry
    heartbeat: Heartbeat
    work: Work | None = None
    """None: it has not begun."""

    def show(self, work: Work) -> None:
        """Answer from this."""
        self.work = work

    def unready(self) -> Iterator[str]:
        """Every reason why this process does not work as it should."""
        assert self.work is not None
        refused = self.work.refused()
        for watch, age in self.work.ages().items():
            if age > MOST_WATCH_AGE_SECONDS or watch in refused:
                problem = self.work.problems().get(watch)
                seen = "never" if age == float("inf") else f"{age:.0f} s ago"
                yield f"watch of {watch} last heard from: {seen}{f': {problem}' if problem else ''}"

    @asynccontextmanager
    async def served(self, address: str) -> AsyncIterator[int]:
        """Serve at `address` (``host:port``) within a ``with``; yields the port, which matters if 0 was given.

        Raises:
            BadAddressError: the address cannot be used.
        """
        host, _, port = address.rpartition(":")
        if not port.isdecimal() or int(port) > 65535:
            raise BadAddressError(
                f"--health-address: {address} is not an address; use HOST:PORT with a port from 0 to 65535"
            )
        app = web.Application()
        app.add_routes(
            [web.get("/healthz", self._healthz), web.get("/readyz", self._readyz), web.get("/metrics", self._metrics)]
        )
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, None if host == "[::]" else host.strip("[]"), int(port)).start()
            except OSError as error:
                raise BadAddressError(
                    f"--health-address: {address} is not available: {error.strerror or error}; use another one"
                ) from error
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        lag = self.heartbeat.lag_seconds
        text = f"the event loop is {lag:.1f} s late\n"
        return web.Response(text=text, status=503 if lag > MOST_LAG_SECONDS else 200)

    async def _readyz(self, _: web.Request) -> web.Response:
        if self.work is None:
            return web.Response(text="starting\n", status=503)
        waiting = self.work.standing()
        if waiting is not None:
            return web.Response(text=f"{waiting}\n", status=200 if self.work.stands_by() else 503)
        lines = list(self.unready())
        if lines:
            return web.Response(text="".join(f"{line}\n" for line in lines), status=503)
        oldest = max(self.work.ages().values(), default=0.0)
        working = f"working: lease held, every watch heard from within the last {oldest:.0f} s"
        return web.Response(text="".join(f"{line}\n" for line in (working, *self.work.elsewhere())))

    async def _metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(self.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})
