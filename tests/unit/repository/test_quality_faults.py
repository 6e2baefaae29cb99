import pytest

from diloco.simulate import Kill, ScenarioError
from diloco.simulate.scenario import Fault
from support.faults import faults_every

LEARNERS = ("a/a/0", "a/a/1")


def kills(seconds: float = 60.0, seed: int = 0) -> tuple[Fault, ...]:
    return faults_every(seconds, Kill, learners=LEARNERS, until_seconds=600.0, seed=seed)


def test_kills_come_once_in_every_stretch() -> None:
    assert [int(kill.at_seconds // 60) for kill in kills()] == list(range(10))
    assert {kill.learner for kill in kills()} == set(LEARNERS)


def test_kills_are_drawn_from_the_seed_alone() -> None:
    assert kills() == kills()
    assert kills() != kills(seed=1)


def test_a_time_between_faults_that_cannot_be_is_named() -> None:
    with pytest.raises(ScenarioError, match="seconds between faults is 0"):
        kills(seconds=0.0)
