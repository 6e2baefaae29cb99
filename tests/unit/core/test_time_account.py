"""One learner's account of its allotted time: what is accepted, when it is settled, and that it always adds up."""

import math
from dataclasses import replace

import pytest

from diloco.core.time_account import Account
from diloco.core.time_class import TimeClass
from diloco.core.time_spent import TimeSpent

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


def test_every_kind_of_the_stopwatch_is_a_class() -> None:
    account = joined()
    account.reported(36.0, 1, TimeSpent(1, 2, 3, 4, 5, 6, 7, 8))
    assert told(account, 36.0) == {
        "pending": 1,
        "skipped": 2,
        "waiting": 3,
        "copying": 4,
        "between_steps": 5,
        "evaluating": 6,
        "checkpointing": 7,
        "loading": 8,
    }


def test_time_that_no_report_covers_is_shown() -> None:
    account = joined()
    account.reported(10.0, 1, TimeSpent(training=4.0))
    assert told(account, 12.0) == {"pending": 6, "unexplained": 6}


def test_a_report_that_was_held_up_on_its_way_leaves_nothing_unexplained() -> None:
    account = joined()
    account.reported(1.5, 1, TimeSpent(training=1.0))
    assert told(account, 1.5) == {"pending": 1, "unexplained": 0.5}
    account.reported(2.0, 2, TimeSpent(training=2.0))
    assert told(account, 2.0) == {"pending": 2}


def test_a_report_that_was_lost_is_made_up_for_by_the_next() -> None:
    account = joined()
    account.reported(1.0, 1, TimeSpent(training=0.75, looking=0.25))
    account.reported(4.0, 4, TimeSpent(training=3.0, looking=1.0))
    assert told(account, 4.0) == {"pending": 3, "between_steps": 1}


def test_no_more_is_believed_than_the_time_that_has_passed() -> None:
    account = joined()
    account.reported(4.0, 1, TimeSpent(training=300.0, evaluating=100.0))
    assert told(account, 4.0) == {"pending": 2, "evaluating": 2}
    account.reported(5.0, 2, TimeSpent(training=300.5, evaluating=100.0))
    assert told(account, 5.0) == {"pending": 2.5, "evaluating": 2, "unexplained": 0.5}


@pytest.mark.parametrize("absurd", [1e308, math.inf, math.nan])
def test_absurd_claims_do_no_harm(absurd: float) -> None:
    account = joined()
    account.reported(4.0, 1, TimeSpent(*[absurd] * 8))
    account.reported(8.0, 2**62, TimeSpent(*[absurd] * 8))
    assert set(told(account, 8.0)) <= {one.value for one in TimeClass}


def test_a_stopwatch_that_runs_backwards_says_nothing() -> None:
    account = joined()
    account.reported(4.0, 1, TimeSpent(training=4.0))
    account.reported(5.0, 2, TimeSpent(training=1.0))
    assert told(account, 5.0) == {"pending": 4, "unexplained": 1}


def test_what_a_process_loaded_before_its_first_session_is_nobodys_time() -> None:
    account = joined()
    account.reported(3.0, 1, TimeSpent(training=1.0, loading=60.0))
    assert told(account, 3.0) == {"pending": 1, "loading": 2}


def test_a_new_process_explains_its_start_by_what_it_loaded() -> None:
    account = joined()
    account.reported(1.0, 1, TimeSpent(training=1.0))
    account.joined(11.0, 1, [-1], ONE, same_process=False)
    account.reported(15.0, 2, TimeSpent(training=1.0, loading=7.0))
    assert told(account, 15.0) == {"lost": 1, "pending": 1, "rejoining": 7, "away": 6}


def test_a_process_that_comes_back_explains_what_it_did_meanwhile() -> None:
    account = joined()
    account.reported(1.0, 1, TimeSpent(training=1.0))
    account.joined(11.0, 8, [0], ONE, same_process=True)
    assert told(account, 11.0) == {"pending": 1, "away": 10}
    account.reported(12.0, 9, TimeSpent(training=9.0, paused=3.0))
    assert told(account, 12.0) == {"pending": 9, "waiting": 3}


def test_a_version_swapped_in_without_a_session_is_known_from_the_next() -> None:
    account = joined()
    account.reported(4.0, 4, TimeSpent(training=4.0))
    account.left_out(0, 1, TimeClass.LATE)
    account.joined(5.0, 4, [1], ONE, same_process=True)
    account.reported(6.0, 5, TimeSpent(training=5.0, paused=1.0))
    assert told(account, 6.0) == {"late": 4, "waiting": 1, "pending": 1}


def test_a_fragment_counts_by_its_share_of_the_model() -> None:
    account = joined((0.75, 0.25))
    account.reported(4.0, 4, TimeSpent(training=4.0))
    account.captured(0, 1, 0, 4)
    account.decided(0, TimeClass.MERGED)
    assert told(account, 4.0) == {"merged": 3, "pending": 1}
    account.left_out(1, 1, TimeClass.LATE)
    account.received(1, 1, 4)
    assert told(account, 4.0) == {"merged": 3, "late": 1}


