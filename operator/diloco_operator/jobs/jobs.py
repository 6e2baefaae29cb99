"""The jobs as the watch last reported them, and as our own writes were answered."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from diloco.spec.job import MANAGER
from diloco_operator.api_server.cache import version_of, without_managed_fields
from diloco_operator.api_server.kinds import Object
from diloco_operator.objects import mapping


class JobKey(NamedTuple):
    """A job in the cluster."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def key_of(job: Object) -> JobKey:
    """The key of a job's object."""
    return JobKey(job["metadata"]["namespace"], job["metadata"]["name"])


def is_ours(job: Object) -> bool:
    """Whether the operator manages a job. It leaves others alone, their status too, as Kubernetes does (KEP-4368)."""
    return mapping(job.get("spec")).get("managedBy") in (None, MANAGER)


class Jobs:
    """Every job, whole, in its latest known version."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, Object] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[JobKey]:
        return iter(tuple(self._jobs))

    def items(self) -> Iterator[tuple[JobKey, Object]]:
        """Every job with its key."""
        return iter(tuple(self._jobs.items()))

    def get(self, key: JobKey) -> Object | None:
        """The job; None: there is none."""
        return self._jobs.get(key)

    def heard(self, event: str | None, job: Object) -> JobKey:
        """Record a job from the watch. `event` is the watch event's type; None: kopf found the job in a list."""
        key = key_of(job)
        if event == "DELETED":
            known = self._jobs.get(key)
            if known is not None and version_of(known) <= version_of(job):
                del self._jobs[key]
        else:
            self.put(job)
        return key

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

    def forget(self, job: Object) -> None:
        """Remove this job, but not a later one of the same name."""
        known = self._jobs.get(key_of(job))
        if known is not None and known["metadata"]["uid"] == job["metadata"]["uid"]:
            del self._jobs[key_of(job)]

    def version(self, key: JobKey) -> int:
        """The latest known version of a job; 0: there is no such job."""
        job = self._jobs.get(key)
        return 0 if job is None else version_of(job)

    def phases(self) -> Counter[str]:
        """Number of the operator's jobs by phase."""
        ours = filter(is_ours, self._jobs.values())
        return Counter((job.get("status") or {}).get("phase") or "New" for job in ours)
