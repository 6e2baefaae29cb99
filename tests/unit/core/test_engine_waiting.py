"""Membership by readiness: requests ahead, waits, and what a slow, dying or hostile learner costs."""

import dataclasses
from typing import Any

import pytest

from diloco.core.actions import AskFragment, Merge, Note
from diloco.core.events import FragmentLate
from diloco.core.options import Rules
from tests.support.engine_script import Script, name, of, only, options

INTERVAL = 12


def started(learners: int = 3, **changes: Any) -> Script:
    script = Script(options(learners, fragments=INTERVAL, grace_safety=0.0, **changes))
    script.start(*range(learners))
    return script


def turn(script: Script, answers: dict[int, float]) -> list[Merge]:
    """Every learner makes a step of a second; each then answers its requests, after its own time.

    ``answers``: seconds by learner, for a fragment of mean size.
    """
    asks = [ask for index in answers for ask in of(script.step(index), AskFragment)]
    learners = [int(ask.learner[-1]) for ask in asks]
    due = [
        (script.now + answers[index] * script.options.size(ask.fragment), index, ask.fragment)
        for index, ask in zip(learners, asks, strict=True)
    ]
    end, seen = script.now + 1.0, len(script.log)
    for at, index, fragment in sorted(due):
        if at < end:
            script.wait(max(0.0, at - script.now))
            if script.incarnations[index] == script.asks[index, fragment].incarnation:
                script.push(index, fragment, steps=INTERVAL)
    script.wait(max(0.0, end - script.now))
    merges = [action for _, action in script.log[seen:] if isinstance(action, Merge)]
    for merge in merges:
        script.merge_done(merge)
        for index in answers:  # learners that are not members receive it too
            if name(index) not in members(merge):
                script.applied(index, merge.fragment, merge.version)
    return merges


def warmed_up(answers: dict[int, float], turns: int = 2 * INTERVAL, **changes: Any) -> Script:
    """Let every learner's time to answer be measured."""
    script = started(len(answers), **changes)
    for _ in range(turns):
        turn(script, answers)
    return script


def due_fragment(script: Script) -> int:
    """The first two learners make a step; returns the fragment that it makes due."""
    asks = [*of(script.step(1), AskFragment), *of(script.step(0), AskFragment)]
    return next(ask.fragment for ask in asks if ask.learner == name(0))


def missed(script: Script, index: int) -> bool:
    return script.engine.view(script.now).learners[index].missed


def members(merge: Merge) -> list[str]:
    return [member.learner for member in merge.members]


def reasons(script: Script, subject: str) -> list[str]:
    return [note.reason for note in script.all(Note) if note.subject == subject]


def test_the_answers_of_ready_learners_are_waited_for() -> None:
    script = warmed_up({0: 0.01, 1: 0.4, 2: 0.6})
    assert members(turn(script, {0: 0.01, 1: 0.4, 2: 0.6})[-1]) == [name(0), name(1), name(2)]
    assert any("waits for here/pool/1 at most" in reason for reason in reasons(script, "RoundWaits"))


def test_under_the_first_rules_only_what_has_arrived_is_merged() -> None:
    script = warmed_up({0: 0.01, 1: 0.4, 2: 0.6}, rules=Rules.ARRIVED)
    assert members(turn(script, {0: 0.01, 1: 0.4, 2: 0.6})[-1]) == [name(0)]


def test_a_learner_that_dies_while_it_is_waited_for_ends_the_wait() -> None:
    script = warmed_up({0: 0.01, 1: 0.4})
    fragment = due_fragment(script)
    script.wait(0.01)
    assert not of(script.push(0, fragment), Merge)
    merge = only(script.leave(1), Merge)
    assert members(merge) == [name(0)]


def test_a_stalled_transfer_delays_one_round_at_most_to_its_deadline() -> None:
    script = warmed_up({0: 0.01, 1: 0.4})
    stalled: list[tuple[float, Merge]] = []
    for _ in range(4):
        fragment, began = due_fragment(script), script.now
        script.wait(0.01)
        script.push(0, fragment, steps=INTERVAL)
        script.wait(began + 1.0 - script.now)
        for at, action in script.log:
            if isinstance(action, Merge) and at >= began and members(action) == [name(0)]:
                stalled.append((at - began, action))
                script.merge_done(action)
    delays = [delay for delay, _ in stalled]
    assert 0.4 < delays[0] < 0.8
    assert all(delay < 0.1 for delay in delays[1:])
    assert any("has not answered since it was last waited for" in reason for reason in reasons(script, "RoundWaits"))


def test_a_learner_that_missed_its_deadline_is_awaited_after_a_late_answer() -> None:
    script = warmed_up({0: 0.01, 1: 0.4})
    fragment = due_fragment(script)
    script.wait(0.01)
    script.push(0, fragment)
    script.merge_done(only(script.wait(1.0), Merge))
    assert missed(script, 1)
    ask = script.asks[1, fragment]
    script.do(FragmentLate(name(1), ask.incarnation, fragment, ask.version, ask.attempt + 1))  # never requested
    assert missed(script, 1)
    script.do(FragmentLate(name(1), ask.incarnation, fragment, ask.version, ask.attempt))
    assert not missed(script, 1)


