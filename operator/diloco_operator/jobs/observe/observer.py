"""Collects what is known of a job: from caches at no cost, and where it is needed from its syncer and from lists.

Answers are kept for a moment, so that a burst of changes does not cause a hundred requests.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from diloco_operator import names
from diloco_operator.api_server.cache import version_of
from diloco_operator.api_server.errors import ApiError, NamespaceGoingError
from diloco_operator.api_server.kinds import SERVICE, Object
from diloco_operator.decide.objects.workloads import CLAIM, syncer_deployment, syncer_ready
from diloco_operator.decide.observed import ChildKey, Observed, PodList, SyncerAway, SyncerStatusView
from diloco_operator.jobs.jobs import JobKey, key_of
from diloco_operator.jobs.observe.kueue import Kueue
from diloco_operator.jobs.observe.memory import Memory
from diloco_operator.jobs.observe.places import JobsCluster, Places
from diloco_operator.jobs.observe.pods import look_closer
from diloco_operator.jobs.observe.syncer import SyncerClient, planned_learners
from diloco_operator.labels import is_retained
from diloco_operator.shares import Room

_log = logging.getLogger(__name__)
LOOK_SECONDS: Final = 15.0
"""A list of the pods is used for this long, unless one of the job's objects changes before."""
SYNCER_SECONDS: Final = 2.0
"""An answer of the syncer is used for this long."""
AWAY_AFTER_QUESTIONS: Final = 3
"""A syncer that has answered before counts as away after this many unanswered requests in a row: a single one may be
lost, or arrive in the middle of a merge on a busy node."""
TELL_EVERY_SECONDS: Final = 60.0
"""Least time between two rounds of events about learners that come and go, so that a link that is cut again and again
does not fill the namespace with events."""
MOST_LEARNERS: Final = 50_000
"""Learners of all jobs whose latest state is kept: each takes two KiB at most."""
NOT_READY: Final = SyncerAway("its pod is not ready")
NO_ADDRESS: Final = SyncerAway("its Service has no address")


@dataclass(frozen=True, slots=True)
class Observer:
    """The source of all observations of jobs."""

    places: Places
    asker: SyncerClient
    clock: Callable[[], float]
    """Seconds, monotonic."""
    needs_pods: Callable[[Object, Observed], bool]
    """Whether a decision about the job needs its pods besides what was observed."""
    kueue: Kueue
    room: Room = field(default_factory=lambda: Room(MOST_LEARNERS))
    """For the states of learners, by namespace and job."""

    def forget(self, key: JobKey) -> None:
        """Free the room of a job that is gone."""
        self.room.hold(key.namespace, key, 0)

    async def observe(self, job: Object, memory: Memory) -> Observed:
        """Everything that a decision about a job needs.

        Raises:
            NamespaceGoingError: the job is deleted with its namespace.
        """
        found = list(self.places.children(job))
        children = {child: item for child, item, is_ours in found if is_ours}
        claim = ChildKey(CLAIM, names.syncer(key_of(job).name))
        retained = (
            item for child, item, is_ours in found if child == claim and not is_ours and is_retained(item["metadata"])
        )
        observed = Observed(
            children=children,
            foreign=frozenset(child for child, _, is_ours in found if not is_ours) | memory.foreign,
            retained=next(retained, None),
            syncer=await self._ask_syncer(job, children, memory),
            applied=dict(memory.applied),
            refused=memory.still_failing | memory.refused,
            reverted=memory.still_reverted,
            pods_forbidden=frozenset(memory.pods_forbidden),
            clusters=self.places.seen(job),
            kueue=await self.kueue.look(job, children),
        )
        if not isinstance(observed.syncer, SyncerStatusView):
            memory.sessions_told = None  # the job has no room for the states of learners
        elif self.clock() - memory.sessions_told_at >= TELL_EVERY_SECONDS:
            observed = replace(observed, sessions_told=memory.sessions_told)
        memory.look_failure = None
        if not self.needs_pods(job, observed):
            return observed
        looked = await self._list_pods(job, children, memory)
        return replace(observed, looked=looked, look_failed=looked is None)

    async def _ask_syncer(
        self, job: Object, children: dict[ChildKey, Object], memory: Memory
    ) -> SyncerStatusView | SyncerAway | None:
        """The status of the job's syncer; no request is sent if its pod is not ready. None: it has no Deployment."""
        key = key_of(job)
        deployment = syncer_deployment(key.name, children)
        if not syncer_ready(deployment):
            memory.syncer, memory.unanswered = None, 0
            self.forget(key)
            return None if deployment is None else NOT_READY
        if memory.syncer is None or self.clock() - memory.syncer_at >= SYNCER_SECONDS:
            service = children.get(ChildKey(SERVICE.name, names.syncer(key.name))) or {}
            address = service.get("spec", {}).get("clusterIP", "None")
            answer: SyncerStatusView | SyncerAway = NO_ADDRESS
            if address != "None":
                answer = self._with_room(key, await self.asker.ask(key, address, planned_learners(job)))
            memory.syncer_at = self.clock()
            memory.unanswered = memory.unanswered + 1 if isinstance(answer, SyncerAway) else 0
            lately = isinstance(memory.syncer, SyncerStatusView)
            if not (lately and 0 < memory.unanswered < AWAY_AFTER_QUESTIONS):
                memory.syncer = answer
                memory.heard_at = self.clock()
                if isinstance(answer, SyncerAway):
                    self.forget(key)
        return memory.syncer

    def _with_room(self, key: JobKey, answer: SyncerStatusView | SyncerAway) -> SyncerStatusView | SyncerAway:
        if isinstance(answer, SyncerAway) or self.room.hold(key.namespace, key, len(answer.learners)):
            return answer
        return SyncerAway(f"namespace {key.namespace} has too many learners for the operator to keep their states")

    async def _list_pods(self, job: Object, children: dict[ChildKey, Object], memory: Memory) -> PodList | None:
        """The job's pods and warnings, in every cluster that answers. None: those at home cannot be listed now."""
        versions = {key: version_of(child) for key, child in children.items()}
        is_old = self.clock() - memory.looked_at >= LOOK_SECONDS
        if memory.looked is not None and not is_old and memory.looked_at_versions == versions:
            return memory.looked
        try:
            found = await asyncio.gather(*(self._look(place, job, children) for place in self.places.answering(job)))
        except NamespaceGoingError:
            raise
        except ApiError as error:
            # Everything else goes on without them.
            _log.warning("%s: cannot look at its pods: %s", key_of(job), error)
            memory.looked, memory.look_failure = None, error
            return None
        memory.looked = PodList(
            tuple(pod for look in found for pod in look.pods),
            {key: events for look in found for key, events in look.events.items()},
            {key: modes for look in found for key, modes in look.claims.items()},
            {cluster: policies for look in found for cluster, policies in look.egress.items()},
        )
        memory.looked_at, memory.looked_at_versions = self.clock(), versions
        return memory.looked

    async def _look(self, place: JobsCluster, job: Object, children: dict[ChildKey, Object]) -> PodList:
        try:
            return await look_closer(place, key_of(job), job["metadata"]["uid"], children)
        except ApiError as error:
            if not place.cluster:
                raise
            # The region's state says why; the rest of the job is looked at all the same.
            _log.warning("%s: cannot look at its pods in cluster %s: %s", key_of(job), place.cluster, error)
            place.failed(error)
            return PodList()
