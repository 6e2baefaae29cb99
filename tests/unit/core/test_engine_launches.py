"""When a syncer step is launched, how many are under way, and how long each has before its asks are repeated."""

from typing import Any

import pytest

from diloco.core.actions import AskFragment, Merge, SetTimer
from support.engine_script import Script, of, only, options


def started(learners: int, **changes: Any) -> Script:
    script = Script(options(learners, **changes))
    script.start(*range(learners))
    return script


@pytest.mark.parametrize(("quorum_seconds", "patience_seconds"), [(0.0, 10.0), (2.5, 10.0), (3.0, 12.0), (5.0, 20.0)])
def test_asks_are_repeated_after_a_lease_or_four_times_a_quorums_time(
    quorum_seconds: float, patience_seconds: float
) -> None:
    script = started(2, quorum=2, grace_safety=0.0)
    script.step(0)
    script.step(1)
    script.push(0, 0)
    script.wait(quorum_seconds)
    script.merge_done(only(script.push(1, 0), Merge))
    script.step(0)
    timer = only(script.step(1), SetTimer)
    assert timer.name == "round/1"
    assert timer.at - script.now == pytest.approx(patience_seconds)


@pytest.mark.parametrize(
    ("step_seconds", "held_seconds"),
    [(5.0, 50.0), (0.5, 10.0)],  # ten steps, or a lease
)
def test_what_nobody_confirms_is_in_flight_for_ten_steps_or_a_lease(step_seconds: float, held_seconds: float) -> None:
    script = started(1, overlap=1)
    script.step(0, seconds=step_seconds)
    script.merge_done(only(script.push(0, 0), Merge), applied=False)
    script.now += held_seconds - 0.25
    assert not of(script.step(0, seconds=step_seconds), AskFragment)
    script.now += 0.25
    assert of(script.step(0, seconds=step_seconds), AskFragment)


@pytest.mark.parametrize(("steps", "allowed"), [(2, [1, 1, 2]), (1, [1, 1, 1])])
def test_one_more_is_let_in_where_a_launch_had_to_wait_for_a_place(steps: int, allowed: list[int]) -> None:
    script = started(1, overlap=1, overlap_limit=3)
    seen = []
    for fragment in range(3):
        for _ in range(steps):  # the second makes the next fragment due before this one is back
            script.step(0)
        script.now += 5.0
        script.merge_done(only(script.push(0, fragment), Merge))
        seen.append(script.engine.view(script.now).fragments_allowed)
    assert seen == allowed
