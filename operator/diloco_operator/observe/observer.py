"""Collects what is known of a job: from caches at no cost, and on demand from its syncer and from lists.

Answers are kept for a moment, so that a burst of changes does not cause a hundred requests.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from diloco_operator import labels, names
from diloco_operator.cluster.cache import version_of
from diloco_operator.cluster.errors import ApiError
from diloco_operator.cluster.kinds import Object
from diloco_operator.decide.observed import ChildKey, Looked, Observed, SyncerAway, SyncerStatusView
from diloco_operator.decide.workloads import CLAIM, syncer_deployment, syncer_ready
from diloco_operator.observe.jobs import key_of
from diloco_operator.observe.places import Place, Places
from diloco_operator.observe.pods import look_closer
from diloco_operator.observe.syncer import SyncerClient
from diloco_operator.repairs import Repairs

_log = logging.getLogger(__name__)
LOOK_SECONDS: Final = 15.0
"""A list of the pods is used for this long, unless one of the job's objects changes before."""
SYNCER_SECONDS: Final = 2.0
"""An answer of the syncer is used for this long."""
AWAY_AFTER_QUESTIONS: Final = 3
"""A syncer that has answered before counts as away after this many unanswered requests in a row: a single one may be
lost, or arrive in the middle of a merge on a busy node."""
REFUSED_SECONDS: Final = 30.0
"""What the API server has refused is retried after this long."""
FAILURES_TOLD: Final = 3
"""A write is reported after this many failures in a row that may have been temporary."""
NOT_READY: Final = SyncerAway("its pod is not ready")


@dataclass(slots=True)
class Memory:
    """What requests have shown about a job. A new process can do without it."""

    uid: str
    repairs: Repairs
    syncer: SyncerStatusView | SyncerAway | None = None
    """The latest answer, or that the syncer no longer answers."""
    syncer_at: float = 0.0
    unanswered: int = 0
    """Latest requests to the syncer that it did not answer, in a row."""
    looked: Looked | None = None
    looked_at: float = 0.0
    looked_at_versions: dict[ChildKey, int] = field(default_factory=dict)
    refused: dict[ChildKey, str] = field(default_factory=dict)
    refused_at: float = 0.0
    """Since when refusals are collected."""
    refused_generation: int | None = None
    """The generation of the manifest whose objects were refused."""
    failing: dict[ChildKey, tuple[int, str]] = field(default_factory=dict)
    """Writes that failed without being refused: how often in a row, and why."""
    foreign: frozenset[ChildKey] = frozenset()
    pods_forbidden: frozenset[str] = frozenset()
    """Clusters that have refused to delete a pod, since `refused_at`."""

    def gone(self, pod_uid: str) -> None:
        """Record that a pod of the last list is gone."""
        if self.looked is not None:
            pods = tuple(one for one in self.looked.pods if one.pod["metadata"]["uid"] != pod_uid)
            self.looked = replace(self.looked, pods=pods)

    def failed(self, child: ChildKey, why: str) -> None:
        """Record a failed write that may succeed next time."""
        times, _ = self.failing.get(child, (0, ""))
        self.failing[child] = (times + 1, why)

    @property
    def still_failing(self) -> dict[ChildKey, str]:
        """Writes that have failed so often that they are reported."""
        return {child: why for child, (times, why) in self.failing.items() if times >= FAILURES_TOLD}


@dataclass(frozen=True, slots=True)
class Observer:
    """The source of all observations of jobs."""

    places: Places
    asker: SyncerClient
    clock: Callable[[], float]
    """Seconds, monotonic."""

    def children(self, job: Object) -> tuple[dict[ChildKey, Object], frozenset[ChildKey]]:
        """The objects with the job's label: its own ones, and the keys of those that belong to others."""
        owned, others = {}, set()
        for child, item, is_ours in self.places.children(job):
            if is_ours:
                owned[child] = item
            else:
                others.add(child)
        return owned, frozenset(others)

    async def observe(self, job: Object, memory: Memory) -> Observed:
        """Everything known of a job, with the syncer's status if its pod is ready."""
        children, others = self.children(job)
        asked = syncer_ready(syncer_deployment(key_of(job).name, children))
        return Observed(
            children=children,
            foreign=others | memory.foreign,
            retained=self._retained(job),
            looked=self._fresh_look(children, memory),
            syncer=await self.ask_syncer(job, children, memory) if asked else None,
            refused=memory.still_failing | memory.refused,
            pods_forbidden=memory.pods_forbidden,
            clusters=self.places.seen(job),
        )

    def _retained(self, job: Object) -> Object | None:
        """The claim that an earlier job of this name has retained, if it is in the way."""
        claim = ChildKey(CLAIM, names.syncer(key_of(job).name))
        for child, item, is_ours in self.places.children(job):
            if child == claim and not is_ours and labels.is_retained(item["metadata"]):
                return item
        return None

    async def ask_syncer(
        self, job: Object, children: dict[ChildKey, Object], memory: Memory
    ) -> SyncerStatusView | SyncerAway:
        """The status of the job's syncer; no request is sent if its pod is not ready."""
        key = key_of(job)
        if not syncer_ready(syncer_deployment(key.name, children)):
            memory.syncer, memory.unanswered = None, 0
            return NOT_READY
        if memory.syncer is None or self.clock() - memory.syncer_at >= SYNCER_SECONDS:
            answer = await self.asker.ask(key)
            memory.syncer_at = self.clock()
            memory.unanswered = memory.unanswered + 1 if isinstance(answer, SyncerAway) else 0
            lately = isinstance(memory.syncer, SyncerStatusView)
            if not (lately and 0 < memory.unanswered < AWAY_AFTER_QUESTIONS):
                memory.syncer = answer
        assert memory.syncer is not None
        return memory.syncer

    async def look_closer(self, job: Object, children: dict[ChildKey, Object], memory: Memory) -> Looked:
        """The job's pods and warnings, in every cluster that answers.

        Raises:
            ApiError: those at home could not be listed.
        """
        looks = [self._look(place, job, children) for place in self.places.answering(job)]
        found = await asyncio.gather(*looks)
        memory.looked = Looked(
            tuple(pod for look in found for pod in look.pods),
            {key: events for look in found for key, events in look.events.items()},
            {key: modes for look in found for key, modes in look.claims.items()},
        )
        memory.looked_at = self.clock()
        memory.looked_at_versions = _versions(children)
        return memory.looked

    async def _look(self, place: Place, job: Object, children: dict[ChildKey, Object]) -> Looked:
        try:
            return await look_closer(place, key_of(job), job["metadata"]["uid"], children)
        except ApiError as error:
            if not place.cluster:
                raise
            # The region's state says why; the rest of the job is looked at all the same.
            _log.warning("%s: cannot look at its pods in cluster %s: %s", key_of(job), place.cluster, error)
            place.failed(error)
            return Looked()

    def _fresh_look(self, children: dict[ChildKey, Object], memory: Memory) -> Looked | None:
        old = self.clock() - memory.looked_at >= LOOK_SECONDS
        if old or memory.looked_at_versions != _versions(children):
            memory.looked = None
        return memory.looked


def _versions(children: dict[ChildKey, Object]) -> dict[ChildKey, int]:
    return {key: version_of(child) for key, child in children.items()}
