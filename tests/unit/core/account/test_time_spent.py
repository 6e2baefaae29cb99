import pytest

from diloco.core.account.time_spent import TimeSpent


def test_what_stands_beside_training_is_synchronization_and_other_work() -> None:
    spent = TimeSpent(
        training=80.0, paused=1.0, copying=2.0, looking=3.0, evaluating=10.0, checkpointing=4.0, loading=50.0
    )
    assert spent.waited_seconds == 4.0
    assert spent.blocked_seconds == 6.0
    assert spent.other_work_seconds == 14.0
    assert spent.fraction(spent.other_work_seconds) == pytest.approx(0.14)


def test_there_is_no_share_of_no_time() -> None:
    assert TimeSpent().fraction(0.0) == 0.0
    assert TimeSpent(loading=3.0).fraction(0.0) == 0.0
    assert TimeSpent(training=0.25, looking=0.25).fraction(0.25) == 0.5
