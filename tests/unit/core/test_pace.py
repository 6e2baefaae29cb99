"""Pace: H neither collapses on a fast link nor stretches when the fast learners go."""

import pytest

from diloco.core import pace
from diloco.core.actions import AskFragment, Merge
from diloco.core.schedule import Schedule
from support.engine_script import Script, of, options


def run(script: Script, step_seconds: list[float], until: float) -> int:
    """Learners make steps of these durations; the link is infinitely fast. Returns the syncer steps launched."""
    ends = [
        (script.now + seconds * (index + 1) / len(step_seconds), index) for index, seconds in enumerate(step_seconds)
    ]
    end = script.now + until
    before = len({(ask.fragment, ask.version) for ask in script.all(AskFragment)})
    while True:
        at, index = min(ends)
        if at > end:
            break
        ends[ends.index((at, index))] = (at + step_seconds[index], index)
        script.wait(at - script.now)
        actions = script.step(index, seconds=step_seconds[index])
        while asks := of(actions, AskFragment):
            actions = []
            for ask in asks:
                actions += script.push(int(ask.learner[-1]), ask.fragment, steps=1)
            for merge in of(actions, Merge):
                actions += script.merge_done(merge)
    return len({(ask.fragment, ask.version) for ask in script.all(AskFragment)}) - before


@pytest.mark.parametrize("learners", [1, 2, 4, 8])
def test_many_learners_on_a_fast_link_do_not_collapse_the_interval(learners: int) -> None:
    script = Script(options(learners, fragments=4, grace_safety=0.0))
    script.start(*range(learners))
    # 100 steps of a second, one syncer step each, and no more for there being several learners.
    assert run(script, [1.0] * learners, 100.0) == pytest.approx(100, abs=2)


@pytest.mark.parametrize(("interval", "fragments"), [(24, 8), (8, 24), (24, 24), (10, 4)])
def test_every_fragment_comes_round_once_in_an_interval(interval: int, fragments: int) -> None:
    script = Script(options(2, fragments=fragments, interval=interval, grace_safety=0.0, overlap=interval))
    script.start(0, 1)
    assert run(script, [1.0, 1.0], 10.0 * interval) == pytest.approx(10 * fragments, abs=fragments / interval + 2)


def test_the_quorum_s_slowest_learner_sets_the_pace() -> None:
    script = Script(options(3, quorum=2, grace_safety=0.0))
    script.start(0, 1, 2)
    assert run(script, [1.0, 2.0, 4.0], 200.0) == pytest.approx(100, abs=3)


def test_a_slow_learner_drives_at_once_when_the_fast_one_is_gone() -> None:
    script = Script(options(2, grace_safety=0.0))
    script.start(0, 1)
    run(script, [1.0, 3.0], 300.0)
    script.leave(0)
    assert sum(len(of(script.step(1, seconds=3.0), AskFragment)) for _ in range(3)) > 0


def test_a_burst_of_reports_is_no_debt_of_rounds() -> None:
    script = Script(options(1, fragments=8, overlap=2))
    script.start(0)
    script.step(0, 500)
    answered = 0
    while asks := [ask for ask in script.all(AskFragment) if ask.version == 1][answered:]:
        answered += len(asks)
        for ask in asks:
            for merge in of(script.push(0, ask.fragment), Merge):
                script.merge_done(merge)
    assert answered <= 1 + 2


def test_a_clock_never_runs_backwards() -> None:
    schedule = Schedule(4, 4, 2)
    assert pace.advance(schedule, launched=0, clock=9, steps=1) == 9


def test_a_late_joiner_starts_at_the_schedule() -> None:
    assert pace.start(Schedule(24, 12, 2), launched=100) == 50


def test_clocks_left_behind_are_pulled_to_one_stride_behind() -> None:
    clocks = {"slow": 3, "fast": 40}
    pace.pull_along(Schedule(4, 12, 2), 13, clocks)
    assert clocks == {"slow": 36, "fast": 40}
