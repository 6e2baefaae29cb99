"""Which Workloads a job should have, and what is written of the statuses of those that it has. Pure.

A Workload whose quota is taken keeps its pod sets, as Kueue wants it; one that waits gets those of today, as Kueue's
own controllers do it. Its quota is given back only once none of its pods runs. If the job is resumed before that with
other pods, it is given back all the same.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from diloco_operator import labels
from diloco_operator.decide.job_now import JobNow
from diloco_operator.decide.learners.held_pods import set_of
from diloco_operator.decide.objects.drift import digest
from diloco_operator.decide.objects.workloads import STATEFUL_SET, PoolWorkload, component, replicas, syncer_ready
from diloco_operator.decide.observed import ChildKey, Object
from diloco_operator.decide.plan import Patch
from diloco_operator.decide.queue.queue_now import WORKLOAD, QueueNow
from diloco_operator.decide.queue.workload import DIGEST, POD_SETS, Placing, Workload
from diloco_operator.manifests import queue as manifests
from diloco_operator.manifests.inputs import Manifest, Placed
from diloco_operator.manifests.placement.holds import has_gate, without_gate
from diloco_operator.names import PoolKey

MOST_AT_ONCE: Final = 100
"""Workloads that one reconcile makes (ours)."""
LATER_SECONDS: Final = 2.0
"""Kueue preempts who was admitted last, by times in whole seconds. So a learner's own Workload is made so long after
the first one got its quota: else Kueue may preempt that one, and with it the whole job (ours)."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What to do about Workloads."""

    apply: tuple[Placed, ...] = ()
    delete: tuple[ChildKey, ...] = ()


def shares(job_now: JobNow, templates: Mapping[str, Manifest]) -> Shares:
    """The Workloads to make or change, and those to delete.

    ``templates``: of the pods of each set, and of the syncer (`manifests.SYNCER`), by the names of their pod sets.
    """
    queue = job_now.queue
    if queue is None:
        return Shares()
    wanted = {} if job_now.suspend else dict(_wanted(job_now, queue, templates))
    said = job_now.spec.queue
    # What cannot be read of a priority is told (`KueueSeen.problem`).
    ready = said is not None and (said.priority_class is None or queue.seen.priority is not None)
    settled = queue.first is not None and queue.first.reserved_for(LATER_SECONDS, job_now.now)
    makes = wanted.items() if settled else [item for item in wanted.items() if item[0] == queue.first_name]
    due = [(name, one) for name, one in makes if ready and one.is_due(queue.workloads.get(name))]
    pods = _Pods(job_now, queue)
    needless = (queue.workloads.keys() - wanted.keys()) | queue.outdated
    gone = sorted(name for name in needless if pods.have_ended(name))
    return Shares(
        tuple(
            Placed(manifests.workload(queue.job, name, one.spec, one.annotations)) for name, one in due[:MOST_AT_ONCE]
        ),
        tuple(ChildKey(WORKLOAD, name) for name in gone[:MOST_AT_ONCE]),
    )


def outdated(job_now: JobNow, templates: Mapping[str, Manifest]) -> frozenset[str]:
    """Names of Workloads with quota for other pods than those that would start, while no set has any.

    A set that has pods keeps their template. ``templates``: as of `shares`.
    """
    queue = job_now.queue
    sets = (one for key, one in job_now.observed.children.items() if key.kind == STATEFUL_SET)
    if queue is None or not job_now.runs or any(map(replicas, sets)):
        return frozenset()
    found = ((name, one, queue.workloads.get(name)) for name, one in _wanted(job_now, queue, templates))
    return frozenset(
        name for name, one, live in found if live and live.admitted and live.pod_sets_digest != one.pod_sets_digest
    )


@dataclass(frozen=True)
class _Share:
    """The spec of one Workload, or of many that are alike."""

    spec: Manifest

    @cached_property
    def digest(self) -> str:
        return digest(self.spec)

    @cached_property
    def pod_sets_digest(self) -> str:
        return digest(self.spec["podSets"])

    @property
    def annotations(self) -> dict[str, str]:
        return {DIGEST: self.digest, POD_SETS: self.pod_sets_digest}

    def is_due(self, live: Workload | None) -> bool:
        """Whether it is missing, or waits with another spec. One whose quota is taken stays."""
        return live is None or (not live.reserved and live.digest != self.digest)


def _wanted(job_now: JobNow, queue: QueueNow, templates: Mapping[str, Manifest]) -> Iterator[tuple[str, _Share]]:
    """Each Workload by its name."""

    def share(*pod_sets: Manifest) -> _Share:
        return _Share(manifests.spec(job_now.spec, pod_sets, queue.seen.priority))

    def of_pool(pool: PoolKey, learners: int) -> Manifest:
        name, pods = queue.sets[pool], learners * queue.pools[pool].nodes_per_learner
        return manifests.pod_set(name, without_gate(templates[name]), pods)

    least = manifests.of_first(job_now.spec, job_now.pools)
    of_syncer = manifests.pod_set(manifests.SYNCER, templates[manifests.SYNCER], 1)
    yield (
        queue.first_name,
        share(of_syncer, *(of_pool(pool, count) for pool, count in least.items())),
    )
    # There may be thousands of a pool.
    alike = {pool: share(of_pool(pool, 1)) for pool in job_now.pools} if queue.runs else {}
    for pool, index in queue.further({one.pool: one.given_up for one in job_now.workloads}):
        yield queue.own_name(pool, index), alike[pool]


