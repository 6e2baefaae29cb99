"""One reconcile of one job: observe, decide, act, repeated as long as the plan asks for it at once.

Everything can safely run twice. The job itself is read again before children are written: a watch lags, and a deleted
job must not get new children.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from diloco_operator.apply_children import ChildWrites
from diloco_operator.cluster.api import Api, Object
from diloco_operator.cluster.cache import Cache
from diloco_operator.cluster.errors import ApiError, ConflictError, NamespaceGoingError, NotFoundError
from diloco_operator.cluster.kinds import EVENT, JOB
from diloco_operator.cluster.watches import Watch
from diloco_operator.decide.observed import ChildKey, Observed
from diloco_operator.decide.plan import JobEvent, Plan
from diloco_operator.observe.jobs import JobKey, Jobs, key_of
from diloco_operator.observe.observer import REFUSED_SECONDS, Memory, Observer
from diloco_operator.repairs import Repairs

_log = logging.getLogger(__name__)

Decide = Callable[[Object, Observed, datetime], Plan]
_MOST_PASSES: Final = 8
_EVENT_NOTE_LENGTH: Final = 1024  # events.k8s.io/v1
REPORTER: Final = "diloco.dev/operator"


class UnsettledError(Exception):
    """Plans never became final: a bug in the operator."""


@dataclass(frozen=True, slots=True)
class Controller:
    """Reconciles jobs."""

    api: Api
    cache: Cache
    watches: tuple[Watch, ...]
    jobs: Jobs
    observer: Observer
    decide: Decide
    now: Callable[[], datetime]
    identity: str
    """This process's identity, for events."""
    _memories: dict[JobKey, Memory] = field(default_factory=dict)

    async def run(self, key: JobKey) -> float | None:
        """Reconcile a job. Returns the seconds until the next time; None: it is deleted or being deleted.

        Raises:
            ApiError: something failed that may succeed later.
        """
        job = self.jobs.get(key)
        if job is None or "deletionTimestamp" in job["metadata"]:
            self._memories.pop(key, None)
            return None
        try:
            return await self._reconcile(key, job)
        except NamespaceGoingError as error:
            _log.info("%s: not reconciled: %s", key, error.message)
            return None  # the job is deleted with its namespace, and the watch will report it

    async def _reconcile(self, key: JobKey, job: Object) -> float | None:
        uid = job["metadata"]["uid"]
        memory = self._memories.get(key)
        if memory is None or memory.uid != uid:
            memory = self._memories[key] = Memory(uid, Repairs(self.observer.clock))
        writes = ChildWrites(self.api, self.cache, self.watches, key, memory)
        return await _Reconcile(self, memory, job, writes).settle()