def test_steps_after_the_capture_are_overwritten_by_the_swap_in() -> None:
    account = joined()
    account.reported(4.0, 4, TimeSpent(training=4.0))
    account.captured(0, 1, 0, 4)
    account.reported(6.0, 6, TimeSpent(training=6.0))
    account.decided(0, TimeClass.MERGED)
    account.received(0, 1, 6)
    account.reported(7.0, 7, TimeSpent(training=7.0))
    assert told(account, 7.0) == {"merged": 4, "overwritten": 2, "pending": 1}


def test_a_swap_in_ahead_of_its_steps_report_is_settled_by_the_report() -> None:
    account = joined()
    account.reported(4.0, 4, TimeSpent(training=4.0))
    account.captured(0, 1, 0, 4)
    account.decided(0, TimeClass.MERGED)
    account.received(0, 1, 5)
    assert told(account, 4.0) == {"merged": 4}
    account.reported(6.0, 6, TimeSpent(training=6.0))
    assert told(account, 6.0) == {"merged": 4, "overwritten": 1, "pending": 1}


def test_a_report_of_just_the_last_step_settles_a_swap_in_ahead_of_it() -> None:
    account = joined()
    account.reported(4.0, 4, TimeSpent(training=4.0))
    account.received(0, 1, 5)
    account.reported(5.0, 5, TimeSpent(training=5.0))
    assert account.due == []
    account.reported(6.0, 6, TimeSpent(training=6.0))
    assert told(account, 6.0) == {"lost": 5, "pending": 1}


def test_training_time_without_a_whole_step_ends_with_the_version() -> None:
    account = joined()
    account.reported(4.0, 4, TimeSpent(training=4.0))
    account.captured(0, 1, 0, 4)
    account.decided(0, TimeClass.MERGED)
    account.reported(5.0, 4, TimeSpent(training=5.0))
    account.received(0, 1, 4)
    assert told(account, 5.0) == {"merged": 4, "overwritten": 1}


def test_any_number_of_swap_ins_ahead_of_their_reports_is_settled() -> None:
    account = joined()
    for version in range(1, 11):
        account.left_out(0, version, TimeClass.LATE)
        account.reported(2.0 * version - 1, 2 * version - 1, TimeSpent(training=2.0 * version - 1))
        account.received(0, version, 2 * version)
        account.reported(2.0 * version, 2 * version, TimeSpent(training=2.0 * version))
    assert told(account, 20.0) == {"late": 20}


def test_a_merge_ahead_of_its_steps_report_is_settled_by_the_report() -> None:
    account = joined()
    account.reported(3.0, 3, TimeSpent(training=3.0))
    account.captured(0, 1, 0, 4)
    account.decided(0, TimeClass.MERGED)
    account.reported(5.0, 5, TimeSpent(training=5.0))
    assert told(account, 5.0) == {"merged": 4, "pending": 1}


def test_an_outer_gradient_may_arrive_before_the_notice_of_its_base() -> None:
    account = joined()
    account.reported(4.0, 4, TimeSpent(training=4.0))
    account.captured(0, 1, 0, 4)
    account.decided(0, TimeClass.MERGED)
    account.reported(10.0, 10, TimeSpent(training=10.0))
    account.captured(0, 2, 1, 5)
    account.received(0, 1, 5)
    account.decided(0, TimeClass.MERGED)
    assert told(account, 10.0) == {"merged": 9, "overwritten": 1}


def test_an_outer_gradient_after_the_next_version_can_still_be_merged() -> None:
    account = joined()
    account.reported(4.0, 4, TimeSpent(training=4.0))
    account.left_out(0, 1, TimeClass.LATE)
    account.received(0, 1, 4)
    assert told(account, 4.0) == {"late": 4}
    account.captured(0, 2, 0, 3)
    assert told(account, 4.0) == {"late": 1, "pending": 3}
    account.captured(0, 2, 0, 3)
    account.decided(0, TimeClass.MERGED)
    assert told(account, 4.0) == {"late": 1, "merged": 3}


def test_the_first_reason_for_leaving_a_learner_out_of_a_version_counts() -> None:
    account = joined()
    account.reported(2.0, 2, TimeSpent(training=2.0))
    account.left_out(0, 1, TimeClass.OUTDATED)
    account.left_out(0, 1, TimeClass.LATE)
    account.received(0, 1, 2)
    assert told(account, 2.0) == {"outdated": 2}


def test_an_outer_gradient_for_a_version_long_made_changes_no_reason() -> None:
    account = joined()
    account.reported(2.0, 2, TimeSpent(training=2.0))
    account.left_out(0, 3, TimeClass.LATE)
    account.left_out(0, 1, TimeClass.OUTDATED)
    account.received(0, 3, 2)
    assert told(account, 2.0) == {"late": 2}


def test_a_reason_of_a_newer_round_outlasts_the_swap_in_of_an_older_one() -> None:
    account = joined()
    account.reported(2.0, 2, TimeSpent(training=2.0))
    account.left_out(0, 1, TimeClass.MISSED)
    account.left_out(0, 2, TimeClass.LATE)
    account.received(0, 1, 2)
    account.reported(3.0, 3, TimeSpent(training=3.0))
    account.received(0, 2, 3)
    assert told(account, 3.0) == {"late": 3}


