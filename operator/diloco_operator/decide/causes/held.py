"""Learners that cannot be held back, or let go, because the operator may not delete their pods. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from diloco.spec.words import shortlist
from diloco_operator.decide.causes.cause import Cause
from diloco_operator.decide.objects.workloads import PoolWorkload
from diloco_operator.decide.observed import Object
from diloco_operator.decide.reasons import Reason
from diloco_operator.manifests.placement.holds import has_gate


def kept_causes(
    pools: Iterable[tuple[PoolWorkload, Mapping[int, Object]]], forbidden: Collection[str]
) -> Iterator[Cause]:
    """The causes of each pool.

    Args:
        pools: Each with the pods of its set, by index.
        forbidden: Clusters whose API server refuses to delete pods.
    """
    for workload, pods in pools:
        cluster = workload.key.cluster
        if cluster not in forbidden:
            continue
        held = workload.pods_of(workload.held)
        there = {index: has_gate(pod.get("spec")) for index, pod in pods.items() if index < workload.pods}
        placed = {workload.learner_of(index) for index, gated in there.items() if index in held and not gated}
        gated = {workload.learner_of(index) for index, gated in there.items() if index not in held and gated}
        why = f"the operator has no right to delete pods in {f'cluster {cluster}' if cluster else 'this namespace'}"
        if placed:
            yield Cause(Reason.POD_DELETION_FORBIDDEN, f"{shortlist(sorted(placed))} to be held back: {why}")
        if gated:
            yield Cause(Reason.POD_DELETION_FORBIDDEN, f"{shortlist(sorted(gated))} to be held back no longer: {why}")
