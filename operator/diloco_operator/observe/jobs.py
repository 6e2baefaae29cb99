"""The jobs as the watch last reported them, and whether that watch still works.

The watch is kopf's, and a broken one looks just like a quiet cluster. So its results are compared now and then with a
list of all jobs' metadata: jobs whose deletion was missed are dropped, missed changes are fetched, and the watch's age
is the time since watch and list last agreed.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from diloco_operator.cluster.api import Api, Selection
from diloco_operator.cluster.cache import as_version, version_of, without_managed_fields
from diloco_operator.cluster.errors import NotFoundError
from diloco_operator.cluster.kinds import JOB, Object

_log = logging.getLogger(__name__)


class JobKey(NamedTuple):
    """A job in the cluster."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def key_of(job: Object) -> JobKey:
    """The key of a job's object."""
    return JobKey(job["metadata"]["namespace"], job["metadata"]["name"])


class Jobs:
    """Every job, whole, in its latest known version."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, Object] = {}
        self._heard: dict[JobKey, int] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[JobKey]:
        return iter(tuple(self._jobs))

    def get(self, key: JobKey) -> Object | None:
        """The job; None: there is none."""
        return self._jobs.get(key)

    def heard(self, event: str | None, job: Object) -> JobKey:
        """Record a job from the watch. `event` is the watch event's type; None: kopf found the job in a list."""
        key = key_of(job)
        self._heard[key] = version_of(job)
        if event == "DELETED":
            self.drop(key, version_of(job))
            self._heard.pop(key, None)
        else:
            self.put(job)
        return key

    def heard_version(self, key: JobKey) -> int:
        """The latest version of a job that the watch has reported; 0: none."""
        return self._heard.get(key, 0)

    def put(self, job: Object) -> None:
        """Keep this version of a job, unless a later one is known."""
        known = self._jobs.get(key_of(job))
        if known is None or version_of(job) >= version_of(known):
            self._jobs[key_of(job)] = without_managed_fields(job)

    def refresh(self, job: Object) -> None:
        """As `put`, for the answer to our own request. Ignored if the job is gone or was created anew meanwhile."""
        known = self._jobs.get(key_of(job))
        if known is not None and known["metadata"]["uid"] == job["metadata"]["uid"]:
            self.put(job)

    def drop(self, key: JobKey, version: int) -> None:
        """Remove a job that no longer existed at `version`."""
        known = self._jobs.get(key)
        if known is not None and version_of(known) <= version:
            del self._jobs[key]

    def forget(self, job: Object) -> None:
        """Remove this job, but not a later one of the same name."""
        known = self._jobs.get(key_of(job))
        if known is not None and known["metadata"]["uid"] == job["metadata"]["uid"]:
            del self._jobs[key_of(job)]

    def phases(self) -> Counter[str]:
        """Number of jobs by phase."""
        return Counter((job.get("status") or {}).get("phase") or "New" for job in self._jobs.values())


@dataclass(slots=True)
class JobProbe:
    """Compares what the watch has reported with a list."""

    api: Api
    jobs: Jobs
    namespaces: tuple[str, ...]
    changed: Callable[[JobKey], None]
    clock: Callable[[], float]
    agreed_at: float | None = None
    """When watch and list last agreed; None: never."""
    deaf: bool = False
    """The watch has still not reported changes that were in the list of the previous probe. Twice in a row: kopf is
    restarted."""
    _there: dict[JobKey, int] | None = None

    async def probe(self) -> None:
        """Compare once, and correct what differs.

        Raises:
            ApiError: the jobs could not be listed.
        """
        there: dict[JobKey, int] = {}
        for namespace in self.namespaces or (None,):
            version = 0
            async for page in self.api.pages(Selection(JOB, namespace, metadata_only=True)):
                version = as_version(page["metadata"]["resourceVersion"])
                for item in page.get("items") or ():
                    there[key_of(item)] = version_of(item)
            self._drop_missing(there, namespace, version)
        late = [key for key, version in self._earlier() if key in there and self.jobs.heard_version(key) < version]
        self.deaf = bool(late)
        if late:
            _log.warning("the watch missed changes of %d jobs (for example %s); fetched them", len(late), late[0])
        elif self._there is not None:
            self.agreed_at = self.clock()
        self._there = there
        for key in late:
            await self._fetch(key)

    def _earlier(self) -> list[tuple[JobKey, int]]:
        return list((self._there or {}).items())

    def _drop_missing(self, there: dict[JobKey, int], namespace: str | None, version: int) -> None:
        for key in self.jobs:
            if key in there or namespace not in (None, key.namespace):
                continue
            self.jobs.drop(key, version)
            if self.jobs.get(key) is None:
                self.changed(key)

    async def _fetch(self, key: JobKey) -> None:
        try:
            self.jobs.put(await self.api.get(JOB, *key))
        except NotFoundError:
            return
        self.changed(key)
