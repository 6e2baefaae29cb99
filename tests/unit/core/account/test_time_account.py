"""One learner's account of its allotted time: what is accepted, when it is settled, and that it always adds up."""

import math
from dataclasses import replace

import pytest

from diloco.core.account.time_account import Account
from diloco.core.account.time_class import TimeClass
from diloco.core.account.time_spent import TimeSpent

ONE = (1.0,)


def joined(shares: tuple[float, ...] = ONE) -> Account:
    """An account of a learner that holds version 0 of every fragment and whose time begins."""
    account = Account()
    account.joined(0.0, 0, [0] * len(shares), shares, same_process=False)
    return account


def told(account: Account, allotted_seconds: float) -> dict[str, float]:
    """Seconds by class, without those that are nothing; checked to add up."""
    split = account.split(allotted_seconds, since=TimeClass.PENDING, gone=False)
    assert set(split) == set(TimeClass)
    assert all(seconds >= 0 for seconds in split.values())
    assert math.fsum(split.values()) == pytest.approx(allotted_seconds)
    return {one.value: round(seconds, 9) for one, seconds in split.items() if seconds > 1e-12}


def play(account: Account, step: str) -> None:  # a table of steps
    """A step: a method of the account with its arguments, or what it tells then."""
    what, *words = step.split()
    kinds = {kind: float(seconds) for kind, _, seconds in (word.partition("=") for word in words if "=" in word)}
    numbers = [float(word) for word in words if word[-1].isdigit() and "=" not in word]
    counts = [int(number) for number in numbers]
    match what:
        case "shares":
            account.joined(0.0, 0, [0] * len(numbers), tuple(numbers), same_process=False)
        case "reported":
            account.reported(numbers[0], counts[1], TimeSpent(**kinds))
        case "returned" | "replaced":  # the same process, or another one
            account.joined(numbers[0], counts[1], [counts[2]], ONE, same_process=what == "returned")
        case "received":
            account.received(*counts)
        case "captured":
            account.captured(*counts)
        case "declined":
            account.declined(*counts)
        case "decided":
            account.decided(counts[0], TimeClass(words[1]))
        case "left_out":
            account.left_out(counts[0], counts[1], TimeClass(words[2]))
        case _:
            assert what == "told"
            assert told(account, numbers[0]) == kinds


