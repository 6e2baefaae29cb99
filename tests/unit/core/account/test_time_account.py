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
            account.marks = []
            account.joined(0.0, 0, [0] * len(numbers), tuple(numbers), same_process=False)
        case "reported":
            account.reported(numbers[0], counts[1], TimeSpent(**kinds))
        case "returned" | "replaced":  # the same process, or another one
            account.joined(numbers[0], counts[1], [counts[2]], ONE, same_process=what == "returned")
        case "received":
            account.received(*counts)
        case "captured":
            account.captured(*counts)
        case "decided":
            account.decided(counts[0], TimeClass(words[1]))
        case "frozen":
            account.marks[counts[0]].fate = TimeClass(words[1])
        case _:
            assert what == "told"
            assert told(account, numbers[0]) == kinds


COURSES = {
    "every kind of the stopwatch but loading is a class": (
        "reported 36 1 training=1 skipped=2 paused=3 copying=4 looking=5 evaluating=6 checkpointing=7 loading=8; "
        "told 36 pending=1 lost=2 waiting=3 overhead=22 away=8"
    ),
    "time that no report covers is away": "reported 10 1 training=4; told 12 pending=6 away=6",
    "a report that was held up on its way leaves nothing away": (
        "reported 1.5 1 training=1; told 1.5 pending=1 away=0.5; reported 2 2 training=2; told 2 pending=2"
    ),
    "a report that was lost is made up for by the next": (
        "reported 1 1 training=0.75 looking=0.25; reported 4 4 training=3 looking=1; told 4 pending=3 overhead=1"
    ),
    "no more is believed than the time that has passed": (
        "reported 4 1 training=300 evaluating=100; told 4 pending=2 overhead=2; "
        "reported 5 2 training=300.5 evaluating=100; told 5 pending=2.5 overhead=2 away=0.5"
    ),
    "a stopwatch that runs backwards says nothing": (
        "reported 4 1 training=4; reported 5 2 training=1; told 5 pending=4 away=1"
    ),
    "a new process explains nothing of what the one before left": (
        "reported 1 1 training=1; replaced 11 1 -1; reported 15 2 training=9; told 15 lost=2.5 pending=2.5 away=10"
    ),
    "a process that comes back explains what it did meanwhile": (
        "reported 1 1 training=1; returned 11 8 0; told 11 pending=1 away=10; reported 12 9 training=9 paused=3; "
        "told 12 pending=9 waiting=3"
    ),
    "a version swapped in without a session is known from the next": (
        "reported 4 4 training=4; frozen 0 late; returned 5 4 1; reported 6 5 training=5 paused=1; "
        "told 6 late=4 waiting=1 pending=1"
    ),
    "a fragment counts by its share of the model": (
        "shares 0.75 0.25; reported 4 4 training=4; captured 0 0 4; decided 0 merged; told 4 merged=3 pending=1; "
        "frozen 1 late; received 1 1 4; told 4 merged=3 late=1"
    ),
    "steps after the capture are overwritten by the swap in": (
        "reported 4 4 training=4; captured 0 0 4; frozen 0 overwritten; reported 6 6 training=6; decided 0 merged; "
        "received 0 1 6; reported 7 7 training=7; told 7 merged=4 overwritten=2 pending=1"
    ),
    "a swap in ahead of its steps report makes no more time than there is": (
        "reported 4 4 training=4; captured 0 0 4; frozen 0 overwritten; decided 0 merged; received 0 1 8; "
        "told 4 merged=2 overwritten=2; reported 9 9 training=9; told 9 merged=4 overwritten=4 pending=1"
    ),
    "training time without a whole step is pending": "reported 4 0 training=4; told 5 pending=5",
    "all steps of a learner count alike": (
        "reported 4 1 training=4; captured 0 0 1; decided 0 merged; reported 6 3 training=6; told 6 merged=2 pending=4"
    ),
    "an outer gradient may arrive before the notice of its base": (
        "reported 4 4 training=4; captured 0 0 4; frozen 0 overwritten; decided 0 merged; reported 10 10 training=10; "
        "captured 0 1 5; received 0 1 5; decided 0 merged; told 10 merged=9 overwritten=1"
    ),
    "an outer gradient after the next version can still be merged": (
        "reported 4 4 training=4; frozen 0 late; received 0 1 4; told 4 late=4; captured 0 0 3; "
        "told 4 late=1 pending=3; decided 0 merged; told 4 late=1 merged=3"
    ),
    "also if its steps counted as lost": (
        "reported 4 4 training=4; received 0 1 4; told 4 lost=4; captured 0 0 3; decided 0 merged; "
        "told 4 lost=1 merged=3"
    ),
    "no more is taken back than was settled": (
        "reported 4 4 training=4; frozen 0 late; received 0 1 4; captured 0 0 99; told 4 pending=4"
    ),
    "the fate that the latest round gave counts": (
        "reported 2 2 training=2; frozen 0 lost; frozen 0 late; received 0 1 2; told 2 late=2"
    ),
    "a merge that failed has lost what was captured": (
        "reported 2 2 training=2; captured 0 0 2; frozen 0 overwritten; decided 0 lost; received 0 1 2; told 2 lost=2"
    ),
    "what a process had brought before it ended can still be merged": (
        "reported 4 4 training=4; captured 0 0 3; replaced 5 4 -1; told 5 pending=3 lost=1 away=1; decided 0 merged; "
        "told 5 merged=3 lost=1 away=1"
    ),
    "a process that loads a fragment again loses what it trained on it": (
        "reported 4 4 training=4; frozen 0 late; returned 4 4 -1; received 0 0 4; told 4 lost=4"
    ),
    "an outer gradient is captured once however often it comes": (
        "reported 4 4 training=4; captured 0 0 3; captured 0 0 3; captured 0 0 2; decided 0 merged; "
        "told 4 merged=3 pending=1"
    ),
    "the time between two processes stays away when a third begins": (
        "reported 1 1 training=1; replaced 11 1 -1; replaced 12 1 -1; told 12 lost=1 away=11"
    ),
    "a process that begins at an earlier step is counted from there": (
        "reported 8 8 training=8; replaced 8 2 -1; received 0 1 2; reported 12 6 training=4; captured 0 1 3; "
        "decided 0 merged; told 12 lost=8 merged=3 pending=1"
    ),
    "a report of nothing at the same moment changes nothing": "reported 0 0; told 0",
    "a version that it had is not received again": (
        "reported 4 4 training=4; received 0 2 2; received 0 1 4; told 4 lost=2 pending=2"
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
        account.marks[0].fate = TimeClass.LATE
        account.reported(2.0 * version - 1, 2 * version - 1, TimeSpent(training=2.0 * version - 1))
        account.received(0, version, 2 * version)
        account.reported(2.0 * version, 2 * version, TimeSpent(training=2.0 * version))
    assert told(account, 20.0) == {"late": 20}


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


def test_a_restarted_syncer_has_lost_what_was_pending() -> None:
    account = joined()
    account.reported(4.0, 4, TimeSpent(training=4.0))
    account.captured(0, 0, 1)
    account.decided(0, TimeClass.MERGED)
    rest = account.at_rest()
    assert told(rest, 5.0) == {"merged": 1, "lost": 3, "pending": 1}
    assert told(rest.at_rest(), 4.0) == {"merged": 1, "lost": 3}
    # What the process trained while the syncer was away is of no allotted time.
    rest.joined(5.0, 504, [-1], ONE, same_process=True)
    rest.received(0, 1, 504)
    rest.reported(9.0, 508, TimeSpent(training=508.0))
    assert told(rest, 9.0) == {"merged": 1.125, "lost": 3.375, "pending": 4.5}


def test_a_closed_account_stays_as_it_is() -> None:
    account = joined()
    account.reported(2.0, 2, TimeSpent(training=2.0))
    account.close(3.0, since=TimeClass.PENDING, gone=False)
    assert told(account, 3.0) == {"pending": 3}
    assert told(account.at_rest(), 3.0) == {"pending": 3}