def test_what_a_process_had_brought_before_it_ended_can_still_be_merged() -> None:
    account = joined()
    account.reported(4.0, 4, TimeSpent(training=4.0))
    account.captured(0, 1, 0, 3)
    account.joined(5.0, 4, [-1], ONE, same_process=False)
    assert told(account, 5.0) == {"pending": 3, "lost": 1, "away": 1}
    account.decided(0, TimeClass.MERGED)
    assert told(account, 5.0) == {"merged": 3, "lost": 1, "away": 1}


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


def test_a_closed_account_stands_still() -> None:
    account = joined()
    account.reported(2.0, 2, TimeSpent(training=2.0))
    account.close(3.0, since=TimeClass.PENDING, gone=False)
    assert told(account, 3.0) == {"pending": 3}
    assert account.kept()[TimeClass.PENDING] == 3.0


def test_a_learner_of_another_number_of_fragments_begins_anew() -> None:
    account = joined()
    account.reported(1.0, 1, TimeSpent(training=1.0))
    other = replace(account, marks=[])
    other.joined(1.0, 1, [0, 0], (0.5, 0.5), same_process=True)
    assert len(other.marks) == 2


def test_what_a_restored_account_does_not_explain_is_unexplained() -> None:
    account = Account({TimeClass.MERGED: 1.0}, accounted_seconds=5.0)
    assert told(account, 5.0) == {"merged": 1.0, "unexplained": 4.0}


@pytest.mark.parametrize(("steps", "into"), [(1, "overwritten"), (2, "unusable")])
def test_who_declines_after_more_than_a_step_could_not_send_what_it_had(steps: int, into: str) -> None:
    account = joined()
    account.reported(4.0, steps, TimeSpent(training=4.0))
    account.declined(0, 1)
    account.received(0, 1, steps)
    assert told(account, 4.0) == {into: 4}


def test_a_process_that_loads_a_fragment_again_loses_what_it_trained_on_it() -> None:
    account = joined()
    account.reported(4.0, 4, TimeSpent(training=4.0))
    account.joined(4.0, 4, [-1], ONE, same_process=True)
    account.received(0, 0, 4)
    assert told(account, 4.0) == {"lost": 4}


def test_a_reason_counts_for_one_version_only() -> None:
    account = joined()
    account.reported(2.0, 2, TimeSpent(training=2.0))
    account.left_out(0, 1, TimeClass.LATE)
    account.received(0, 1, 2)
    account.reported(3.0, 3, TimeSpent(training=3.0))
    account.received(0, 2, 3)
    assert told(account, 3.0) == {"late": 2, "missed": 1}


def test_what_a_report_makes_up_for_was_unexplained_first_and_then_away() -> None:
    account = joined()
    account.reported(2.0, 1, TimeSpent(training=1.0))
    account.joined(5.0, 1, [0], ONE, same_process=True)
    assert told(account, 5.0) == {"pending": 1, "unexplained": 1, "away": 3}
    account.reported(6.0, 2, TimeSpent(training=3.5))
    assert told(account, 6.0) == {"pending": 3.5, "away": 2.5}


def test_the_time_between_two_processes_stays_away_when_a_third_begins() -> None:
    account = joined()
    account.reported(1.0, 1, TimeSpent(training=1.0))
    account.joined(11.0, 1, [-1], ONE, same_process=False)
    account.joined(12.0, 1, [-1], ONE, same_process=False)
    assert told(account, 12.0) == {"lost": 1, "away": 11}


def test_what_comes_after_the_next_version_is_taken_back_step_by_step() -> None:
    account = joined()
    account.reported(4.0, 4, TimeSpent(training=4.0))
    account.left_out(0, 1, TimeClass.LATE)
    account.received(0, 1, 4)
    for steps in (1, 3, 2):
        account.captured(0, 2, 0, steps)
    assert told(account, 4.0) == {"late": 1, "pending": 3}
    account.captured(0, 2, 0, 9)
    assert told(account, 4.0) == {"pending": 4}


def test_an_outer_gradient_of_a_version_without_a_step_takes_nothing_back() -> None:
    account = joined()
    account.reported(4.0, 4, TimeSpent(training=4.0))
    account.received(0, 1, 4)
    account.received(0, 2, 4)
    account.captured(0, 3, 1, 2)
    assert told(account, 4.0) == {"lost": 4}


@pytest.mark.parametrize(("versions", "split"), [(4, {"late": 3, "pending": 1}), (5, {"late": 5})])
def test_an_outer_gradient_is_found_again_up_to_four_versions_behind(versions: int, split: dict[str, float]) -> None:
    account = joined()
    for version in range(1, versions + 1):
        account.reported(float(version), version, TimeSpent(training=float(version)))
        account.left_out(0, version, TimeClass.LATE)
        account.received(0, version, version)
    account.captured(0, versions + 1, 0, 1)
    assert told(account, float(versions)) == split