@dataclass(slots=True)
class _Reconcile:
    """The state of one reconcile."""

    of: Controller
    memory: Memory
    job: Object
    writes: ChildWrites
    confirmed: bool = False
    look_failure: ApiError | None = None
    """Why the pods could not be listed; not retried in this reconcile."""

    async def settle(self) -> float | None:
        self._forget_refusals()
        await self.writes.forget_foreign()
        observed = await self._observe()
        for _ in range(_MOST_PASSES):
            plan = self._paced(self.of.decide(self.job, observed, self.of.now()))
            more = await self._learn(plan, observed)
            if more is not None:
                observed = more
                continue
            if (plan.scale or plan.apply or plan.delete or plan.delete_job) and not self.confirmed:
                before = self.job
                if not await self._confirm():
                    return None
                if self.job["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]:
                    observed = await self._observe()
                    continue
            if await self._write_children(plan):
                observed = await self._observe()
                continue
            if plan.delete_job:
                return await self._delete_job()
            if plan.status is not None and not await self._write_status(plan.status):
                return None
            await self._record(plan.events)
            failure = self.writes.failure or self.look_failure
            if failure is not None:
                raise failure
            return plan.again_in_seconds
        raise UnsettledError(f"{key_of(self.job)}: still not settled after {_MOST_PASSES} plans")

    def _paced(self, plan: Plan) -> Plan:
        """The plan without the objects that the API server has refused or whose repair has to wait."""
        refused, repairs = self.memory.refused, self.memory.repairs
        wanted = [(ChildKey.of(body), body) for body in plan.apply]
        apply = tuple(body for key, body in wanted if not (key in refused or repairs.held_back(key, body)))
        return plan if len(apply) == len(plan.apply) else replace(plan, apply=apply)

    async def _learn(self, plan: Plan, observed: Observed) -> Observed | None:
        """The observations with what the plan needs in addition; None: it needs nothing."""
        children = dict(observed.children)
        if plan.look_closer and observed.may_look:
            return await self._look_closer(observed, children)
        if plan.ask_syncer and observed.syncer is None:
            return replace(observed, syncer=await self.of.observer.ask_syncer(self.job, children, self.memory))
        return None

    async def _look_closer(self, observed: Observed, children: dict[ChildKey, Object]) -> Observed:
        """Add the job's pods and warnings. If they cannot be listed, everything else goes on without them."""
        try:
            return replace(observed, looked=await self.of.observer.look_closer(self.job, children, self.memory))
        except NamespaceGoingError:
            raise
        except ApiError as error:
            _log.warning("%s: cannot look at its pods: %s", key_of(self.job), error)
            self.look_failure = error
            return replace(observed, look_failed=True)

    async def _observe(self) -> Observed:
        observed = await self.of.observer.observe(self.job, self.memory)
        return replace(observed, look_failed=observed.looked is None and self.look_failure is not None)

    async def _write_children(self, plan: Plan) -> bool:
        """Carry out the plan for the children. Returns whether the outcome changes what the status has to report."""
        # Scaling down does not depend on the other writes.
        told = await self.writes.scale(plan)
        if await self.writes.find_foreign(plan) or await self.writes.apply(plan) or told:
            return True
        await self.writes.delete(plan)
        return False

    async def _confirm(self) -> bool:
        """Read the job itself; False: it is deleted, being deleted, or replaced by another one."""
        key = key_of(self.job)
        try:
            fresh = await self.of.api.get(JOB, *key)
        except NotFoundError:
            self.of.jobs.forget(self.job)
            return False
        if fresh["metadata"]["uid"] != self.job["metadata"]["uid"]:
            return False  # the watch will report the other one
        self.of.jobs.refresh(fresh)
        self.job, self.confirmed = fresh, True
        return "deletionTimestamp" not in fresh["metadata"]

    def _forget_refusals(self) -> None:
        """Retry what was refused after a while, or once the manifest has changed."""
        generation, now = self.job["metadata"].get("generation"), self.of.observer.clock()
        if self.memory.refused_generation != generation or now - self.memory.refused_at >= REFUSED_SECONDS:
            self.memory.refused.clear()
            self.memory.refused_generation, self.memory.refused_at = generation, now

    async def _delete_job(self) -> float | None:
        metadata = self.job["metadata"]
        preconditions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        try:
            await self.of.api.delete(JOB, metadata["namespace"], metadata["name"], preconditions)
        except NotFoundError:
            self.of.jobs.forget(self.job)
        else:
            _log.info("%s: deleted after its ttlSecondsAfterFinished", key_of(self.job))
        return None

    async def _write_status(self, status: Object) -> bool:
        """Write the status; False: the job is gone.

        Raises:
            ConflictError: the job has changed since the status was computed.
        """
        metadata = self.job["metadata"]
        body = {
            "apiVersion": JOB.api_version,
            "kind": JOB.name,
            "metadata": {key: metadata[key] for key in ("namespace", "name", "resourceVersion")},
            "status": status,
        }
        try:
            self.job = await self.of.api.apply_status(JOB, body)
        except NotFoundError:
            self.of.jobs.forget(self.job)
            return False
        except ConflictError:
            # It has changed since it was read, so the status may be outdated. The next reconcile uses the new version.
            await self._confirm()
            raise
        self.of.jobs.refresh(self.job)
        return True

    async def _record(self, events: tuple[JobEvent, ...]) -> None:
        for event in events:
            try:
                await self.of.api.create(EVENT, self._event(event))
            except ApiError as error:
                # The status says the same, so a failed event is not retried.
                _log.warning("%s: cannot record event %s: %s", key_of(self.job), event.reason, error)

    def _event(self, event: JobEvent) -> Object:
        metadata = self.job["metadata"]
        return {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.name,
            "metadata": {"namespace": metadata["namespace"], "generateName": f"{metadata['name']}-"},
            "eventTime": self.of.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": REPORTER,
            "reportingInstance": self.of.identity[:128],
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
