"""Rounds: quorum, grace, stragglers, late and repeated pushes, joins and losses in the middle, out-of-order rounds."""

import itertools
from typing import Any

import pytest

from diloco.core.actions import Action, Admit, AskFragment, Broadcast, Discard, Merge, Note, SetTimer
from diloco.core.engine import Engine
from diloco.core.events import FragmentArrived, FragmentLate, TimerFired
from tests.support.engine_script import Script, name, of, only, options


def started(learners: int = 3, **changes: Any) -> Script:
    script = Script(options(learners, **changes))
    script.start(*range(learners))
    return script


def test_a_due_step_asks_every_learner_that_trains() -> None:
    script = started()
    actions = script.step(0)
    assert [(ask.learner, ask.fragment, ask.version) for ask in of(actions, AskFragment)] == [
        (name(0), 0, 1),
        (name(1), 0, 1),
        (name(2), 0, 1),
    ]


def test_a_learner_that_loads_is_not_asked() -> None:
    script = Script(options(2))
    script.start(0)
    script.join(1)
    assert [ask.learner for ask in of(script.step(0), AskFragment)] == [name(0)]


def test_the_round_waits_for_the_quorum_however_long() -> None:
    script = started(quorum=2)
    script.step(0)
    script.step(1)
    assert not of(script.push(0, 0), Merge)
    for _ in range(3):
        for index in range(3):
            script.step(index)
        assert not of(script.wait(5.0), Merge)
    assert len(only(script.push(1, 0), Merge).members) == 2


def test_all_answers_close_the_round_without_waiting() -> None:
    script = started()
    script.step(0)
    script.push(0, 0)
    script.push(1, 0)
    merge = only(script.push(2, 0), Merge)
    assert [member.learner for member in merge.members] == [name(0), name(1), name(2)]
    assert sum(member.weight for member in merge.members) == pytest.approx(1.0)
    assert "every learner" in merge.reason


def not_ready(script: Script, *indices: int) -> None:
    """Learners that train and have made no step yet, so that they have nothing to send."""
    script.step(0)
    for index in indices:
        assert (index, 0) in script.asks


def test_grace_admits_who_becomes_ready_within_it() -> None:
    script = started()
    not_ready(script, 1, 2)
    window = only(script.push(0, 0), SetTimer)
    # tau x step = 2 s of overlap, nothing used yet: half of it is one step.
    assert window.at - script.now == pytest.approx(1.0)
    script.wait(0.9)
    script.step(1)
    script.push(1, 0)
    merge = only(script.wait(0.2), Merge)
    assert [member.learner for member in merge.members] == [name(0), name(1)]


def test_grace_excludes_who_comes_after_it_and_says_so() -> None:
    script = started()
    not_ready(script, 1, 2)
    script.push(0, 0)
    actions = script.wait(1.1)
    assert {(note.learner, note.subject) for note in of(actions, Note)} == {
        (name(1), "LearnerExcluded"),
        (name(2), "LearnerExcluded"),
    }
    late = only(script.push(1, 0), Discard)
    assert "frozen" in late.reason
    script.merge_done(only(actions, Merge))
    later = only(script.push(2, 0), Discard)
    assert "the fragment is at version 1" in later.reason


def test_no_grace_where_safety_is_zero() -> None:
    script = started(grace_safety=0.0)
    script.step(0)
    assert len(only(script.push(0, 0), Merge).members) == 1


def test_a_slow_merge_leaves_no_slack_for_grace() -> None:
    script = started(learners=2)
    script.step(0)
    script.step(1)
    script.push(0, 0)
    merge = only(script.push(1, 0), Merge)
    script.now += 5.0  # much longer than the overlap of two steps
    script.merge_done(merge)
    script.step(0)
    assert "grace 0.000 s" in of(script.push(0, 1), Note)[0].reason


def test_a_straggler_s_work_counts_by_its_tokens_and_their_quality() -> None:
    script = started(learners=2)
    script.step(0)
    script.push(0, 0, steps=4)
    merge = only(script.push(1, 0, steps=2), Merge)
    # w = tokens x tokens / steps = steps x 100^2 here
    assert [member.weight for member in merge.members] == pytest.approx([2 / 3, 1 / 3])


def test_weights_are_alike_where_the_job_wants_no_token_weights() -> None:
    script = started(learners=2, token_weights=False)
    script.step(0)
    script.push(0, 0, steps=4)
    merge = only(script.push(1, 0, steps=1), Merge)
    assert [member.weight for member in merge.members] == [0.5, 0.5]


