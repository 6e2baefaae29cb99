"""Requests ahead of a launch: never for what cannot be launched, closed or merged."""

from typing import Any

from diloco.core.engine.actions import Action, AskFragment, Discard, Merge
from diloco.core.engine.rounds import requests
from diloco.core.engine.rounds.averages import SizedSpread
from diloco.spec.status.engine import LearnerState
from tests.support.engine_script import Script, name, of, only, stepped


def plan(script: Script, **answers: float) -> None:
    """Set every learner's usual time to answer, in seconds: ``far`` for the last one, 0.01 for the others."""
    last = len(script.options.learners) - 1
    for index in range(last + 1):
        seconds = answers["far"] if index == last else 0.01
        slope = answers.get("slope", 0.0) if index == last else 0.0
        script.state.learners[name(index)].answer_seconds = SizedSpread(seconds, 0.0, slope)
    requests.plan_leads(script.state)


def training(learners: int, *, far: float, **changes: Any) -> Script:
    """Every learner has made a step of a second; the first fragment is launched."""
    script = stepped(learners, grace_safety=0.0, **changes)
    plan(script, far=far)
    return script


def asked(actions: list[Action]) -> list[tuple[str, int, int]]:
    return [(ask.learner, ask.fragment, ask.version) for ask in of(actions, AskFragment)]


def merge(script: Script, fragment: int, *learners: int) -> Merge:
    """These learners send the fragment, and no other learner is asked for it."""
    actions = [action for index in learners for action in script.push(index, fragment)]
    return only(actions, Merge)


def test_who_has_no_lead_is_asked_at_the_launch_however_long_that_waits() -> None:
    script = training(4, far=0.9, overlap=1)
    ahead = [one for index in range(4) for one in asked(script.step(index))]
    assert ahead == [(name(3), 1, 1), (name(3), 2, 1)]
    script.push(3, 1)
    launched = asked(script.merge_done(merge(script, 0, 0, 1, 2, 3)))
    assert [one for one in launched if one[1] == 1] == [(name(index), 1, 1) for index in range(3)]
    assert merge(script, 1, 0, 1, 2).version == 1


def test_the_next_processs_answer_beside_one_asked_ahead_is_dropped() -> None:
    script = training(4, far=0.9, overlap=1)
    for index in range(4):
        script.step(index)
    script.push(3, 1)
    script.rejoin(3, "another")
    script.decline(3, 0)
    script.merge_done(merge(script, 0, 0, 1, 2))
    assert only(script.push(3, 1), Discard).reason == "the learner has already sent it"


def test_nobody_is_asked_ahead_once_the_budget_is_merged() -> None:
    script = training(4, far=0.9, overlap=1, budget_tokens=1, fragments=1, interval=4)
    for index in range(3):
        script.step(index, 3)
    script.step(3, 3)
    script.merge_done(merge(script, 0, 0, 1, 2, 3))
    plan(script, far=0.9)
    assert [one for _ in range(4) for index in range(4) for one in asked(script.step(index))] == []


def test_nobody_is_asked_ahead_for_a_fragment_whose_last_round_is_not_over() -> None:
    script = training(2, far=2.0, overlap=3)
    for fragment in range(3):
        merge(script, fragment, 0, 1)
        script.step(0)
        script.step(1)
    # Fragment 3 is requested ahead, as its launch has to wait. Fragment 0, due a step later, is being merged.
    again = asked(script.rejoin(1, versions=(0, 0, 0, 0)))
    plan(script, far=2.0)
    assert [*again, *asked(script.step(1))] == [(name(1), 3, 1)]


def test_with_just_a_quorum_there_each_is_asked_as_early_as_its_lead() -> None:
    script = training(4, far=2.9, fragments=12, overlap=1, quorum=4)
    state = script.state
    state.learners[name(2)].answer_seconds = SizedSpread(0.9, 0.0)
    requests.plan_leads(state)
    ahead = asked(requests.ask_ahead(state, None, script.now))
    assert ahead == [(name(2), 1, 1), (name(3), 1, 1), (name(3), 2, 1), (name(3), 3, 1)]


def test_nobody_is_asked_ahead_while_fewer_than_a_quorum_are_there() -> None:
    script = training(3, far=5.9, fragments=12, overlap=4, quorum=3)
    merge(script, 0, 0, 1, 2)
    script.leave(0)
    assert asked(script.step(2)) == []


def test_who_made_no_steps_when_leads_were_found_is_asked_at_the_launch() -> None:
    script = training(4, far=1.9, shares=(0.4, 0.3, 0.2, 0.1), overlap=1)
    state = script.state
    far, stalled = state.learners[name(3)], state.learners[name(2)]
    stalled.answer_seconds = SizedSpread(1.9, 0.0)
    requests.plan_leads(state)
    state.becomes(stalled, LearnerState.STALLED)
    assert asked(requests.ask_ahead(state, None, script.now)) == [(far.id, 1, 1), (far.id, 2, 1)]
    state.becomes(stalled, LearnerState.TRAINING)
    assert requests.ask_ahead(state, stalled.id, script.now) == []


def test_leads_follow_from_sizes_and_are_half_an_interval_at_most() -> None:
    script = training(4, far=0.9, shares=(0.4, 0.3, 0.2, 0.1), interval=8)
    far = script.state.learners[name(3)]
    plan(script, far=1.0, slope=1.0)  # 1 s for one of mean size, 1.6 s for the largest
    assert (far.lead_steps, far.longest_lead_steps) == (1, 2)
    plan(script, far=50.0)
    assert (far.lead_steps, far.longest_lead_steps) == (4, 4)
