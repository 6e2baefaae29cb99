"""Rounds: quorum, grace, stragglers, late and repeated pushes, joins and losses in the middle, out-of-order rounds."""

from typing import Any

import pytest

from diloco.core.engine.actions import AskFragment, Broadcast, Discard, Merge, Note, SetTimer
from diloco.core.engine.events import FragmentArrived, FragmentLate, TimerFired
from tests.support.engine_script import Script, launched, members, name, of, only, options, started, stepped


def test_a_due_step_asks_every_learner_that_trains() -> None:
    script = started()
    actions = script.step(0)
    assert [(ask.learner, ask.fragment, ask.version) for ask in of(actions, AskFragment)] == [
        (name(0), 0, 1),
        (name(1), 0, 1),
        (name(2), 0, 1),
    ]


def test_the_round_waits_for_the_quorum_however_long() -> None:
    script = launched(3, 0, 1, quorum=2)
    assert not of(script.push(0, 0), Merge)
    for _ in range(3):
        for index in range(3):
            script.step(index)
        assert not of(script.wait(5.0), Merge)
    assert len(only(script.push(1, 0), Merge).members) == 2


def test_all_answers_close_the_round_without_waiting() -> None:
    script = launched(3, 0)
    script.push(0, 0)
    script.push(1, 0)
    merge = only(script.push(2, 0), Merge)
    assert [member.learner for member in merge.members] == [name(0), name(1), name(2)]
    assert "every learner" in merge.reason


def test_grace_admits_who_becomes_ready_within_it() -> None:
    script = launched(3, 0)  # the others train, and have made no step
    window = only(script.push(0, 0), SetTimer)
    # tau x step = 2 s of overlap, nothing used yet: half of it is one step.
    assert window.at - script.now == pytest.approx(1.0)
    script.wait(0.9)
    script.step(1)
    script.push(1, 0)
    assert members(script.wait(0.2)) == [[name(0), name(1)]]


def test_grace_excludes_who_comes_after_it_and_says_so() -> None:
    script = launched(3, 0)
    script.push(0, 0)
    actions = script.wait(1.1)
    assert {(note.learner, note.kind) for note in of(actions, Note)} == {
        (name(1), "LearnerExcluded"),
        (name(2), "LearnerExcluded"),
    }
    late = only(script.push(1, 0), Discard)
    assert "frozen" in late.reason
    script.merge_done(only(actions, Merge))
    later = only(script.push(2, 0), Discard)
    assert "the fragment is at version 1" in later.reason


def test_a_slow_merge_leaves_no_slack_for_grace() -> None:
    script = stepped()
    script.push(0, 0)
    merge = only(script.push(1, 0), Merge)
    script.now += 5.0  # much longer than the overlap of two steps
    script.merge_done(merge)
    script.step(0)
    assert "grace 0.000 s" in of(script.push(0, 1), Note)[0].reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attempt": 7}, "attempt 7"),
        ({"version": 5}, "late"),
        ({"base_version": 3}, "behind"),
        ({"incarnation": 99}, "session is over"),
        ({"learner": "nobody/at/0"}, "session is over"),
    ],
)
def test_a_push_that_was_not_asked_for_is_dropped(changes: dict[str, Any], reason: str) -> None:
    script = launched(3, 0)
    assert reason in only(script.push(0, 0, **changes), Discard).reason


@pytest.mark.parametrize("when", ["waited with", "frozen", "merged", "merged, its session over"])
def test_what_counts_is_not_dropped_when_it_is_told_again(when: str) -> None:
    script = launched(3, 0)
    merge = of(script.push(0, 0), Merge)
    if when != "waited with":
        merge = [*of(script.push(1, 0), Merge), *of(script.push(2, 0), Merge)]
        assert len(merge) == 1
    if "merged" in when:
        script.merge_done(merge[0])
    if "session" in when:
        script.leave(0)
    actions = script.push(0, 0)
    assert not of(actions, Discard)
    assert only(actions, Note).kind == "Repeated"


def test_a_push_of_a_second_process_for_the_same_merge_is_dropped() -> None:
    script = launched(3, 0)
    script.push(0, 0)
    script.rejoin(0, "another")
    script.do(FragmentArrived(name(0), script.incarnations[0], 0, 1, 1, 0, 4, 400, 64, "f" * 32))
    dropped = script.all(Discard)
    assert [(one.incarnation, one.attempt) for one in dropped] == [(script.incarnations[0], 1)]
    script.push(1, 0)
    merge = only(script.push(2, 0), Merge)
    assert merge.members[0].incarnation != script.incarnations[0]


def test_an_attempt_is_not_given_again_after_a_round_that_was_abandoned() -> None:
    script = stepped(1)
    first = script.asks[0, 0]
    assert only(script.decline(0, 0), Note).kind == "RoundAbandoned"
    while script.asks[0, 0] is first:
        script.step(0)
        for fragment in range(1, 4):
            if (0, fragment) in script.asks:
                for merge in of(script.push(0, fragment), Merge):
                    script.merge_done(merge)
    again = script.asks[0, 0]
    assert (first.version, again.version) == (1, 1)
    assert (first.attempt, again.attempt) == (1, 2)
    stale = script.push(0, 0, attempt=first.attempt)
    assert "attempt 1 was not requested, or no longer is" in only(stale, Discard).reason
    assert only(script.push(0, 0), Merge).version == 1


