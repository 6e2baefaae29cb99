from collections.abc import Callable

import pytest

from diloco.simulate import Kill, Link, Profile, Scenario, ScenarioError

LEARNERS = ("a/a/0", "a/a/1")


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Link(latency_seconds=-1), "link.latency_seconds is -1"),
        (lambda: Link(bytes_per_second=0), "link.bytes_per_second is 0"),
        (lambda: Profile(step_seconds=0), "step_seconds is 0"),
        (lambda: Profile(jitter=float("nan")), "jitter is nan"),
        (lambda: Profile(start_seconds=-2), "start_seconds is -2"),
        (lambda: Scenario(merge_seconds=-1), "merge_seconds is -1"),
        (lambda: Scenario(reconnect_seconds=0), "reconnect_seconds is 0"),
    ],
)
def test_a_value_that_cannot_be_is_named(make: Callable[[], object], named: str) -> None:
    with pytest.raises(ScenarioError, match=named):
        make()


def test_a_learner_that_the_job_lacks_is_named() -> None:
    with pytest.raises(ScenarioError, match="names learner 'b/b/0'; the job has a/a/0, a/a/1"):
        Scenario({"b/b/0": Profile()}).check_learners(LEARNERS)
    with pytest.raises(ScenarioError, match="names learner 'c/c/0'"):
        Scenario(faults=(Kill("c/c/0", 1.0),)).check_learners(LEARNERS)
    with pytest.raises(ScenarioError, match="the job has 0, 1, 2, 3, 4 and 95 more"):
        Scenario({"x": Profile()}).check_learners(str(index) for index in range(100))
