"""The writes of one reconcile to the job itself: finalizer, status, annotation, events, deletion.

Each is made to the version of the job that was read last. A job that is gone ends the reconcile.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from diloco.spec.job import MANAGER
from diloco_operator.api_server.api import Api
from diloco_operator.api_server.errors import REFUSED, ApiError, ConflictError, NotFoundError
from diloco_operator.api_server.kinds import EVENT, JOB, Object
from diloco_operator.decide.clusters import FINALIZER
from diloco_operator.decide.plan import JobEvent
from diloco_operator.jobs.jobs import Jobs, key_of

_log = logging.getLogger(__name__)
_EVENT_NOTE_LENGTH: Final = 1024  # events.k8s.io/v1


class JobGoneError(Exception):
    """The job is deleted, or another one has its name, or it is being deleted since it was read."""


@dataclass(slots=True)
class JobWrites:
    """One job, and the writes to it."""

    api: Api
    jobs: Jobs
    now: Callable[[], datetime]
    identity: str
    """This process's identity, for events."""
    job: Object
    """As last read or written."""
    failure: ApiError | None = field(default=None, init=False)
    """Why the job was not given its finalizer."""

    async def confirm(self) -> bool:
        """Read the job. Returns whether it has changed.

        Raises:
            JobGoneError: nothing may be written for it any more.
        """
        before = self.job
        await self._read()
        return bool(self.job["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"])

    async def add_finalizer(self) -> bool:
        """Give the job the finalizer. Returns whether it has it; if that is refused, all else goes on without it.

        Raises:
            JobGoneError: the job is gone.
            ConflictError: the job has changed since it was read.
        """
        try:
            await self._finalize([*finalizers(self.job), FINALIZER])
        except ConflictError:
            raise
        except REFUSED as error:
            _log.warning("%s: nothing is created in other clusters: %s", key_of(self.job), error)
            self.failure = error
            return False
        return True

    async def remove_finalizer(self) -> None:
        """Take the finalizer from the job: the last thing done about it.

        Raises:
            JobGoneError: the job is gone already.
            ConflictError: the job has changed since it was read.
        """
        await self._finalize([one for one in finalizers(self.job) if one != FINALIZER])
        _log.info("%s: nothing in other clusters keeps its deletion any longer", key_of(self.job))

    async def annotate(self, name: str, value: str) -> None:
        """Set an annotation of the job; an empty ``value`` removes it.

        Raises:
            JobGoneError: the job is gone.
            ConflictError: the job has changed since it was read.
        """
        await self._overwrite({"annotations": {name: value or None}})

    async def delete(self) -> None:
        """Delete the job, which has outlived its time to live."""
        metadata = self.job["metadata"]
        preconditions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        try:
            await self.api.delete(JOB, metadata["namespace"], metadata["name"], preconditions)
        except NotFoundError:
            self.jobs.forget(self.job)
        else:
            _log.info("%s: deleted after its ttlSecondsAfterFinished", key_of(self.job))

    async def write_status(self, status: Object) -> None:
        """Write the status.

        Raises:
            JobGoneError: the job is gone.
            ConflictError: the job has changed since the status was computed.
        """
        body = {
            "apiVersion": JOB.api_version,
            "kind": JOB.name,
            "metadata": self._this_version(),
            "status": status,
        }
        try:
            self.job = await self.api.apply_status(JOB, body)
        except NotFoundError:
            raise self._gone() from None
        except ConflictError:
            await self._read()  # what is known of it is outdated
            raise
        self.jobs.refresh(self.job)

    async def record(self, events: tuple[JobEvent, ...]) -> None:
        """Record events. The status says the same, so one that fails is not retried."""
        for event in events:
            try:
                await self.api.create(EVENT, self._event(event))
            except ApiError as error:
                _log.warning("%s: cannot record event %s: %s: %s", key_of(self.job), event.reason, error, event.message)

    async def _finalize(self, wanted: list[str]) -> None:
        await self._overwrite({"finalizers": wanted})

    async def _overwrite(self, metadata: Object) -> None:
        # With the version, because a list is replaced as a whole; nor is another job of this name changed then.
        try:
            self.job = await self.api.overwrite(JOB, {"metadata": {**self._this_version(), **metadata}})
        except NotFoundError:
            raise self._gone() from None
        except ConflictError:
            await self._read()  # what is known of it is outdated
            raise
        self.jobs.refresh(self.job)

    def _this_version(self) -> Object:
        metadata = self.job["metadata"]
        return {key: metadata[key] for key in ("namespace", "name", "resourceVersion")}

    async def _read(self) -> None:
        try:
            fresh = await self.api.get(JOB, *key_of(self.job))
        except NotFoundError:
            raise self._gone() from None
        if fresh["metadata"]["uid"] != self.job["metadata"]["uid"]:
            raise JobGoneError  # the watch will report the other one
        self.jobs.refresh(fresh)
        was_going, self.job = is_going(self.job), fresh
        if is_going(fresh) and not was_going:
            raise JobGoneError  # the watch will report it, and then what it leaves is deleted

    def _gone(self) -> JobGoneError:
        self.jobs.forget(self.job)
        return JobGoneError()

    def _event(self, event: JobEvent) -> Object:
        metadata, now = self.job["metadata"], self.now()
        return {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.name,
            # kubectl shows them in the order of their names: the older times, by which it sorts, must be absent.
            "metadata": {"namespace": metadata["namespace"], "name": f"{metadata['name']}.{now:%Y%m%d%H%M%S%f}"},
            "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": MANAGER,
            "reportingInstance": self.identity[:128],
            "action": "Reconcile",
            "type": event.type,
            "reason": event.reason,
            "note": event.message[:_EVENT_NOTE_LENGTH],
            "regarding": {
                "apiVersion": JOB.api_version,
                "kind": JOB.name,
                **{key: metadata[key] for key in ("namespace", "name", "uid", "resourceVersion")},
            },
        }


def is_going(job: Object) -> bool:
    """Whether the job is being deleted."""
    return "deletionTimestamp" in job["metadata"]


def finalizers(job: Object) -> list[str]:
    """What keeps the job from being gone once it is deleted."""
    return list(job["metadata"].get("finalizers") or ())
