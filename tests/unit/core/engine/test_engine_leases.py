"""Leases in virtual time: when a silent learner is lost, when one without steps has stalled, and what keeps it in."""

from collections.abc import Callable
from typing import Any

import pytest

from diloco.core.engine.actions import Evaluate, Fence, Note, SetTimer
from diloco.core.engine.members.leases import LEASE_TIMER
from tests.support.engine_script import BEGIN, Script, name, of, options, started, stepped, training


def fenced(script: Script) -> list[tuple[float, str]]:
    """When who lost its lease."""
    return [(at - BEGIN, action.learner) for at, action in script.log if isinstance(action, Fence)]


def stalled(script: Script) -> list[tuple[float, str]]:
    """When who was found to make no steps."""
    notes = [(at - BEGIN, action) for at, action in script.log if isinstance(action, Note)]
    return [(at, note.learner) for at, note in notes if note.kind == "LearnerStalled"]


def lease_timers(script: Script) -> list[float]:
    timers = [action for _, action in script.log if isinstance(action, SetTimer)]
    return [timer.at - BEGIN for timer in timers if timer.name == LEASE_TIMER]


def slow() -> Script:
    """It has made a step of 30 s."""
    script = started(1)
    script.step(0, seconds=30.0)
    return script


def loading(**changes: Any) -> Script:
    """It has joined: start-up may take 60 s."""
    script = Script(options(1, **changes))
    script.join(0)
    return script


def loaded() -> Script:
    """It took 50 s to load the model."""
    script = loading()
    script.wait(50.0)
    script.ready(0)
    return script


@pytest.mark.parametrize(
    ("begin", "lost_at"),
    [
        pytest.param(lambda: training(1), 10.0, id="a lease after a step"),
        pytest.param(slow, 300.0, id="ten steps if they are slow"),
        pytest.param(loading, 60.0, id="the time for start-up"),
        pytest.param(lambda: loading(startup_seconds=4.0), 10.0, id="no less than a lease for start-up"),
        pytest.param(loaded, 110.0, id="the time for start-up again after loading"),
    ],
)
def test_a_silent_learner_is_lost_exactly_when_its_time_is_over(begin: Callable[[], Script], lost_at: float) -> None:
    script = begin()
    script.wait(600.0)
    assert fenced(script) == [(lost_at, name(0))]
    assert script.learner(0).state == "Absent"
    assert not stalled(script)


def test_the_learner_whose_lease_ends_first_is_lost_first() -> None:
    script = training(3)
    script.now += 4.0
    script.alive(0)
    script.now += 4.0
    script.alive(2)
    script.wait(60.0)
    assert fenced(script) == [(10.0, name(1)), (14.0, name(0)), (18.0, name(2))]


def test_a_learner_that_only_beats_while_it_loads_has_not_stalled() -> None:
    script = loading()
    for _ in range(40):
        script.wait(5.0)
        script.alive(0)
    assert not fenced(script)
    assert not stalled(script)
    assert script.learner(0).state == "Loading"


def test_time_for_the_first_step_begins_when_the_model_is_loaded() -> None:
    script = loaded()
    script.evaluated()
    for _ in range(40):
        script.wait(2.0)
        script.alive(0)
    assert not fenced(script)
    assert stalled(script) == [(110.0, name(0))]


def test_a_step_a_beat_and_an_answer_keep_a_lease() -> None:
    script = training(1)
    says: list[Callable[[], object]] = [lambda: script.step(0), lambda: script.alive(0), lambda: script.decline(0, 0)]
    for say in says:
        script.wait(9.0)
        say()
    script.wait(60.0)
    assert fenced(script) == [(37.0, name(0))]
    assert script.all(Fence)[0].reason == "silent for 10.0 s; its lease is 10.0 s"


def test_a_report_of_steps_that_are_known_keeps_a_lease_and_is_no_step() -> None:
    script = training(1)
    for _ in range(10):
        script.wait(3.0)
        assert script.step(0, 0) == []
    assert not fenced(script)
    assert stalled(script) == [(10.0, name(0))]
    assert script.learner(0).state == "Stalled"


def test_a_step_ends_a_stall() -> None:
    script = training(1)
    script.wait(9.0)
    script.alive(0)
    script.wait(2.0)
    assert script.learner(0).state == "Stalled"
    assert of(script.step(0), Note)[0].reason == "makes steps again"
    assert script.learner(0).state == "Training"


@pytest.mark.parametrize("beats", [(9.0,), (3.0, 9.0)])
def test_a_learner_has_stalled_exactly_a_lease_after_its_latest_step(beats: tuple[float, ...]) -> None:
    script = training(1)
    script.wait(5.0)
    script.step(0)
    for at in beats:
        script.wait(max(0.0, BEGIN + at - script.now))
        script.alive(0)
    script.wait(1.5)
    script.alive(0)
    script.wait(8.5)
    assert stalled(script) == [(15.0, name(0))]
    assert script.all(Note)[-1].reason == "alive, but no step for 10.0 s; 10.0 s are allowed"
    assert script.learner(0).state == "Stalled"


def test_one_that_has_stalled_is_told_once_and_lost_when_it_falls_silent() -> None:
    script = training(1)
    for _ in range(5):
        script.wait(5.0)
        script.alive(0)
    script.wait(60.0)
    assert stalled(script) == [(10.0, name(0))]
    assert fenced(script) == [(35.0, name(0))]


def test_a_learner_that_evaluates_makes_no_steps_and_has_not_stalled() -> None:
    script = stepped()
    assert script.all(Evaluate)[0].learner == name(0)
    for _ in range(30):
        script.wait(1.0)
        script.alive(0)
        script.alive(1)
    assert stalled(script) == [(10.0, name(1))]


def test_a_timer_for_leases_is_set_once_and_again_when_it_must_be_earlier() -> None:
    script = started(2)
    assert lease_timers(script) == [60.0]
    script.step(0)
    assert lease_timers(script) == [60.0, 10.0]
    script.now += 1.0
    script.step(0)
    script.step(1)
    assert lease_timers(script) == [60.0, 10.0]
    script.wait(9.5)
    assert lease_timers(script) == [60.0, 10.0, 11.0]


def test_nobody_in_needs_no_timer_for_leases() -> None:
    script = training(1)
    script.leave(0)
    timers = len(lease_timers(script))
    script.wait(60.0)
    assert len(lease_timers(script)) == timers
    assert not fenced(script)
