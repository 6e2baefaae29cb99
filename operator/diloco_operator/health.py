"""/healthz, /readyz and /metrics: whether this process does its work.

A probe that only answers shows that HTTP works and nothing more. Here readiness depends on the lease and on the age of
every watch. Waiting for the lease counts as ready, or a rolling upgrade would never finish.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from diloco.runtime.heartbeat import Heartbeat

_log = logging.getLogger(__name__)
MOST_LAG_SECONDS = 30.0
MOST_WATCH_AGE_SECONDS = 180.0
"""Twice the silence after which a watch is restarted."""


class BadAddressError(Exception):
    """The listening address cannot be used. The text is for the user."""


@dataclass(slots=True)
class Health:
    """The state from which the probes are answered."""

    registry: CollectorRegistry
    heartbeat: Heartbeat
    standing: Callable[[], str | None] = lambda: "starting"
    """What this process waits for, as text; None: it works."""
    ready_while_waiting: Callable[[], bool] = lambda: False
    """Waiting is normal: another process holds the Lease."""
    watch_ages: Callable[[], dict[str, float]] = dict
    """Seconds since each watch was last known to be alive."""
    watch_problems: Callable[[], dict[str, str]] = dict
    """Why watches are not watching at the moment, for those that are not."""
    gone: Callable[[], list[str]] = list
    """Namespaces whose jobs are not reconciled, because they or the permission to read them are gone."""

    def unready(self) -> Iterator[str]:
        """Every reason why this process does not work as it should."""
        for watch, age in self.watch_ages().items():
            if age > MOST_WATCH_AGE_SECONDS:
                problem = self.watch_problems().get(watch)
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
                await web.TCPSite(runner, host.strip("[]") or None, int(port)).start()
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
        waiting = self.standing()
        if waiting is not None:
            return web.Response(text=f"{waiting}\n", status=200 if self.ready_while_waiting() else 503)
        lines = list(self.unready())
        if lines:
            return web.Response(text="".join(f"{line}\n" for line in lines), status=503)
        oldest = max(self.watch_ages().values(), default=0.0)
        gone = "".join(
            f"jobs not reconciled in namespace {name}: it is deleted, or access to it is forbidden\n"
            for name in self.gone()
        )
        return web.Response(text=f"working: lease held, every watch heard from within the last {oldest:.0f} s\n{gone}")

    async def _metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(self.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})
