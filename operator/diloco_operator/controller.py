"""One reconcile of one job: observe, decide, act, repeated as long as the plan asks for it at once.

Everything can safely run twice. The job itself is read again before children are written: a watch lags, and a deleted
job must not get new children.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from diloco_operator.apply_children import ChildWrites
from diloco_operator.cluster.api import Api
from diloco_operator.cluster.errors import ApiError, NamespaceGoingError
from diloco_operator.cluster.kinds import Object
from diloco_operator.decide.clusters import FINALIZER
from diloco_operator.decide.lost_pods import deletion_events
from diloco_operator.decide.observed import ChildKey, Observed
from diloco_operator.decide.plan import Plan, PodDeletion
from diloco_operator.decide.readmission import READMIT
from diloco_operator.delete_lost_pods import LostPodWrites
from diloco_operator.job_writes import JobGoneError, JobWrites, finalizers, is_going
from diloco_operator.observe.jobs import JobKey, Jobs, key_of
from diloco_operator.observe.observer import REFUSED_SECONDS, Memory, Observer
from diloco_operator.repairs import Repairs

_log = logging.getLogger(__name__)

Decide = Callable[[Object, Observed, datetime], Plan]
_MOST_PASSES: Final = 8


class UnsettledError(Exception):
    """Plans never became final: a bug in the operator."""


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

        Raises:
            ApiError: something failed that may succeed later.
        """
        job = self.jobs.get(key)
        self.observer.places.use(key, job)
        if job is None or (is_going(job) and FINALIZER not in finalizers(job)):
            self._memories.pop(key, None)
            return None
        try:
            return await self._reconcile(key, job)
        except JobGoneError:
            return None  # whatever is to be done, the watch will report it
        except NamespaceGoingError as error:
            _log.info("%s: not reconciled: %s", key, error.message)
            return None  # the job is deleted with its namespace, and the watch will report it

    async def _reconcile(self, key: JobKey, job: Object) -> float | None:
        uid = job["metadata"]["uid"]
        memory = self._memories.get(key)
        if memory is None or memory.uid != uid:
            memory = self._memories[key] = Memory(uid, Repairs(self.observer.clock))
        own = JobWrites(self.api, self.jobs, self.now, self.identity, job)
        places = self.observer.places
        pods = LostPodWrites(places, key, memory)
        return await _Reconcile(self, memory, own, ChildWrites(places, key, memory), pods).settle()


@dataclass(slots=True)
class _Reconcile:
    """The state of one reconcile."""

    of: Controller
    memory: Memory
    own: JobWrites
    writes: ChildWrites
    pods: LostPodWrites
    look_failure: ApiError | None = None
    """Why the pods could not be listed; not retried in this reconcile."""

    async def settle(self) -> float | None:
        self._forget_refusals()
        await self.writes.forget_foreign()
        observed = await self._observe()
        for _ in range(_MOST_PASSES):
            plan = self._paced(self.of.decide(self.own.job, observed, self.of.now()))
            more = await self._learn(plan, observed)
            if more is not None:
                observed = more
            elif await self._act(plan):
                observed = await self._observe()
            else:
                return await self._conclude(plan)
        raise UnsettledError(f"{key_of(self.own.job)}: still not settled after {_MOST_PASSES} plans")

    async def _act(self, plan: Plan) -> bool:
        """Carry out the plan, but for status and events. Returns whether its outcome changes what they have to say."""
        if _writes(plan) and await self.own.confirm():
            return True
        if plan.add_finalizer and await self.own.add_finalizer():
            return True
        # Scaling down does not depend on the other writes.
        told = await self.writes.scale(plan)
        if await self.writes.find_foreign(plan) or await self.writes.apply(plan) or told:
            return True
        await self.writes.delete(plan)
        return await self._delete_pods(plan)

    async def _delete_pods(self, plan: Plan) -> bool:
        """Delete lost pods. Returns whether the status has something new to say, because that is refused."""
        done = await self.pods.delete(plan)
        if done.deleted:
            self.of.pods_deleted(done.deleted)
            # A pod is deleted once, whatever becomes of the status.
            await self.own.record(deletion_events(done.deleted))
        return done.refused

    async def _conclude(self, plan: Plan) -> float | None:
        """Report, and do what is done last. Returns the seconds until the next time.

        Raises:
            ApiError: something failed before that may succeed later.
        """
        if plan.delete_job:
            await self.own.delete()
            return None
        if plan.status is not None:
            await self.own.write_status(plan.status)
        await self.own.record(plan.events)
        if plan.readmit_left is not None:
            await self.own.annotate(READMIT, plan.readmit_left)
            await self.own.record(plan.readmit_events)
        if plan.remove_finalizer:
            await self.own.remove_finalizer()
            self.of.left_behind(key_of(self.own.job).namespace, plan.left_behind)
            return None
        failure = self.writes.failure or self.pods.failure or self.own.failure or self.look_failure
        if failure is not None:
            raise failure
        return plan.again_in_seconds

    def _paced(self, plan: Plan) -> Plan:
        """The plan without the objects that the API server has refused or whose repair has to wait."""
        refused, repairs = self.memory.refused, self.memory.repairs
        wanted = [(one, ChildKey.of_placed(one)) for one in plan.apply]
        apply = tuple(one for one, key in wanted if not (key in refused or repairs.held_back(key, one.body)))
        return plan if len(apply) == len(plan.apply) else replace(plan, apply=apply)

    async def _learn(self, plan: Plan, observed: Observed) -> Observed | None:
        """The observations with what the plan needs in addition; None: it needs nothing."""
        children = dict(observed.children)
        if plan.look_closer and observed.may_look:
            return await self._look_closer(observed, children)
        if plan.ask_syncer and observed.syncer is None:
            return replace(observed, syncer=await self.of.observer.ask_syncer(self.own.job, children, self.memory))
        return None

    async def _look_closer(self, observed: Observed, children: dict[ChildKey, Object]) -> Observed:
        """Add the job's pods and warnings. If they cannot be listed, everything else goes on without them."""
        try:
            return replace(observed, looked=await self.of.observer.look_closer(self.own.job, children, self.memory))
        except NamespaceGoingError:
            raise
        except ApiError as error:
            _log.warning("%s: cannot look at its pods: %s", key_of(self.own.job), error)
            self.look_failure = error
            return replace(observed, look_failed=True)

    async def _observe(self) -> Observed:
        observed = await self.of.observer.observe(self.own.job, self.memory)
        return replace(observed, look_failed=observed.looked is None and self.look_failure is not None)

    def _forget_refusals(self) -> None:
        """Retry what was refused after a while, or once the manifest has changed."""
        generation, now = self.own.job["metadata"].get("generation"), self.of.observer.clock()
        if self.memory.refused_generation != generation or now - self.memory.refused_at >= REFUSED_SECONDS:
            self.memory.refused.clear()
            self.memory.pods_forbidden = frozenset()
            self.memory.refused_generation, self.memory.refused_at = generation, now


def _writes(plan: Plan) -> bool:
    """Whether it changes anything besides the status."""
    job = plan.add_finalizer or plan.remove_finalizer or plan.readmit_left is not None
    return bool(plan.scale or plan.apply or plan.delete or plan.delete_pods or plan.delete_job or job)
