"""A second watch of jobs, of their metadata: kopf's may end without a word, and tells nothing of what went meanwhile.

It says whether the operator hears of jobs at all. A job that kopf does not bring is read, and one that is gone from
here is taken for deleted.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from diloco.runtime.backoff import Backoff
from diloco.runtime.log import about
from diloco_operator import labels
from diloco_operator.api_server.api import Api, Selection
from diloco_operator.api_server.cache import Cache, version_of
from diloco_operator.api_server.errors import ApiError, NotFoundError
from diloco_operator.api_server.kinds import JOB, Object
from diloco_operator.api_server.watches import Watch
from diloco_operator.jobs.jobs import JobKey, Jobs

_log = logging.getLogger(__name__)
COMPARE_SECONDS: Final = 15.0
"""A job that kopf has not brought after one to two of these is read."""
_FIELDS: Final = ("name", "namespace", "uid", "resourceVersion")


@dataclass(slots=True)
class JobWatch:
    """The second watch."""

    api: Api
    jobs: Jobs
    namespaces: tuple[str, ...]
    """Whose jobs are watched; empty: all."""
    excluded: Collection[str]
    """Whose jobs are not."""
    heard: Callable[[str, Object], None]
    """Called with a job that kopf has not brought, and the type of the event."""
    compare_seconds: float = COMPARE_SECONDS
    served: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the API server has the kind."""
    watches: tuple[Watch, ...] = field(init=False)
    _cache: Cache = field(default_factory=lambda: Cache(labels.JOB))
    _behind: frozenset[tuple[str, JobKey]] = frozenset()

    def __post_init__(self) -> None:
        async def served() -> None:
            await self.served.wait()

        self.watches = tuple(
            Watch(
                self.api,
                Selection(JOB, namespace, metadata_only=True),
                self._cache,
                lambda _: None,
                time.monotonic,
                Backoff(first_seconds=1.0, most_seconds=30.0, random=random.random),
                gate=served,
                keep=self._known_of,
            )
            for namespace in self.namespaces or (None,)
        )

    async def run(self) -> None:
        """Watch and compare until cancelled."""
        async with asyncio.TaskGroup() as group:
            for watch in self.watches:
                group.create_task(watch.run())
            group.create_task(self._compare())

    async def _compare(self) -> None:
        while True:
            await asyncio.sleep(self.compare_seconds)
            before, self._behind = self._behind, frozenset(self._differences())
            for event, key in sorted(before & self._behind):
                with about(job=key.name, namespace=key.namespace):
                    _log.warning("%s: %s, which kopf's watch has not reported", key, event.lower())
                    await self._bring(event, key)

    def _differences(self) -> Iterator[tuple[str, JobKey]]:
        there = {JobKey(key.namespace, key.name): version_of(item) for key, item in self._cache.everything()}
        for key, version in there.items():
            if version > self.jobs.version(key):
                yield "MODIFIED", key
        for watch in self.watches:
            scope = watch.selection.namespace
            for key in self.jobs if watch.synced.is_set() else ():
                if scope in (None, key.namespace) and key not in there and self.jobs.version(key) <= watch.version:
                    yield "DELETED", key

    async def _bring(self, event: str, key: JobKey) -> None:
        job = self.jobs.get(key)
        if event != "DELETED":
            try:
                job = await self.api.get(JOB, *key)
            except NotFoundError:
                return
            except ApiError as error:
                _log.warning("%s; retrying", error)
                return
        if job is not None:
            self.heard(event, job)

    def _known_of(self, job: Object) -> Object | None:
        metadata = job["metadata"]
        if metadata["namespace"] in self.excluded:
            return None
        return {"metadata": {name: metadata[name] for name in _FIELDS}}
