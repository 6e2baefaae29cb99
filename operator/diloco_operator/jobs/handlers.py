"""The operator as kopf sees it: what happens when it starts, logs in, hears of a job, and stops.

kopf watches the jobs and nothing else. It writes nothing to the cluster (no annotation, finalizer or Event), and needs
access neither to namespaces nor to CustomResourceDefinitions. A job that changes is put into the queue of the workers,
which reconcile it; so are jobs whose objects change, which `api_server.watches` reports.
"""

import itertools
from collections.abc import Iterator
from typing import Any, Final

import kopf

from diloco_operator.api_server.api import SILENCE_SECONDS, WATCH_SECONDS
from diloco_operator.api_server.kinds import JOB
from diloco_operator.api_server.limits import PAGE_OBJECTS, REQUEST_TIMEOUT_SECONDS

registry: Final = kopf.OperatorRegistry()


class _Endless:
    """Pauses in seconds before a request is sent again, for as long as the API server does not answer."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1, 2, 4, 8), itertools.repeat(16))


@kopf.on.startup(registry=registry, errors=kopf.ErrorsMode.PERMANENT)
async def start(settings: kopf.OperatorSettings, memo: Any, **_: Any) -> None:
    """Wait for the Lease, then start caches, workers and other clusters."""
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.client_timeout = WATCH_SECONDS + 10
    settings.watching.inactivity_timeout = SILENCE_SECONDS
    settings.watching.chunk_size = PAGE_OBJECTS
    settings.networking.request_timeout = REQUEST_TIMEOUT_SECONDS
    settings.networking.connect_timeout = 10
    settings.networking.error_backoffs = _Endless()
    await memo.operator.start()


@kopf.on.login(registry=registry)
async def log_in(memo: Any, **_: Any) -> kopf.ConnectionInfo:
    """Log in as the rest of the operator does."""
    found: kopf.ConnectionInfo = await memo.operator.connection.for_kopf()
    return found


@kopf.on.event(JOB.group, JOB.version, JOB.plural, registry=registry)
async def job_changed(event: Any, memo: Any, **_: Any) -> None:
    """Reconcile a job that is new, has changed or is gone."""
    memo.operator.job_changed(event["type"], dict(event["object"]))


@kopf.on.cleanup(registry=registry, errors=kopf.ErrorsMode.PERMANENT)
async def stop(memo: Any, **_: Any) -> None:
    """End all work and release the Lease."""
    await memo.operator.stop()
