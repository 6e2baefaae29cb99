"""The watch of DiLoCoJobs: kopf and its handlers, on a thread of their own.

kopf needs an event loop of its own, and so a thread: when it stops, it cancels every task that was created on its loop
after it started. It stops whenever a watch returns an unknown error or a list keeps failing; this module then restarts
it. Handlers only report which job changed. kopf writes nothing to the jobs (no annotation, finalizer or Event), and
needs access neither to namespaces nor to CustomResourceDefinitions.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import kopf

from diloco.runtime.backoff import Backoff
from diloco_operator.cluster.api import SILENCE_SECONDS, WATCH_SECONDS
from diloco_operator.cluster.kinds import JOB, Object
from diloco_operator.cluster.limits import PAGE_OBJECTS, REQUEST_TIMEOUT_SECONDS

_log = logging.getLogger(__name__)
Seen = Callable[[str | None, Object], None]
"""Called for each event with its type (``ADDED``, ``MODIFIED`` or ``DELETED``; None: from a list) and the job."""
_LONG_ENOUGH_SECONDS: Final = 60.0
"""If kopf ran at least this long before it stopped, the pause before its restart starts from the shortest one again."""
_STOPPING_SECONDS: Final = 10.0


def register(registry: kopf.OperatorRegistry, seen: Seen) -> None:
    """Register the handlers. `seen` is called on kopf's thread."""

    @kopf.on.event(JOB.group, JOB.version, JOB.plural, registry=registry)
    async def job_seen(event: Any, **_: Any) -> None:
        seen(event["type"], dict(event["object"]))


def settings() -> kopf.OperatorSettings:
    """Settings with which kopf writes nothing to the cluster, and no request or watch lasts without limit."""
    chosen = kopf.OperatorSettings()
    chosen.scanning.disabled = True
    chosen.posting.enabled = False
    chosen.posting.loggers = False
    chosen.watching.server_timeout = WATCH_SECONDS
    chosen.watching.client_timeout = WATCH_SECONDS + 10
    chosen.watching.connect_timeout = 10
    chosen.watching.inactivity_timeout = SILENCE_SECONDS
    chosen.watching.reconnect_backoff = 0.5
    chosen.watching.chunk_size = PAGE_OBJECTS
    chosen.networking.request_timeout = REQUEST_TIMEOUT_SECONDS
    chosen.networking.connect_timeout = 10
    chosen.networking.error_backoffs = (1, 2, 4, 8)
    chosen.queueing.exit_timeout = 1
    # Otherwise kopf would kill the whole process, in which it is only one part.
    chosen.process.ultimate_exiting_timeout = None
    return chosen


@dataclass(slots=True)
class JobWatch:
    """Keeps kopf running."""

    make_registry: Callable[[], kopf.OperatorRegistry]
    namespaces: tuple[str, ...]
    seen: Seen
    """Called on the thread of the loop in which `run` runs."""
    backoff: Backoff
    problem: str = ""
    """Why kopf stopped the last time; empty: it has not stopped, or was asked to."""
    _stop: threading.Event = field(default_factory=threading.Event)

    async def run(self) -> None:
        """Watch forever. When cancelled, ask kopf to stop and wait for it."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            self._stop = threading.Event()
            ended: asyncio.Future[str] = loop.create_future()
            started_at = loop.time()
            thread = threading.Thread(target=self._thread, args=(loop, ended), name="kopf", daemon=True)
            thread.start()
            try:
                self.problem = await asyncio.shield(ended)
            finally:
                self._stop.set()
                if not ended.done():
                    await asyncio.wait([ended], timeout=_STOPPING_SECONDS)
            failures = 1 if loop.time() - started_at >= _LONG_ENOUGH_SECONDS else failures + 1
            _log.warning("the watch of jobs ended: %s; restarting it", self.problem or "it was asked to")
            await asyncio.sleep(self.backoff.seconds(failures))

    def restart(self) -> None:
        """Restart kopf, so that it lists and watches again."""
        self._stop.set()

    def _thread(self, loop: asyncio.AbstractEventLoop, ended: asyncio.Future[str]) -> None:
        def tell(event: str | None, job: Object) -> None:
            loop.call_soon_threadsafe(self.seen, event, job)

        problem = ""
        try:
            asyncio.run(self._kopf(tell))
        except Exception as error:  # noqa: BLE001 # kopf is restarted whatever made it fail
            problem = f"{type(error).__name__}: {error}"
        # The loop is closed when the process is ending.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_end, ended, problem)

    async def _kopf(self, tell: Seen) -> None:
        registry = self.make_registry()
        register(registry, tell)
        stop = self._stop
        try:
            await kopf.operator(
                registry=registry,
                settings=settings(),
                standalone=True,
                clusterwide=not self.namespaces,
                namespaces=self.namespaces,
                stop_flag=stop,
            )
        finally:
            stop.set()  # one of kopf's threads waits for it


def _end(ended: asyncio.Future[str], problem: str) -> None:
    if not ended.done():
        ended.set_result(problem)
