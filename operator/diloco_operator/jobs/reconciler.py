"""One reconcile of one job: observe, decide, act.

Everything can safely run twice. The job itself is read again before children are written: a watch lags, and a deleted
job must not get new children.
"""

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from diloco_operator.api_server.api import Api
from diloco_operator.api_server.errors import NamespaceGoingError
from diloco_operator.api_server.kinds import Object
from diloco_operator.decide.causes.cause import Cause
from diloco_operator.decide.causes.ends import Ends
from diloco_operator.decide.clusters import FINALIZER
from diloco_operator.decide.learners.lost_pods import deletion_events
from diloco_operator.decide.learners.readmission import READMIT
from diloco_operator.decide.observed import ChildKey, Observed, Sessions, SyncerStatusView
from diloco_operator.decide.plan import Plan, PodDeletion
from diloco_operator.decide.standstill import standstill
from diloco_operator.jobs.child_writes import ChildWrites
from diloco_operator.jobs.job_metrics import JobSeen
from diloco_operator.jobs.job_writes import JobGoneError, JobWrites, finalizers, is_going
from diloco_operator.jobs.jobs import JobKey, Jobs, is_ours, key_of
from diloco_operator.jobs.observe.memory import REFUSED_SECONDS, Memory
from diloco_operator.jobs.observe.observer import Observer

_log = logging.getLogger(__name__)

Decide = Callable[[Object, Observed, datetime], Plan]


@dataclass(frozen=True, slots=True)
class Controller:
    """Reconciles jobs."""

    api: Api
    jobs: Jobs
    observer: Observer
    decide: Decide
    now: Callable[[], datetime]
    identity: str
    """This process's identity, for events."""
    left_behind: Callable[[str, Mapping[str, int]], None] = lambda _namespace, _objects: None
    """Called with the namespace of a deleted job that left objects in other clusters: how many, by cluster."""
    pods_deleted: Callable[[Collection[PodDeletion]], None] = lambda _deleted: None
    """Called with pods that were deleted."""
    _memories: dict[JobKey, Memory] = field(default_factory=dict)

    async def run(self, key: JobKey) -> float | None:
        """Reconcile a job. Returns the seconds until the next time; None: nothing is left to do about it.

        0: at once, because what was written, or refused, changes what there is to say.

        Raises:
            ApiError: something failed that may succeed later.
        """
        job = self.jobs.get(key)
        if job is None or not is_ours(job) or (is_going(job) and FINALIZER not in finalizers(job)):
            self._forget(key)
            return None
        self.observer.places.use(key, job)
        try:
            return await self._reconcile(key, job)
        except JobGoneError:
            # Of a job that has gone while nothing was watched, no watch reports it.
            if self.jobs.get(key) is None:
                self._forget(key)
            return None
        except NamespaceGoingError as error:
            _log.info("%s: not reconciled: %s", key, error.message)
            return None  # the job is deleted with its namespace, and the watch will report it

    def seen(self, key: JobKey) -> JobSeen | None:
        """A job and what is known of it; None: there is none, it is not ours, or nothing was written of it yet."""
        job, memory = self.jobs.get(key), self._memories.get(key)
        if job is None or not is_ours(job) or "status" not in job:
            return None
        uid = job["metadata"]["uid"]
        if memory is None or memory.uid != uid:
            memory = Memory(uid, self.observer.clock)
        view = memory.syncer if isinstance(memory.syncer, SyncerStatusView) else None
        heard_at = self.now() - timedelta(seconds=self.observer.clock() - memory.heard_at)
        return JobSeen(job, self.observer.places.seen(job), view, heard_at, memory.ends.counts)

    async def stand_still(self, key: JobKey, cause: Cause, again_in_seconds: float) -> float:
        """Have a job say why nothing is done about it. Returns ``again_in_seconds``.

        Raises:
            ApiError: the status cannot be written now.
        """
        job = self.jobs.get(key)
        if job is not None:
            own = JobWrites(self.api, self.jobs, self.now, self.identity, job)
            plan = standstill(job, cause, self.now(), again_in_seconds)
            with contextlib.suppress(JobGoneError):
                if plan.status is not None:
                    await own.write_status(plan.status)
                await own.record(plan.events)
        return again_in_seconds

    def _forget(self, key: JobKey) -> None:
        """Free what is kept for a job that is gone, its clusters among it."""
        self.observer.places.use(key, None)
        self._memories.pop(key, None)
        self.observer.forget(key)

    async def _reconcile(self, key: JobKey, job: Object) -> float | None:
        uid = job["metadata"]["uid"]
        memory = self._memories.get(key)
        if memory is None or memory.uid != uid:
            memory = self._memories[key] = Memory(uid, self.observer.clock, Ends(self.now()))
        own = JobWrites(self.api, self.jobs, self.now, self.identity, job)
        return await _Reconcile(self, memory, own, ChildWrites(self.observer.places, key, memory)).run()