COURSES = {
    "every kind of the stopwatch is a class": (
        "reported 36 1 training=1 skipped=2 paused=3 copying=4 looking=5 evaluating=6 checkpointing=7 loading=8; "
        "told 36 pending=1 unusable=2 waiting=3 between_steps=9 overhead=13 loading=8"
    ),
    "time that no report covers is shown": "reported 10 1 training=4; told 12 pending=6 unexplained=6",
    "a report that was held up on its way leaves nothing unexplained": (
        "reported 1.5 1 training=1; told 1.5 pending=1 unexplained=0.5; reported 2 2 training=2; told 2 pending=2"
    ),
    "a report that was lost is made up for by the next": (
        "reported 1 1 training=0.75 looking=0.25; reported 4 4 training=3 looking=1; told 4 pending=3 between_steps=1"
    ),
    "no more is believed than the time that has passed": (
        "reported 4 1 training=300 evaluating=100; told 4 pending=2 overhead=2; "
        "reported 5 2 training=300.5 evaluating=100; told 5 pending=2.5 overhead=2 unexplained=0.5"
    ),
    "a stopwatch that runs backwards says nothing": (
        "reported 4 1 training=4; reported 5 2 training=1; told 5 pending=4 unexplained=1"
    ),
    "what a process loaded before its first session is nobodys time": (
        "reported 3 1 training=1 loading=60; told 3 pending=1 loading=2"
    ),
    "a new process explains its start by what it loaded": (
        "reported 1 1 training=1; replaced 11 1 -1; reported 15 2 training=1 loading=7; "
        "told 15 lost=1 pending=1 away=13"
    ),
    "a process that comes back explains what it did meanwhile": (
        "reported 1 1 training=1; returned 11 8 0; told 11 pending=1 away=10; reported 12 9 training=9 paused=3; "
        "told 12 pending=9 waiting=3"
    ),
    "a version swapped in without a session is known from the next": (
        "reported 4 4 training=4; left_out 0 1 late; returned 5 4 1; reported 6 5 training=5 paused=1; "
        "told 6 late=4 waiting=1 pending=1"
    ),
    "a fragment counts by its share of the model": (
        "shares 0.75 0.25; reported 4 4 training=4; captured 0 1 0 4; decided 0 merged; told 4 merged=3 pending=1; "
        "left_out 1 1 late; received 1 1 4; told 4 merged=3 late=1"
    ),
    "steps after the capture are overwritten by the swap in": (
        "reported 4 4 training=4; captured 0 1 0 4; reported 6 6 training=6; decided 0 merged; received 0 1 6; "
        "reported 7 7 training=7; told 7 merged=4 overwritten=2 pending=1"
    ),
    "a swap in ahead of its steps report is settled by the report": (
        "reported 4 4 training=4; captured 0 1 0 4; decided 0 merged; received 0 1 5; told 4 merged=4; "
        "reported 6 6 training=6; told 6 merged=4 overwritten=1 pending=1"
    ),
    "training time without a whole step ends with the version": (
        "reported 4 4 training=4; captured 0 1 0 4; decided 0 merged; reported 5 4 training=5; received 0 1 4; "
        "told 5 merged=4 overwritten=1"
    ),
    "a merge ahead of its steps report is settled by the report": (
        "reported 3 3 training=3; captured 0 1 0 4; decided 0 merged; reported 5 5 training=5; "
        "told 5 merged=4 pending=1"
    ),
    "an outer gradient may arrive before the notice of its base": (
        "reported 4 4 training=4; captured 0 1 0 4; decided 0 merged; reported 10 10 training=10; captured 0 2 1 5; "
        "received 0 1 5; decided 0 merged; told 10 merged=9 overwritten=1"
    ),
    "an outer gradient after the next version can still be merged": (
        "reported 4 4 training=4; left_out 0 1 late; received 0 1 4; told 4 late=4; captured 0 2 0 3; "
        "told 4 late=1 pending=3; captured 0 2 0 3; decided 0 merged; told 4 late=1 merged=3"
    ),
    "the first reason for leaving a learner out of a version counts": (
        "reported 2 2 training=2; left_out 0 1 unusable; left_out 0 1 late; received 0 1 2; told 2 unusable=2"
    ),
    "an outer gradient for a version long made changes no reason": (
        "reported 2 2 training=2; left_out 0 3 late; left_out 0 1 unusable; received 0 3 2; told 2 late=2"
    ),
    "a reason of a newer round outlasts the swap in of an older one": (
        "reported 2 2 training=2; left_out 0 1 lost; left_out 0 2 late; received 0 1 2; reported 3 3 training=3; "
        "received 0 2 3; told 3 late=3"
    ),
    "what a process had brought before it ended can still be merged": (
        "reported 4 4 training=4; captured 0 1 0 3; replaced 5 4 -1; told 5 pending=3 lost=1 away=1; decided 0 merged; "
        "told 5 merged=3 lost=1 away=1"
    ),
    "a process that loads a fragment again loses what it trained on it": (
        "reported 4 4 training=4; returned 4 4 -1; received 0 0 4; told 4 lost=4"
    ),
    "a reason counts for one version only": (
        "reported 2 2 training=2; left_out 0 1 late; received 0 1 2; reported 3 3 training=3; received 0 2 3; "
        "told 3 late=2 lost=1"
    ),
    "what a report makes up for was unexplained first and then away": (
        "reported 2 1 training=1; returned 5 1 0; told 5 pending=1 unexplained=1 away=3; reported 6 2 training=3.5; "
        "told 6 pending=3.5 away=2.5"
    ),
    "the time between two processes stays away when a third begins": (
        "reported 1 1 training=1; replaced 11 1 -1; replaced 12 1 -1; told 12 lost=1 away=11"
    ),
    "an outer gradient of a version without a step takes nothing back": (
        "reported 4 4 training=4; received 0 1 4; received 0 2 4; captured 0 3 1 2; told 4 lost=4"
    ),
    "a process that begins at an earlier step is counted from there": (
        "reported 8 8 training=8; replaced 8 2 -1; received 0 1 2; reported 12 6 training=4; captured 0 2 1 3; "
        "decided 0 merged; told 12 lost=8 merged=3 pending=1"
    ),
    "what an ended process had not brought is not taken back": (
        "reported 4 4 training=4; left_out 0 1 late; received 0 1 4; replaced 4 4 -1; captured 0 2 0 3; told 4 late=4"
    ),
    "a report of nothing at the same moment changes nothing": "reported 0 0; told 0",
    "who declines after one step has none to send": (
        "reported 4 1 training=4; declined 0 1; received 0 1 1; told 4 overwritten=4"
    ),
    "who declines after more than a step could not send what it had": (
        "reported 4 2 training=4; declined 0 1; received 0 1 2; told 4 unusable=4"
    ),
    "what comes after the next version is taken back step by step": (
        "reported 4 4 training=4; left_out 0 1 late; received 0 1 4; captured 0 2 0 1; captured 0 2 0 3; "
        "captured 0 2 0 2; told 4 late=1 pending=3; captured 0 2 0 9; told 4 pending=4"
    ),
    "what waited for an ended process settles nothing of the next": (
        "reported 4 4 training=4; received 0 1 6; replaced 6 4 -1; received 0 2 4; reported 10 8 training=4; "
        "told 10 lost=4 away=2 pending=4"
    ),
}
"""What happens to an account of one fragment, and what it tells then."""


