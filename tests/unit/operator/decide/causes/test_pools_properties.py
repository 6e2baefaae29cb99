from hypothesis import given
from hypothesis import strategies as st

from diloco_operator.decide.causes.pods import PodProblem
from diloco_operator.decide.causes.pools import has_no_node, without_waiting
from diloco_operator.decide.objects.workloads import PoolWorkload
from diloco_operator.decide.observed import ChildKey
from diloco_operator.decide.reasons import Reason
from diloco_operator.names import PoolKey

NO_NODE = (Reason.UNSCHEDULABLE, Reason.EVICTED)
OTHERS = (Reason.IMAGE_PULL_FAILED, Reason.CRASH_LOOPING, Reason.LEARNERS_MISSING, Reason.VOLUME_PENDING)
problems = st.builds(
    PodProblem, st.sampled_from([*NO_NODE, *OTHERS]), st.just("why"), node_silent=st.sampled_from([False, False, True])
)


def workload(desired: int, minimum: int | None, given_up: int = 0, left_out: int = 0) -> PoolWorkload:
    """``desired``: without those that are left out, which come first; then those that are given up."""
    key = ChildKey("StatefulSet", "demo--here-spot")
    out = frozenset(range(left_out)), frozenset(range(left_out, left_out + given_up))
    return PoolWorkload(PoolKey("here", "spot"), key, {}, desired, minimum, *out)


@given(
    st.lists(problems, max_size=8),
    st.integers(10, 12),
    st.integers(0, 10),
    st.integers(0, 2),
    st.tuples(st.integers(0, 4), st.integers(0, 2)),
)
def test_pods_without_a_node_count_only_below_the_minimum(
    found: list[PodProblem], may_run: int, minimum: int, lost: int, out: tuple[int, int]
) -> None:
    given_up, left_out = out
    counted = without_waiting(workload(may_run + given_up, minimum, given_up, left_out), found, lost)
    without = sum(one.node_silent or one.reason in NO_NODE for one in found)
    assert [one for one in counted if not has_no_node(one)] == [one for one in found if not has_no_node(one)]
    assert sum(map(has_no_node, counted)) == (without if may_run - lost - without < minimum else 0)


@given(st.lists(problems, min_size=1, max_size=3), st.integers(0, 3))
def test_fewer_than_the_minimum_that_may_run_are_all_needed(found: list[PodProblem], may_run: int) -> None:
    """That there are so few is reported of those that are given up."""
    pool = workload(4, 4, given_up=4 - may_run)
    assert without_waiting(pool, found, 0) == found
    assert pool.can_do_without(0)
    assert not pool.can_do_without(1)


@given(st.lists(problems, max_size=8))
def test_a_pool_that_is_not_elastic_keeps_every_problem(found: list[PodProblem]) -> None:
    assert without_waiting(workload(8, None), found, 0) == found
