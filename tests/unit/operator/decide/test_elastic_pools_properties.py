"""Which problems of an elastic pool's pods count, for any mix of them."""

from hypothesis import given
from hypothesis import strategies as st

from diloco_operator.decide.causes.elastic import has_no_node, without_waiting
from diloco_operator.decide.causes.pods import PodProblem
from diloco_operator.decide.observed import ChildKey
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.workloads import PoolWorkload
from diloco_operator.names import PoolKey

NO_NODE = (Reason.UNSCHEDULABLE, Reason.EVICTED)
OTHERS = (Reason.IMAGE_PULL_FAILED, Reason.CRASH_LOOPING, Reason.LEARNERS_MISSING, Reason.VOLUME_PENDING)
problems = st.builds(
    PodProblem, st.sampled_from([*NO_NODE, *OTHERS]), st.just("why"), node_silent=st.sampled_from([False, False, True])
)


def workload(desired: int, minimum: int | None) -> PoolWorkload:
    return PoolWorkload(PoolKey("here", "spot"), ChildKey("StatefulSet", "demo--here-spot"), {}, desired, minimum)


@given(st.lists(problems, max_size=8), st.integers(10, 12), st.integers(0, 10), st.integers(0, 2))
def test_pods_without_a_node_count_only_below_the_minimum(
    found: list[PodProblem], desired: int, minimum: int, lost: int
) -> None:
    counted = without_waiting(workload(desired, minimum), found, lost)
    without = sum(one.node_silent or one.reason in NO_NODE for one in found)
    assert [one for one in counted if not has_no_node(one)] == [one for one in found if not has_no_node(one)]
    assert sum(map(has_no_node, counted)) == (without if desired - lost - without < minimum else 0)


@given(st.lists(problems, max_size=8))
def test_a_pool_that_is_not_elastic_keeps_every_problem(found: list[PodProblem]) -> None:
    assert without_waiting(workload(8, None), found, 0) == found