def test_a_repeated_push_counts_once() -> None:
    script = started()
    script.step(0)
    script.push(0, 0)
    again = only(script.push(0, 0), Note)
    assert again.subject == "Repeated"
    script.push(1, 0)
    assert len(only(script.push(2, 0), Merge).members) == 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attempt": 7}, "attempt 7"),
        ({"version": 5}, "late"),
        ({"base_version": 3}, "behind"),
        ({"incarnation": 99}, "session is over"),
        ({"steps": 0}, "weight is 0"),
    ],
)
def test_a_push_that_was_not_asked_for_is_dropped(changes: dict[str, int], reason: str) -> None:
    script = started()
    script.step(0)
    assert reason in only(script.push(0, 0, **changes), Discard).reason


@pytest.mark.parametrize("when", ["waited with", "frozen", "merged", "merged, its session over"])
def test_what_counts_is_not_dropped_when_it_is_told_again(when: str) -> None:
    script = started()
    script.step(0)
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
    assert only(actions, Note).subject == "Repeated"


def test_a_push_of_a_second_process_for_the_same_merge_is_dropped() -> None:
    script = started()
    script.step(0)
    script.push(0, 0)
    script.leave(0)
    script.join(0, "another")
    script.ready(0)
    script.do(FragmentArrived(name(0), script.incarnations[0], 0, 1, 1, 0, 4, 400, 64, "f" * 32))
    dropped = script.all(Discard)
    assert [(one.incarnation, one.attempt) for one in dropped] == [(script.incarnations[0], 1)]
    script.push(1, 0)
    merge = only(script.push(2, 0), Merge)
    assert merge.members[0].incarnation != script.incarnations[0]


def test_an_attempt_is_not_given_again_after_a_round_that_was_abandoned() -> None:
    script = started(1)
    script.step(0)
    first = script.asks[0, 0]
    assert only(script.decline(0, 0), Note).subject == "RoundAbandoned"
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
    script = started(learners=1, fragments=1)
    for version in (1, 2, 3):
        script.step(0)
        script.merge_done(only(script.push(0, 0, base_version=max(0, version - 2)), Merge))
    script.step(0)
    stale = only(script.push(0, 0, base_version=1), Discard)
    assert "2 behind; sync.maxVersionLag is 1" in stale.reason


def test_who_declines_is_not_waited_for() -> None:
    script = started()
    script.step(0)
    script.decline(1, 0)
    script.decline(2, 0)
    assert [member.learner for member in only(script.push(0, 0), Merge).members] == [name(0)]


def test_a_round_in_which_nobody_has_work_is_given_up() -> None:
    script = started(learners=2)
    script.step(0)
    script.decline(0, 0)
    actions = script.decline(1, 0)
    assert "RoundAbandoned" in {note.subject for note in of(actions, Note)}
    assert of(script.step(0), AskFragment)[0].fragment == 1


def test_a_learner_lost_in_mid_round_is_not_waited_for() -> None:
    script = started()
    script.step(0)
    script.push(0, 0)
    script.push(1, 0)
    merge = only(script.leave(2), Merge)
    assert [member.learner for member in merge.members] == [name(0), name(1)]


def test_what_a_lost_learner_brought_in_full_still_counts() -> None:
    script = started()
    script.step(0)
    script.push(0, 0)
    script.leave(0)
    script.push(1, 0)
    merge = only(script.push(2, 0), Merge)
    assert [member.learner for member in merge.members] == [name(0), name(1), name(2)]


def test_a_learner_that_begins_in_mid_round_is_asked_too() -> None:
    script = Script(options(2, quorum=2))
    script.start(0, 1)
    script.step(0)
    script.step(1)
    script.leave(1)
    script.push(0, 0)
    script.join(1, versions=(0, 0, 0, 0))
    asked = only(script.ready(1), AskFragment)
    assert (asked.fragment, asked.version) == (0, 1)
    assert len(only(script.push(1, 0), Merge).members) == 2