@pytest.mark.parametrize("course", COURSES.values(), ids=COURSES)
def test_an_account_tells_what_became_of_the_time(course: str) -> None:
    account = joined()
    for step in course.split(";"):
        play(account, step)


def test_any_number_of_swap_ins_ahead_of_their_reports_is_settled() -> None:
    account = joined()
    for version in range(1, 11):
        account.left_out(0, version, TimeClass.LATE)
        account.reported(2.0 * version - 1, 2 * version - 1, TimeSpent(training=2.0 * version - 1))
        account.received(0, version, 2 * version)
        account.reported(2.0 * version, 2 * version, TimeSpent(training=2.0 * version))
    assert told(account, 20.0) == {"late": 20}


def test_settlements_that_wait_for_reports_are_few_whatever_is_said() -> None:
    account = joined()
    for version in range(1, 1000):
        account.received(0, version, 2**62)
        account.captured(0, version + 1, version, 2**62)
    assert len(account.due) <= 4


def test_who_will_not_be_back_has_lost_what_it_had_pending() -> None:
    account = joined()
    account.reported(2.0, 2, TimeSpent(training=2.0))
    split = account.split(5.0, since=TimeClass.AWAY, gone=True)
    assert (split[TimeClass.LOST], split[TimeClass.AWAY], split[TimeClass.PENDING]) == (2.0, 3.0, 0.0)


def test_a_learner_of_another_number_of_fragments_begins_anew() -> None:
    account = joined()
    account.reported(1.0, 1, TimeSpent(training=1.0))
    other = replace(account, marks=[])
    other.joined(1.0, 1, [0, 0], (0.5, 0.5), same_process=True)
    assert len(other.marks) == 2


def test_what_a_restored_account_does_not_explain_is_unexplained() -> None:
    account = Account({TimeClass.MERGED: 1.0}, accounted_seconds=5.0)
    assert told(account, 5.0) == {"merged": 1.0, "unexplained": 4.0}


@pytest.mark.parametrize(("versions", "split"), [(4, {"late": 3, "pending": 1}), (5, {"late": 5})])
def test_an_outer_gradient_is_found_again_up_to_four_versions_behind(versions: int, split: dict[str, float]) -> None:
    account = joined()
    for version in range(1, versions + 1):
        account.reported(float(version), version, TimeSpent(training=float(version)))
        account.left_out(0, version, TimeClass.LATE)
        account.received(0, version, version)
    account.captured(0, versions + 1, 0, 1)
    assert told(account, float(versions)) == split
