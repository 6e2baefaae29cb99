"""Pace: H neither collapses on a fast link nor stretches when the fast learners leave."""

import pytest

from diloco.core import pace
from diloco.core.actions import Action, AskFragment, Merge
from diloco.core.schedule import Schedule
from tests.support.engine_script import Script, of, options


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
    # 500 inner steps at once: every fragment has the turn that it has waited for, and that is all.
    assert merged_at_once(script, script.step(0, 500)) == 8


def test_a_clock_never_runs_backwards() -> None:
    schedule = Schedule(4, 4, 2)
    assert pace.advance(schedule, launched=0, clock=9, steps=1) == 9


def test_a_late_joiner_starts_at_the_schedule() -> None:
    assert pace.start(Schedule(24, 12, 2), launched=100) == 50


def test_clocks_left_behind_are_pulled_to_one_stride_behind() -> None:
    clocks = {"slow": 3, "fast": 40}
    pace.pull_along(Schedule(4, 12, 2), 13, clocks)
    assert clocks == {"slow": 36, "fast": 40}


def merged_at_once(script: Script, actions: list[Action]) -> int:
    """Answer every request and finish every merge; returns the number of merges."""
    merges = 0
    while asks := of(actions, AskFragment):
        actions = []
        for ask in asks:
            actions += script.push(int(ask.learner[-1]), ask.fragment)
        for merge in of(actions, Merge):
            merges += 1
            actions += script.merge_done(merge)
    return merges


def test_fast_learners_at_their_staleness_bound_do_not_stop_a_full_quorum() -> None:
    # One runs ahead to its bound, where it waits; then the other catches up, step by step.
    script = Script(options(2, quorum=2, max_staleness_steps=6))
    script.start(0, 1)
    actions = [action for _ in range(6) for action in script.step(0)]
    assert not of(actions, AskFragment)
    merges = 0
    for _ in range(12):
        merges += merged_at_once(script, script.step(1))
        if script.all(Merge):
            script.step(0)
    assert merges >= 8


def test_a_job_whose_learners_all_wait_at_their_bound_after_a_cut_goes_on() -> None:
    script = Script(options(1, fragments=4))
    script.start(0)
    script.leave(0)
    script.join(0, versions=(0, 0, 0, 0), steps=18)
    # It waits at its bound of 4 x H + tau steps and will make none before it has received something.
    assert merged_at_once(script, script.ready(0)) == 4
    assert not script.engine.view(script.now).rounds_in_flight


def test_a_learner_that_hangs_does_not_drive_rounds_however_overdue_it_is() -> None:
    script = Script(options(2, fragments=4, grace_safety=0.0))
    script.start(0, 1)
    script.leave(1)
    script.join(1, versions=(0, 0, 0, 0), steps=18)
    rounds = 0
    actions = script.ready(1)
    while asks := [ask for ask in of(actions, AskFragment) if ask.learner == "here/pool/0"]:
        actions = []
        for ask in asks:
            for merge in of(script.push(0, ask.fragment, steps=1), Merge):
                rounds += 1
                actions += script.merge_done(merge)
    assert rounds <= 4  # each fragment had one turn


def test_what_others_merged_during_an_absence_is_not_overdue_on_return() -> None:
    script = Script(options(2, fragments=8))
    script.start(0, 1)
    for _ in range(16):
        merged_at_once(script, [*script.step(0), *script.step(1)])
    script.leave(0)
    held = tuple(version for version in script.engine.view(script.now).versions)
    for _ in range(8):
        merged_at_once(script, script.step(1))
    script.join(0, versions=held, steps=16 + 12)
    assert merged_at_once(script, script.ready(0)) == 0


SCHEDULE = Schedule(fragments=4, interval=8, overlap=3)


def test_a_fragment_is_overdue_exactly_at_an_interval_plus_the_overlap() -> None:
    # At the bound itself: in lock-step learners pause there, and nothing else would begin the next round.
    assert [pace.overdue(SCHEDULE, 100, steps) for steps in (10, 11, 12)] == [False, True, True]
    assert [pace.overdue(SCHEDULE, 9, steps) for steps in (8, 9, 10)] == [False, True, True]


def test_a_clock_stops_at_the_overlap_after_a_due_step_and_never_goes_back() -> None:
    assert pace.advance(SCHEDULE, 5, 0, 4) == 4
    assert pace.advance(SCHEDULE, 5, 0, 100) == SCHEDULE.due(6) + 3
    assert pace.advance(SCHEDULE, 5, 40, 1) == 40


def test_a_clock_has_reached_a_step_when_it_is_due_and_not_before() -> None:
    assert [pace.reached(SCHEDULE, 5, clock) for clock in (11, 12, 13)] == [False, True, True]
    assert pace.start(SCHEDULE, 5) == SCHEDULE.due(5) == 10


@pytest.mark.parametrize(("fragments", "interval", "stride"), [(4, 8, 2), (8, 4, 1), (3, 8, 3), (8, 8, 1)])
def test_a_clock_that_is_behind_is_pulled_along_one_stride_behind(fragments: int, interval: int, stride: int) -> None:
    schedule = Schedule(fragments, interval, 2)
    clocks = {"behind": 0, "there": schedule.due(30)}
    pace.pull_along(schedule, 30, clocks)
    assert clocks == {"behind": schedule.due(30) - stride, "there": schedule.due(30)}
