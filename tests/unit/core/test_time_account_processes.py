"""One learner's account when another process takes its place."""

import math

import pytest

from diloco.core.time_account import Account
from diloco.core.time_class import TimeClass
from diloco.core.time_spent import TimeSpent

ONE = (1.0,)


def joined(step: int = 0) -> Account:
    """An account of a learner that holds version 0 of its one fragment and whose time begins."""
    account = Account()
    account.joined(0.0, step, [0], ONE, same_process=False)
    return account


def told(account: Account, allotted_seconds: float) -> dict[str, float]:
    """Seconds by class, without those that are nothing; checked to add up."""
    split = account.split(allotted_seconds, since=TimeClass.PENDING, gone=False)
    assert math.fsum(split.values()) == pytest.approx(allotted_seconds)
    return {one.value: round(seconds, 9) for one, seconds in split.items() if seconds > 1e-12}


def test_a_process_that_begins_at_an_earlier_step_is_counted_from_there() -> None:
    account = joined()
    account.reported(8.0, 8, TimeSpent(training=8.0))
    account.joined(8.0, 2, [-1], ONE, same_process=False)
    account.received(0, 1, 2)
    account.reported(12.0, 6, TimeSpent(training=4.0))
    account.captured(0, 2, 1, 3)
    account.decided(0, TimeClass.MERGED)
    assert told(account, 12.0) == {"lost": 8, "merged": 3, "pending": 1}


def test_what_an_ended_process_had_not_brought_is_not_taken_back() -> None:
    account = joined()
    account.reported(4.0, 4, TimeSpent(training=4.0))
    account.left_out(0, 1, TimeClass.LATE)
    account.received(0, 1, 4)
    account.joined(4.0, 4, [-1], ONE, same_process=False)
    account.captured(0, 2, 0, 3)
    assert told(account, 4.0) == {"late": 4}


def test_a_report_of_nothing_at_the_same_moment_changes_nothing() -> None:
    account = joined()
    account.reported(0.0, 0, TimeSpent())
    assert told(account, 0.0) == {}


def test_what_waited_for_an_ended_process_settles_nothing_of_the_next() -> None:
    account = joined()
    account.reported(4.0, 4, TimeSpent(training=4.0))
    account.received(0, 1, 6)  # ahead of the report of steps 5 and 6, which never comes
    account.joined(6.0, 4, [-1], ONE, same_process=False)
    account.received(0, 2, 4)
    account.reported(10.0, 8, TimeSpent(training=4.0))
    assert told(account, 10.0) == {"lost": 4, "away": 2, "pending": 4}