def test_a_far_learner_is_asked_ahead_of_the_launch() -> None:
    answers = {0: 0.01, 1: 0.01, 2: 0.01, 3: 0.9}
    script = warmed_up(answers)
    asks = of(script.step(0), AskFragment)
    ahead = [ask for ask in asks if "before syncer step" in ask.reason]
    assert [ask.learner for ask in ahead] == [name(3)]
    assert "its answer takes 0.897 s" in ahead[0].reason


def test_what_comes_ahead_of_the_launch_is_merged_with_the_others() -> None:
    answers = {0: 0.01, 1: 0.01, 2: 0.01, 3: 0.9}
    script = warmed_up(answers)
    merged = [merge for _ in range(INTERVAL) for merge in turn(script, answers)]
    assert sum(len(merge.members) for merge in merged) / len(merged) > 3.7


def test_an_answer_ahead_of_the_launch_begins_no_merge() -> None:
    script = warmed_up({0: 0.01, 1: 0.01, 2: 0.01, 3: 0.9})
    ahead = next(ask for ask in of(script.step(0), AskFragment) if "before syncer step" in ask.reason)
    assert not of(script.push(3, ahead.fragment, steps=INTERVAL), Merge)
    assert not of(script.wait(5.0), Merge) or ahead.fragment not in [m.fragment for m in script.all(Merge)[-2:]]


def test_a_large_fragment_is_waited_for_as_long_as_its_size_takes() -> None:
    large = 7 / (7 + INTERVAL - 1)
    shares = (large, *((1 - large) / (INTERVAL - 1),) * (INTERVAL - 1))
    answers = {0: 0.01, 1: 0.12}  # the large fragment takes half a step
    script = warmed_up(answers, 3 * INTERVAL, shares=shares)
    merged = [merge for _ in range(2 * INTERVAL) for merge in turn(script, answers)]
    assert [len(merge.members) for merge in merged if merge.fragment == 0] == [2, 2]


def test_a_learner_that_becomes_ready_while_a_round_waits_is_awaited_too() -> None:
    script = warmed_up({0: 0.01, 1: 0.4, 2: 0.4})
    script.leave(2)
    script.join(2, "another process")
    script.ready(2)  # it has the model, and nothing to send yet
    fragment = due_fragment(script)
    script.wait(0.01)
    script.push(0, fragment)
    script.step(2, INTERVAL)
    assert any(reason.startswith("here/pool/2 is ready now") for reason in reasons(script, "RoundWaits"))


def test_a_silent_learner_costs_others_one_wait_a_fragment_in_flight() -> None:
    script = warmed_up({0: 0.01, 1: 0.01, 2: 0.01})
    waits = len(reasons(script, "RoundWaits"))
    for _ in range(INTERVAL):
        turn(script, {0: 0.01, 1: 0.01, 2: 100.0})
    awaited = [reason for reason in reasons(script, "RoundWaits")[waits:] if "waits for here/pool/2" in reason]
    assert len(awaited) <= 4


def test_a_quorum_above_the_number_of_ready_learners_waits_for_them() -> None:
    script = started(learners=3, quorum=3)
    for index in range(3):
        script.step(index)
    script.push(0, 0)
    assert not of(script.push(1, 0), Merge)
    assert not of(script.wait(5.0), Merge)
    assert len(only(script.push(2, 0), Merge).members) == 3


@pytest.mark.parametrize("incarnation_off", [0, 1])
def test_a_late_push_of_nobody_changes_nothing(incarnation_off: int) -> None:
    script = started()
    late = FragmentLate("nobody/at/0", incarnation_off, 0, 1, 1)
    assert script.do(late) == []
    mine = dataclasses.replace(late, learner=name(0), incarnation=script.incarnations[0] + incarnation_off)
    assert script.do(mine) == []


def test_every_wait_says_until_when_and_why() -> None:
    script = warmed_up({0: 0.01, 1: 0.4})
    for reason in reasons(script, "RoundWaits"):
        assert "quorum of 1 after" in reason
        assert "grace" in reason
        assert "the bound is" in reason


def launched_with_one_member(script: Script, *, received: bool) -> None:
    """As many fragments in flight as allowed, each with only the first learner's work, which gets no result."""
    for _ in range(2):
        script.step(0)
        fragment = script.all(AskFragment)[-1].fragment
        merge = only(script.push(0, fragment), Merge)
        script.merge_done(merge, applied=False)
        if received:
            script.applied(1, fragment, merge.version)


def one_round(script: Script) -> None:
    """A round takes a tenth of a second from here on."""
    script.step(0)
    merge = only(script.push(0, 0), Merge)
    script.now += 0.1
    script.merge_done(merge)


def test_a_member_that_cannot_receive_the_result_holds_up_nobody_for_long() -> None:
    script = started(learners=2)
    one_round(script)
    launched_with_one_member(script, received=True)
    assert not of(script.step(0), AskFragment)
    script.wait(0.5)
    assert of(script.step(0), AskFragment)


def test_a_result_that_nobody_receives_is_in_flight() -> None:
    script = started(learners=2)
    one_round(script)
    launched_with_one_member(script, received=False)
    script.wait(0.5)
    assert not of(script.step(0), AskFragment)