@dataclass(slots=True)
class _Reconcile:
    """The state of one reconcile."""

    of: Controller
    memory: Memory
    own: JobWrites
    writes: ChildWrites

    async def run(self) -> float | None:
        """Observe, decide, act. Returns the seconds until the next time, as `Controller.run`."""
        await self._forget_refusals()
        await self.writes.forget_foreign()
        observed = await self.of.observer.observe(self.own.job, self.memory)
        if observed.looked is not None:
            self.memory.ends.look(observed.looked.pods)
        plan = self._paced(self.of.decide(self.own.job, observed, self.of.now()))
        # What is written next would be wrong already: decide again.
        return 0.0 if await self._act(plan) else await self._conclude(plan, observed)

    async def _act(self, plan: Plan) -> bool:
        """Carry out the plan, but for status and events. Returns whether its outcome changes what they have to say."""
        if _writes(plan) and await self.own.confirm():
            return True
        if plan.add_finalizer and await self.own.add_finalizer():
            return True
        # Scaling down does not depend on the other writes.
        told = await self.writes.scale(plan)
        told = await self.writes.find_foreign(plan) or await self.writes.apply(plan) or told
        await self.own.record(self.writes.events)
        if told:
            return True
        await self.writes.delete(plan)
        await self.writes.write_workload_statuses(plan)
        told = await self._delete_pods(plan)
        return await self.writes.release_pods(plan) or told

    async def _delete_pods(self, plan: Plan) -> bool:
        """Delete pods. Returns whether the status has something new to say, because that is refused."""
        forbidden = set(self.memory.pods_forbidden)
        deleted = await self.writes.delete_pods(plan)
        if deleted:
            self.of.pods_deleted(deleted)
            # A pod is deleted once, whatever becomes of the status.
            await self.own.record(deletion_events(deleted))
        return self.memory.pods_forbidden.keys() != forbidden

    async def _conclude(self, plan: Plan, observed: Observed) -> float | None:
        """Report, and do what is done last. Returns the seconds until the next time.

        Raises:
            ApiError: something failed before that may succeed later.
        """
        if plan.delete_job:
            await self.own.delete()
            return None
        if plan.status is not None:
            await self.own.write_status(plan.status)
        await self.own.record((*plan.events, *plan.learner_events))
        self._remember_sessions(observed, told=bool(plan.learner_events))
        if plan.readmit_left is not None:
            await self.own.annotate(READMIT, plan.readmit_left)
            await self.own.record(plan.readmit_events)
        if plan.remove_finalizer:
            await self.own.remove_finalizer()
            self.of.left_behind(key_of(self.own.job).namespace, plan.left_behind)
            return None
        failure = self.writes.failure or self.own.failure or self.memory.look_failure
        if failure is not None:
            raise failure
        return plan.again_in_seconds

    def _remember_sessions(self, observed: Observed, *, told: bool) -> None:
        """Remember which sessions events were recorded about, or that there was nothing to record."""
        memory, view = self.memory, observed.syncer
        if isinstance(view, SyncerStatusView) and (memory.sessions_told is None or observed.sessions_told is not None):
            memory.sessions_told = Sessions.of(view)
            memory.sessions_told_at = self.of.observer.clock() if told else memory.sessions_told_at

    def _paced(self, plan: Plan) -> Plan:
        """The plan without the objects that the API server has refused or whose repair has to wait."""
        wanted, memory = [(one, ChildKey.of_placed(one)) for one in plan.apply], self.memory
        apply = tuple(one for one, key in wanted if key not in memory.refused and not memory.is_too_soon(key, one.body))
        return plan if len(apply) == len(plan.apply) else replace(plan, apply=apply)

    async def _forget_refusals(self) -> None:
        """Retry what was refused after a while, or once the manifest has changed."""
        generation, now = self.own.job["metadata"].get("generation"), self.of.observer.clock()
        if self.memory.refused_generation != generation or now - self.memory.refused_at >= REFUSED_SECONDS:
            self.memory.refused.clear()
            self.memory.refused_generation, self.memory.refused_at = generation, now
            await self.writes.retry_deletions()


def _writes(plan: Plan) -> bool:
    """Whether it changes anything besides the status."""
    job = plan.add_finalizer or plan.remove_finalizer or plan.readmit_left is not None
    kueue = plan.release_pods or plan.workload_statuses
    return bool(plan.scale or plan.apply or plan.delete or plan.delete_pods or plan.delete_job or kueue or job)