def statuses(job_now: JobNow) -> tuple[Patch, ...]:
    """What Kueue has to be told: that all pods are ready, or that quota is free again."""
    queue = job_now.queue
    if queue is None:
        return ()
    ready = _ready(job_now, queue)
    found, pods = list[Patch](), _Pods(job_now, queue)
    for name, one in sorted(queue.workloads.items()):
        if one.evicted and one.reserved and pods.have_ended(name):
            found.append(_patch(one, one.released(job_now.now)))
        elif one.admitted and not one.told_ready and name in ready:
            found.append(_patch(one, one.ready(job_now.now)))
    return tuple(found[:MOST_AT_ONCE])


def _patch(one: Workload, body: Object) -> Patch:
    return Patch(ChildKey(WORKLOAD, one.name), body)


@dataclass(frozen=True)
class _Pods:
    """Which Workloads have pods that run, by the list of pods: sets do not count those that end."""

    job_now: JobNow
    queue: QueueNow

    def have_ended(self, name: str) -> bool:
        """Whether no pod of a Workload runs. While the syncer runs, each learner's pods are looked at."""
        if self.job_now.observed.looked is None:
            return False
        if not self.job_now.runs:
            return not self.job_now.pods_left.any
        set_name, _, index = name.rpartition("-")
        pool = self._pools.get(set_name)
        if pool is None:
            # The first one stays while the job runs. Another's pool was removed, and with it a learner's nodes.
            return name != self.queue.first_name and all(other != set_name for other, _ in self._running)
        # A learner that is now in the first Workload has its quota there.
        if not index.isdecimal():
            return True
        return int(index) in self.queue.in_first.get(pool.pool, ()) or (set_name, int(index)) not in self._running

    @cached_property
    def _pools(self) -> dict[str, PoolWorkload]:
        return {one.key.name: one for one in self.job_now.workloads}

    @cached_property
    def _running(self) -> frozenset[tuple[str, int]]:
        """The sets and indices of the learners of which a pod has no gate."""
        looked, found = self.job_now.observed.looked, set[tuple[str, int]]()
        for one in () if looked is None else looked.pods:
            set_name, _, index = str(one.pod["metadata"]["name"]).rpartition("-")
            if component(one.pod) == labels.LEARNER and index.isdecimal() and not has_gate(one.pod.get("spec")):
                pool = self._pools.get(set_name)
                found.add((set_name, int(index) // (1 if pool is None else pool.nodes)))
        return frozenset(found)


def _ready(job_now: JobNow, queue: QueueNow) -> set[str]:
    """The names of the Workloads all of whose pods are ready."""
    if not job_now.runs:
        return set()
    found, first = set[str](), syncer_ready(job_now.deployment)
    for pool in job_now.workloads:
        its = pool.by_learner((job_now.pods_by_set or {}).get(set_of(pool), {}))
        for index in pool.indices - pool.out:
            is_ready = pool.healthy or pool.is_ready(its.get(index, []))
            if index in queue.in_first.get(pool.pool, ()):
                first = first and is_ready
            elif is_ready:
                found.add(queue.own_name(pool.pool, index))
    return found | ({queue.first_name} if first else set())


def released_pods(job_now: JobNow) -> tuple[Patch, ...]:
    """The pods of learners that Kueue has admitted, with what its flavors say of their nodes and without the gate."""
    queue, found = job_now.queue, list[Patch]()
    if queue is None:
        return ()
    for pool in job_now.workloads:
        pods = (job_now.pods_by_set or {}).get(set_of(pool), {})
        held = job_now.holdings.get(pool.key)
        for index in () if held is None else held.release:
            placing = queue.placing(pool.pool, index // pool.nodes)
            if placing is not None:
                found.append(_released(pods[index], job_now.manifest.metadata.namespace, placing))
    return tuple(found[:MOST_AT_ONCE])


def _released(pod: Object, namespace: str, placing: Placing) -> Patch:
    metadata, spec = pod["metadata"], without_gate({"spec": pod["spec"]})["spec"]
    body = {
        "metadata": {
            "namespace": namespace,
            **{key: metadata[key] for key in ("name", "uid")},
            "labels": dict(placing.labels),
            "annotations": dict(placing.annotations),
        },
        "spec": {**_placed(spec, placing), "schedulingGates": spec.get("schedulingGates", [])},
    }
    return Patch(ChildKey("Pod", str(metadata["name"])), body)


def _placed(spec: Manifest, placing: Placing) -> Manifest:
    """Where a pod with this spec is to run."""
    nodes, given = {**spec.get("nodeSelector", {}), **placing.node_selector}, spec.get("tolerations", [])
    tolerations = [*given, *(one for one in placing.tolerations if one not in given)]
    return {**({"nodeSelector": nodes} if nodes else {}), **({"tolerations": tolerations} if tolerations else {})}


def placed(template: Manifest, placing: Placing) -> Manifest:
    """A pod template with what an admission asks of its pods."""
    metadata = template["metadata"]
    more = {
        field: {**metadata.get(field, {}), **marks}
        for field, marks in (("labels", placing.labels), ("annotations", placing.annotations))
        if marks
    }
    spec = template["spec"]
    return {**template, "metadata": {**metadata, **more}, "spec": {**spec, **_placed(spec, placing)}}
