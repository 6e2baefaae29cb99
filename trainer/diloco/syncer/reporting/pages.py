"""The syncer's HTTP pages. They run in the HTTP server's threads and read their values on the event loop."""

import asyncio
import concurrent.futures
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

from diloco.runtime.http import KeptPage, Response, Route
from diloco.runtime.process.heartbeat import Heartbeat
from diloco.spec.status.syncer import SyncerStatus
from diloco.syncer.reporting.metrics import CONTENT_TYPE, SyncerMetrics

LONGEST_LAG_SECONDS = 10.0
"""An event loop that lags by more than this counts as stuck (ours)."""
_ANSWER_SECONDS = 5.0

T = TypeVar("T")


class LoopBusyError(RuntimeError):
    """The event loop did not answer in time."""


def on_loop(loop: asyncio.AbstractEventLoop, read: Callable[[], T]) -> T:
    """Call ``read`` on the event loop, from another thread, and wait for its result.

    Raises:
        LoopBusyError: the loop is stuck or closed.
    """
    answer: concurrent.futures.Future[T] = concurrent.futures.Future()

    def call() -> None:
        if answer.set_running_or_notify_cancel():
            try:
                answer.set_result(read())
            except Exception as error:  # noqa: BLE001  # raised again in the calling thread
                answer.set_exception(error)

    try:
        loop.call_soon_threadsafe(call)
        return answer.result(_ANSWER_SECONDS)
    except (RuntimeError, TimeoutError) as error:
        answer.cancel()
        raise LoopBusyError("the event loop does not answer") from error


def routes(
    metrics: SyncerMetrics,
    heartbeat: Heartbeat,
    status: Callable[[], SyncerStatus],
    ready: Callable[[], bool],
    directory: Path,
) -> dict[str, Route]:
    """The pages by path. ``status`` and ``ready`` are called in the HTTP server's threads."""

    def health() -> Response:
        lag = heartbeat.lag_seconds
        code = HTTPStatus.OK if lag <= LONGEST_LAG_SECONDS else HTTPStatus.SERVICE_UNAVAILABLE
        return Response.text(f"event loop lag {lag:.3f} s\n", code)

    def readiness() -> Response:
        if ready():
            return Response.text("serving\n")
        return Response.text("not serving (starting or stopping)\n", HTTPStatus.SERVICE_UNAVAILABLE)

    def metrics_page() -> Response:
        metrics.loop_lag.set(heartbeat.lag_seconds)
        metrics.observe_disk(directory)
        return Response(metrics.page(status()), CONTENT_TYPE)

    def status_page() -> Response:
        return Response(status().model_dump_json().encode() + b"\n", "application/json")

    return {
        "/metrics": _guarded(metrics_page),
        "/healthz": health,
        "/readyz": readiness,
        "/status": _guarded(status_page),
    }


def page_for_people(
    status: Callable[[], SyncerStatus], make: Callable[[SyncerStatus], Response] | None
) -> dict[str, Route]:
    """The report while it grows, by its path; ``make`` draws it. None: there is none."""
    return {} if make is None else {"/page": KeptPage(_guarded(lambda: make(status())))}


def _guarded(page: Route) -> Route:
    def answer() -> Response:
        try:
            return page()
        except LoopBusyError as error:
            return Response.text(f"{error}\n", HTTPStatus.SERVICE_UNAVAILABLE)

    return answer