def test_an_outer_gradient_may_lag_as_far_as_the_job_allows() -> None:
    script = started(1, fragments=1)
    for version in (1, 2, 3):
        script.step(0)
        script.merge_done(only(script.push(0, 0, base_version=max(0, version - 2)), Merge))
    script.step(0)
    stale = only(script.push(0, 0, base_version=1), Discard)
    assert "2 behind; sync.maxVersionLag is 1" in stale.reason


def test_who_declines_is_not_waited_for() -> None:
    script = launched(3, 0)
    script.decline(1, 0)
    script.decline(2, 0)
    assert members(script.push(0, 0)) == [[name(0)]]


def test_a_round_in_which_nobody_has_work_is_given_up() -> None:
    script = launched(2, 0)
    script.decline(0, 0)
    actions = script.decline(1, 0)
    assert "RoundAbandoned" in {note.kind for note in of(actions, Note)}
    assert of(script.step(0), AskFragment)[0].fragment == 1


def test_a_learner_lost_in_mid_round_is_not_waited_for() -> None:
    script = launched(3, 0)
    script.push(0, 0)
    script.push(1, 0)
    assert members(script.leave(2)) == [[name(0), name(1)]]


def test_what_a_lost_learner_brought_in_full_still_counts() -> None:
    script = launched(3, 0)
    script.push(0, 0)
    script.leave(0)
    script.push(1, 0)
    assert members(script.push(2, 0)) == [[name(0), name(1), name(2)]]


def test_a_learner_that_begins_in_mid_round_is_asked_too() -> None:
    script = stepped(quorum=2)
    script.leave(1)
    script.push(0, 0)
    asked = only(script.begin(1, versions=(0, 0, 0, 0)), AskFragment)
    assert (asked.fragment, asked.version) == (0, 1)
    assert len(only(script.push(1, 0), Merge).members) == 2


def test_the_result_goes_to_everyone_who_is_in() -> None:
    script = Script(options(3))
    script.start(0, 1)
    script.step(0)
    script.join(2)
    script.push(0, 0)
    broadcast = only(script.merge_done(only(script.push(1, 0), Merge)), Broadcast)
    assert [(learner, merged) for learner, _, merged in broadcast.learners] == [
        (name(0), True),
        (name(1), True),
        (name(2), False),
    ]


def test_a_repeated_result_and_the_timer_of_an_old_round_change_nothing() -> None:
    script = stepped(1)
    merge = only(script.push(0, 0), Merge)
    script.merge_done(merge)
    assert script.merge_done(merge) == []
    assert script.do(TimerFired("round/0")) == []
    assert script.view.syncer_step == 1


def test_the_bytes_of_what_belongs_to_a_round_are_counted() -> None:
    script = stepped()
    script.push(0, 0, attempt=7, payload_bytes=1)
    assert script.learner(0).pushed_bytes == 0
    script.push(0, 0, payload_bytes=64)
    script.merge_done(only(script.push(1, 0), Merge))
    script.step(0)
    script.push(0, 1, payload_bytes=32)
    assert [one.pushed_bytes for one in script.view.learners] == [96, 64]


def test_attempts_count_anew_for_the_next_version() -> None:
    script = stepped(1, fragments=1)
    script.decline(0, 0)
    for version, attempt in ((1, 2), (2, 1)):
        script.step(0)
        assert (script.asks[0, 0].version, script.asks[0, 0].attempt) == (version, attempt)
        script.merge_done(only(script.push(0, 0), Merge))


def test_what_came_for_a_round_that_the_budget_ends_is_dropped() -> None:
    script = stepped(3, quorum=2, budget_tokens=150)
    script.step(0)
    script.step(1)
    script.push(0, 0)
    script.push(0, 1)
    script.push(1, 1)
    dropped = only(script.merge_done(only(script.wait(2.0), Merge)), Discard)
    assert (dropped.learner, dropped.fragment, dropped.attempt) == (name(0), 0, 1)
    assert dropped.reason == "the budget is merged"


@pytest.mark.parametrize("nothing", [{"steps": 0, "tokens": 400}, {"steps": 4, "tokens": 0}])
def test_a_push_without_steps_or_without_tokens_is_nothing_to_merge(nothing: dict[str, int]) -> None:
    script = launched(3, 0)
    dropped = only(script.push(0, 0, **nothing), Discard)
    assert dropped.reason == "it covers no steps or no tokens that count, so its weight is 0"
    script.push(1, 0, steps=1, tokens=1)
    assert members(script.push(2, 0)) == [[name(1), name(2)]]


def test_one_late_push_tells_once_how_long_its_learner_takes() -> None:
    script = stepped()
    script.push(0, 0)
    assert of(script.wait(9.0), Merge)
    ask = script.asks[1, 0]
    late = FragmentLate(name(1), ask.incarnation, 0, ask.version, ask.attempt)
    script.do(late)
    told = script.learner(1).answer_seconds
    assert told is not None
    script.wait(0.5)
    script.do(late)
    assert script.learner(1).answer_seconds == told
