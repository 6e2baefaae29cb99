"""Which learners are named as faster than others show to be possible."""

from dataclasses import dataclass

import pytest

from diloco.spec.status.engine import LearnerState, too_fast


@dataclass(frozen=True)
class Reported:
    id: str
    state: str = LearnerState.TRAINING
    counted_share: float = 1.0


FAST = Reported("here/cpu/0", counted_share=0.4)


@pytest.mark.parametrize(
    ("others", "named"),
    [
        ([Reported("here/cpu/1")], True),
        ([Reported("here/cpu/1", LearnerState.ABSENT), Reported("here/cpu/2", LearnerState.LOADING)], False),
        ([Reported("here/cpu/1", LearnerState.ABSENT), Reported("here/gpu/0")], False),
        ([Reported("here/gpu/0")], True),
        ([Reported("here/gpu/0", LearnerState.ABSENT)], False),
        ([], False),
    ],
    ids=["beside one", "its pool is away", "another pool trains", "alone in its pool", "that is away", "alone"],
)
def test_a_learner_is_too_fast_only_beside_others_that_train(others: list[Reported], named: bool) -> None:
    assert too_fast([FAST, *others]) == ([FAST.id] if named else [])


def test_who_has_left_is_named_while_others_train() -> None:
    left = Reported("here/cpu/0", LearnerState.ABSENT, 0.4)
    assert too_fast([Reported("here/cpu/1"), left]) == [left.id]
    assert too_fast([Reported("here/cpu/1", counted_share=0.8)]) == []
