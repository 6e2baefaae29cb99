"""Pace: H neither collapses on a fast link nor stretches when the fast learners leave."""

import pytest

from diloco.core.engine.actions import AskFragment, Merge
from diloco.core.engine.rounds.schedule import Schedule
from tests.support.engine_script import Script, merged_at_once, of, started


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
        merged_at_once(script, script.step(index, seconds=step_seconds[index]))
    return len({(ask.fragment, ask.version) for ask in script.all(AskFragment)}) - before


@pytest.mark.parametrize("learners", [1, 2, 4, 8])
def test_many_learners_on_a_fast_link_do_not_collapse_the_interval(learners: int) -> None:
    script = started(learners, fragments=4, grace_safety=0.0)
    # 100 steps of a second, one syncer step each, and no more for there being several learners.
    assert run(script, [1.0] * learners, 100.0) == pytest.approx(100, abs=2)


@pytest.mark.parametrize(("interval", "fragments"), [(24, 8), (8, 24), (24, 24), (10, 4)])
def test_every_fragment_comes_round_once_in_an_interval(interval: int, fragments: int) -> None:
    script = started(2, fragments=fragments, interval=interval, grace_safety=0.0, overlap=interval)
    assert run(script, [1.0, 1.0], 10.0 * interval) == pytest.approx(10 * fragments, abs=fragments / interval + 2)


def test_the_quorum_s_slowest_learner_sets_the_pace() -> None:
    script = started(3, quorum=2, grace_safety=0.0)
    assert run(script, [1.0, 2.0, 4.0], 200.0) == pytest.approx(100, abs=3)


def test_a_slow_learner_drives_at_once_when_the_fast_one_is_gone() -> None:
    script = started(2, grace_safety=0.0)
    run(script, [1.0, 3.0], 300.0)
    script.leave(0)
    assert sum(len(of(script.step(1, seconds=3.0), AskFragment)) for _ in range(3)) > 0


def test_a_burst_of_reports_is_no_debt_of_rounds() -> None:
    script = started(1, fragments=8, overlap=2)
    # 500 inner steps at once: every fragment has the turn that it has waited for, and that is all.
    assert merged_at_once(script, script.step(0, 500)) == 8


def test_fast_learners_at_their_staleness_bound_do_not_stop_a_full_quorum() -> None:
    # One runs ahead to its bound, where it waits; then the other catches up, step by step.
    script = started(2, quorum=2, max_staleness_steps=6)
    actions = [action for _ in range(6) for action in script.step(0)]
    assert not of(actions, AskFragment)
    merges = 0
    for _ in range(12):
        merges += merged_at_once(script, script.step(1))
        if script.all(Merge):
            script.step(0)
    assert merges >= 8


def test_a_job_whose_learners_all_wait_at_their_bound_after_a_cut_goes_on() -> None:
    script = started(1, fragments=4)
    # It waits at its bound of 4 x H + tau steps and will make none before it has received something.
    assert merged_at_once(script, script.rejoin(0, versions=(0, 0, 0, 0), steps=18)) == 4
    assert not script.view.rounds_in_flight


def test_learners_at_their_bound_go_on_though_few_steps_of_one_count() -> None:
    # The other one's steps were slow, so only few of its own count: its clock and turns do not reach the next round.
    script = started(2, quorum=2, fragments=4, grace_safety=0.0)
    for _ in range(2):
        merged_at_once(script, [*script.step(0, seconds=0.001), *script.step(1, seconds=100.0)])
    bound = script.options.max_staleness_steps
    merges = sum(merged_at_once(script, script.step(index, bound, seconds=0.001)) for index in (0, 1))
    for _ in range(40):
        merges += merged_at_once(script, [*script.wait(5.0), *script.alive(0), *script.alive(1)])
    assert merges >= 4


def test_a_learner_that_hangs_does_not_drive_rounds_however_overdue_it_is() -> None:
    script = started(2, fragments=4, grace_safety=0.0)
    rounds = 0
    actions = script.rejoin(1, versions=(0, 0, 0, 0), steps=18)
    while asks := [ask for ask in of(actions, AskFragment) if ask.learner == "here/pool/0"]:
        actions = []
        for ask in asks:
            for merge in of(script.push(0, ask.fragment, steps=1), Merge):
                rounds += 1
                actions += script.merge_done(merge)
    assert rounds <= 4  # each fragment had one turn


def test_what_others_merged_during_an_absence_is_not_overdue_on_return() -> None:
    script = started(2, fragments=8)
    for _ in range(16):
        merged_at_once(script, [*script.step(0), *script.step(1)])
    script.leave(0)
    held = script.view.versions
    for _ in range(8):
        merged_at_once(script, script.step(1))
    assert merged_at_once(script, script.begin(0, versions=held, steps=16 + 12)) == 0


SCHEDULE = Schedule(fragments=4, interval=8, overlap=3)


def test_a_fragment_is_overdue_exactly_at_an_interval_plus_the_overlap() -> None:
    # At the bound itself: in lock-step learners pause there, and nothing else would begin the next round.
    assert [SCHEDULE.overdue_steps(bound) for bound in (100, 11, 9)] == [11, 11, 9]


def test_a_clock_stops_at_the_overlap_after_a_due_step_and_never_goes_back() -> None:
    assert SCHEDULE.advanced(0, 4, 5) == 4
    assert SCHEDULE.advanced(0, 100, 5) == SCHEDULE.due(6) + 3
    assert SCHEDULE.advanced(40, 1, 5) == 40


@pytest.mark.parametrize(("fragments", "interval", "stride"), [(4, 8, 2), (8, 4, 1), (3, 8, 3), (8, 8, 1)])
def test_the_least_clock_is_one_stride_behind(fragments: int, interval: int, stride: int) -> None:
    schedule = Schedule(fragments, interval, 2)
    assert schedule.least_clock(30) == schedule.due(30) - stride
