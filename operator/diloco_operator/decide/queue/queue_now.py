"""Which of a job's pods Kueue lets run, by its Workloads. Pure.

The first Workload has the syncer and the learners that it needs. Only while that one is admitted does each further
learner have one. Its quota is for so many learners of a pool: those with the lowest indices.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from diloco.spec import DiLoCoJob
from diloco.spec.placement import Pool
from diloco.spec.words import shortlist
from diloco_operator.decide.observed import ChildKey, KueueSeen, Object
from diloco_operator.decide.queue.workload import Placing, Workload
from diloco_operator.manifests import queue as manifests
from diloco_operator.names import PoolKey, SetNames

WORKLOAD = "Workload"
QUEUE_NAME = "kueue.x-k8s.io/queue-name"
"""Label of what Kueue's own controllers queue. If a LocalQueue is called ``default``, they give it to every set."""


@dataclass(frozen=True)
class QueueNow:
    """The queue of one job at one moment."""

    job: DiLoCoJob
    pools: Mapping[PoolKey, Pool]
    sets: SetNames
    seen: KueueSeen
    workloads: Mapping[str, Workload]
    """Those that there are, by name."""
    outdated: frozenset[str] = frozenset()
    """Names of those whose quota is for other pods than those that would start."""
    serves: bool = False
    """Whether the syncer's Deployment has a pod."""

    @property
    def first_name(self) -> str:
        """The name of the Workload with the syncer."""
        return manifests.first_workload(self.job.metadata.name)

    @property
    def first(self) -> Workload | None:
        """The Workload with the syncer."""
        return self.workloads.get(self.first_name)

    @property
    def runs(self) -> bool:
        """Whether the syncer may run, and so the job.

        Without a Workload what runs, runs on: it is made anew, and where Kueue was removed with all Workloads, it
        cannot be.
        """
        return not self.outdated and (self.serves if self.first is None else self.first.admitted)

    @property
    def message(self) -> str:
        """Why it may not."""
        if self.first is None:
            return self.seen.problem or "its Workload is being created"
        if self.outdated:
            named = shortlist(sorted(self.outdated))
            return f"what pods request was changed; once none is left, Workloads are made anew: {named}"
        return f"Workload {self.first.name}: {self.first.message}"

    @cached_property
    def in_first(self) -> dict[PoolKey, frozenset[int]]:
        """The learners of the first Workload; while it has quota, as many as it was made with."""
        wanted = manifests.of_first(self.job.spec, self.pools)
        first = self.first
        if first is not None and first.reserved:
            pods = first.pods
            wanted = {
                key: pods[self.sets[key]] // pool.nodes_per_learner
                for key, pool in self.pools.items()
                if self.sets[key] in pods
            }
        return {key: frozenset(self.pools[key].indices[:count]) for key, count in wanted.items()}

    def own_name(self, pool: PoolKey, index: int) -> str:
        """The name of the Workload of one learner, beside the first one."""
        return manifests.learner_workload(self.sets[pool], index)

    def own(self, pool: PoolKey, index: int) -> Workload | None:
        """That Workload."""
        return self.workloads.get(self.own_name(pool, index))

    def queued(self, pool: PoolKey) -> frozenset[int]:
        """Indices of the learners of a pool that may not run; without a Workload those that run, run on.

        Until then the others have a gate, which stays while it is not known where they are to be.
        """
        indices = self.pools[pool].indices
        if not self.runs:
            return frozenset(indices)
        further = (index for index in indices if index not in self.in_first.get(pool, ()))
        return frozenset(index for index in further if (one := self.own(pool, index)) is not None and not one.admitted)

    def why(self, pool: PoolKey) -> str:
        """How many learners of a pool may not run, and why the first of them may not; empty: all may."""
        queued = self.queued(pool)
        if not queued:
            return ""
        index = min(queued)
        own = self.own(pool, index)
        text = f"{pool}/{index}: {own.message}" if self.runs and own is not None else self.message
        return f"{len(queued)} of {self.pools[pool].size} learners of {pool} wait for quota: {text}"

    def placing(self, pool: PoolKey, index: int) -> Placing | None:
        """Where the pods of a learner that may run are to be; None: not known."""
        own = self.first if index in self.in_first.get(pool, ()) else self.own(pool, index)
        return None if own is None else own.placing(self.sets[pool], self.seen.flavors)

    @property
    def placing_syncer(self) -> Placing | None:
        """The same of the syncer's pod."""
        return None if self.first is None else self.first.placing(manifests.SYNCER, self.seen.flavors)

    def further(self, out: Mapping[PoolKey, frozenset[int]]) -> Iterator[tuple[PoolKey, int]]:
        """The learners that are to have a Workload each; ``out``: indices of those that are given up."""
        for key, pool in self.pools.items() if self.runs else ():
            others = self.in_first.get(key, frozenset()) | out.get(key, frozenset())
            yield from ((key, index) for index in pool.indices if index not in others)


def workloads_of(children: Mapping[ChildKey, Object]) -> dict[str, Workload]:
    """The Workloads among a job's objects, by name."""
    return {key.name: Workload(live) for key, live in children.items() if key.kind == WORKLOAD}
