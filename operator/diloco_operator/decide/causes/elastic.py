"""Which problems of pods are none for an elastic pool: that there is no node for more than its minimum. Pure.

A pod that waits for a node, was evicted or preempted, or was on a node that has gone costs the job nothing but its
work, and Kubernetes starts it wherever a node is found for it. Every other problem (an image, a crash, a volume) is one
on any node, so it is reported however many learners the pool has.
"""

from collections.abc import Sequence

from diloco_operator.decide.causes.pods import PodProblem
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.workloads import PoolWorkload

_NO_NODE = frozenset({Reason.UNSCHEDULABLE, Reason.EVICTED})


def has_no_node(problem: PodProblem) -> bool:
    """Whether a pod does not run because it has no node, or none that responds."""
    return problem.node_silent or problem.reason in _NO_NODE


def without_waiting(workload: PoolWorkload, problems: Sequence[PodProblem], lost: int) -> list[PodProblem]:
    """The ``problems`` of a pool's pods, without those of pods that an elastic pool can do without.

    If fewer than its minimum have a node, all of them count. ``lost`` more pods are on nodes that do not respond.
    Neither are of learners that are given up or held back.
    """
    others = [problem for problem in problems if not has_no_node(problem)]
    without_node = lost + len(problems) - len(others)
    return others if workload.can_do_without(without_node) else list(problems)
