import pytest

from diloco.core.engine.rounds.averages import MovingAverage
from diloco.core.engine.rounds.grace import grace_window
from diloco.core.engine.state import EngineState
from tests.support.engine_script import started


def measured(
    step: float, quorum: float, sync: float, *, overlap: int, safety: float, maximum: float | None
) -> EngineState:
    """A learner trains; these times were measured."""
    script = started(1, overlap=overlap, grace_safety=safety, grace_maximum_seconds=maximum)
    script.step(0, seconds=step)
    state = script.engine._state
    state.quorum_seconds, state.sync_seconds = MovingAverage(quorum), MovingAverage(sync)
    return state


@pytest.mark.parametrize(
    ("durations", "overlap", "safety", "maximum", "seconds"),
    [
        ((1.0, 0.3, 0.5), 2, 0.5, None, 0.6),  # slack = 2 x 1.0 - (0.3 + 0.5) = 1.2
        ((0.5, 0.75, 0.25), 4, 0.25, None, 0.25),  # slack = 4 x 0.5 - (0.75 + 0.25) = 1
        ((1.0, 1.5, 0.6), 2, 0.5, None, 0.0),  # no slack
        ((1.0, 0.0, 0.0), 2, 0.9, None, 1.0),  # an inner step at most
        ((1.0, 0.0, 0.0), 2, 0.5, 0.2, 0.2),  # the job's own bound replaces the step
    ],
)
def test_a_share_of_the_slack_is_waited_up_to_a_bound(
    durations: tuple[float, float, float], overlap: int, safety: float, maximum: float | None, seconds: float
) -> None:
    window, _ = grace_window(measured(*durations, overlap=overlap, safety=safety, maximum=maximum))
    assert window == pytest.approx(seconds)


def test_the_reason_shows_the_equation() -> None:
    _, reason = grace_window(measured(1.0, 0.3, 0.5, overlap=2, safety=0.5, maximum=None))
    terms = "overlap 2 x step 1.000 s - quorum 0.300 s - sync 0.500 s"
    assert reason == f"grace 0.600 s = 0.5 x slack 1.200 s ({terms}), at most 1.000 s"
