"""Requests ahead of a launch: never for what cannot be launched, closed or merged."""

from typing import Any

from diloco.core import requests
from diloco.core.actions import Action, AskFragment, Merge
from diloco.core.averages import SizedSpread
from diloco.core.state import EngineState
from diloco.spec.syncer_status import LearnerState
from tests.support.engine_script import Script, name, of, only, options


def state_of(script: Script) -> EngineState:
    return script.engine._state


def plan(script: Script, **answers: float) -> None:
    """Set every learner's usual time to answer, in seconds: ``far`` for the last one, 0.01 for the others."""
    last = len(script.options.learners) - 1
    for index in range(last + 1):
        seconds = answers["far"] if index == last else 0.01
        slope = answers.get("slope", 0.0) if index == last else 0.0
        state_of(script).learners[name(index)].answer_seconds = SizedSpread(seconds, 0.0, slope)
    requests.plan_leads(state_of(script))


def training(learners: int, *, far: float, **changes: Any) -> Script:
    """Every learner has made a step of a second; the first fragment is launched."""
    script = Script(options(learners, grace_safety=0.0, **changes))
    script.start(*range(learners))
    for index in range(learners):
        script.step(index)
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
    script.leave(1)
    script.join(1, versions=(0, 0, 0, 0))
    again = asked(script.ready(1))
    plan(script, far=2.0)
    assert [*again, *asked(script.step(1))] == [(name(1), 3, 1)]


def test_with_just_a_quorum_there_each_is_asked_as_early_as_its_lead() -> None:
    script = training(4, far=2.9, fragments=12, overlap=1, quorum=4)
    state = state_of(script)
    state.learners[name(2)].answer_seconds = SizedSpread(0.9, 0.0)
    requests.plan_leads(state)
    ahead = asked(requests.ask_ahead(state, script.now))
    assert ahead == [(name(2), 1, 1), (name(3), 1, 1), (name(3), 2, 1), (name(3), 3, 1)]


def test_nobody_is_asked_ahead_while_fewer_than_a_quorum_are_there() -> None:
    script = training(3, far=5.9, fragments=12, overlap=4, quorum=3)
    merge(script, 0, 0, 1, 2)
    script.leave(0)
    assert asked(script.step(2)) == []


def test_who_made_no_steps_when_leads_were_found_is_asked_at_the_launch() -> None:
    script = training(4, far=1.9, shares=(0.4, 0.3, 0.2, 0.1), overlap=1)
    state = state_of(script)
    far, stalled = state.learners[name(3)], state.learners[name(2)]
    stalled.answer_seconds = SizedSpread(1.9, 0.0)
    requests.plan_leads(state)
    stalled.state = LearnerState.STALLED
    assert asked(requests.ask_ahead(state, script.now)) == [(far.id, 1, 1), (far.id, 2, 1)]
    stalled.state = LearnerState.TRAINING
    assert requests.ask_ahead(state, script.now) == []


def test_leads_follow_from_sizes_and_are_half_an_interval_at_most() -> None:
    script = training(4, far=0.9, shares=(0.4, 0.3, 0.2, 0.1), interval=8)
    far = state_of(script).learners[name(3)]
    plan(script, far=1.0, slope=1.0)  # 1 s for one of mean size, 1.6 s for the largest
    assert (far.lead_steps, far.longest_lead_steps) == (1, 2)
    plan(script, far=50.0)
    assert (far.lead_steps, far.longest_lead_steps) == (4, 4)


def test_who_is_shut_out_is_taken_to_need_twice_the_time_that_passed() -> None:
    script = Script(options(2))
    script.start(0, 1)
    script.step(1)
    script.step(0)
    assert not of(script.push(0, 0), Merge)
    only(script.wait(1.0), Merge)  # the grace window
    assert state_of(script).learners[name(1)].answer_seconds.mean == 2.0
