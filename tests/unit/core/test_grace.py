import pytest

from diloco.core.grace import Durations, grace_window


def window(step: float, quorum: float, sync: float, **changes: float | None) -> float:
    chosen: dict[str, float | None] = {"safety": 0.5, "maximum_seconds": None} | changes
    safety = chosen["safety"]
    assert safety is not None
    return grace_window(
        Durations(step, quorum, sync), overlap=2, safety=safety, maximum_seconds=chosen["maximum_seconds"]
    ).seconds


def test_a_share_of_the_slack_is_waited() -> None:
    # slack = 2 x 1.0 - (0.3 + 0.5) = 1.2
    assert window(1.0, 0.3, 0.5) == pytest.approx(0.6)


def test_no_slack_no_wait() -> None:
    assert window(1.0, 1.5, 0.6) == 0.0


def test_never_longer_than_an_inner_step() -> None:
    assert window(1.0, 0.0, 0.0, safety=0.9) == 1.0


def test_the_job_s_own_bound_takes_the_step_s_place() -> None:
    assert window(1.0, 0.0, 0.0, maximum_seconds=0.2) == 0.2


def test_the_reason_shows_the_equation() -> None:
    reason = grace_window(Durations(1.0, 0.3, 0.5), overlap=2, safety=0.5, maximum_seconds=None).reason
    terms = "overlap 2 x step 1.000 s - quorum 0.300 s - sync 0.500 s"
    assert reason == f"grace 0.600 s = 0.5 x slack 1.200 s ({terms}), at most 1.000 s"


def test_the_overlap_counts_in_steps_of_the_quorums_slowest_learner() -> None:
    found = grace_window(Durations(step=0.5, quorum=0.75, sync=0.25), overlap=4, safety=0.25, maximum_seconds=None)
    assert found.seconds == 0.25 * (4 * 0.5 - 1.0)