def test_an_unanswered_ask_is_repeated_each_time_after_longer() -> None:
    script = started(learners=2, quorum=2)
    script.step(0)
    script.step(1)
    script.push(0, 0)
    seen = []
    for _ in range(100):
        script.step(0)
        script.step(1)
        asks = of(script.wait(1.0), AskFragment)
        seen += [(script.now, ask.attempt) for ask in asks if (ask.learner, ask.fragment) == (name(1), 0)]
    assert [attempt for _, attempt in seen] == [2, 3, 4]
    gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(seen)]
    assert gaps[1] == pytest.approx(2 * gaps[0])
    assert "attempt 1" in only(script.push(1, 0, attempt=1), Discard).reason
    assert of(script.push(1, 0), Merge)


def test_two_fragments_in_flight_end_in_any_order() -> None:
    script = started(learners=2)
    for index in range(2):
        script.step(index)
    script.step(0)
    assert {ask.fragment for ask in script.all(AskFragment)} == {0, 1}
    script.push(0, 1)
    second = only(script.push(1, 1), Merge)
    script.push(0, 0)
    first = only(script.push(1, 0), Merge)
    assert of(script.merge_done(second), Broadcast)[0].fragment == 1
    assert of(script.merge_done(first), Broadcast)[0].fragment == 0
    assert script.engine.view(script.now).versions == (1, 1, 0, 0)


def test_no_more_fragments_are_in_flight_than_the_overlap_holds() -> None:
    script = started(learners=1, overlap=2)
    for _ in range(10):
        script.step(0)
    assert {ask.fragment for ask in script.all(AskFragment)} == {0, 1}


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


def test_a_repeated_merge_result_changes_nothing() -> None:
    script = started(learners=1)
    script.step(0)
    merge = only(script.push(0, 0), Merge)
    script.merge_done(merge)
    assert script.merge_done(merge) == []
    assert script.engine.view(script.now).syncer_step == 1


def test_the_same_events_give_the_same_actions() -> None:
    def run() -> list[Action]:
        script = started()
        for turn in range(12):
            for index in (2, 0, 1):
                script.step(index, seconds=1.0 + 0.1 * index)
                for fragment in range(4):
                    if (index, fragment) in script.asks:
                        script.push(index, fragment, steps=turn + 1)
            for merge in script.all(Merge):
                script.merge_done(merge)
            script.wait(0.7)
        return [action for _, action in script.log]

    assert run() == run()


def test_order_of_arrival_changes_neither_members_nor_weights() -> None:
    def merged_in(order: tuple[int, ...]) -> Merge:
        script = started()
        script.step(0)
        for index in order:
            script.push(index, 0, steps=index + 1)
        return script.all(Merge)[0]

    first, second = merged_in((0, 1, 2)), merged_in((2, 1, 0))
    assert first.members == second.members


def test_timers_of_rounds_that_are_over_do_nothing() -> None:
    script = started(learners=1)
    script.step(0)
    script.merge_done(only(script.push(0, 0), Merge))
    assert script.do(TimerFired("round/0")) == []


def test_a_push_from_nowhere_is_dropped() -> None:
    engine = Engine(options(1), 1)
    event = FragmentArrived("nobody/at/0", 1, 0, 1, 1, 0, 1, 1, 1, "0" * 32)
    assert isinstance(engine.step(event, 0.0)[0], Discard)


def test_admit_is_the_first_answer_to_a_join() -> None:
    script = Script(options(1))
    assert only(script.join(0), Admit).load == (0, 1, 2, 3)


@pytest.mark.parametrize("nothing", [{"steps": 0, "tokens": 400}, {"steps": 4, "tokens": 0}])
def test_a_push_without_steps_or_without_tokens_is_nothing_to_merge(nothing: dict[str, int]) -> None:
    script = started()
    script.step(0)
    dropped = only(script.push(0, 0, **nothing), Discard)
    assert dropped.reason == "it covers no steps or no tokens, so its weight is 0"
    script.push(1, 0)
    assert [member.learner for member in only(script.push(2, 0), Merge).members] == [name(1), name(2)]


def test_one_late_push_tells_once_how_long_its_learner_takes() -> None:
    script = started(learners=2)
    script.step(0)
    script.step(1)
    script.push(0, 0)
    assert of(script.wait(9.0), Merge)
    ask = script.asks[1, 0]
    late = FragmentLate(name(1), ask.incarnation, 0, ask.version, ask.attempt)
    script.do(late)
    told = script.engine.view(script.now).learners[1].answer_seconds
    assert told is not None
    script.wait(0.5)
    script.do(late)
    assert script.engine.view(script.now).learners[1].answer_seconds == told
