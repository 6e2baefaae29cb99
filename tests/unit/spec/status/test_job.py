from datetime import UTC, datetime, timedelta, timezone

import pytest
from pydantic import ValidationError

from diloco.spec.status.job import Condition, JobStatus, Progress

EVENING = datetime(2026, 1, 31, 18, 30, 5, 999_999, tzinfo=timezone(timedelta(hours=2)))


def test_times_are_whole_seconds_in_utc() -> None:
    assert JobStatus(start_time=EVENING).as_object()["startTime"] == "2026-01-31T16:30:05Z"


def test_what_is_not_known_is_left_out() -> None:
    plain = JobStatus(progress=Progress(step=1)).as_object()
    assert {"startTime", "model", "syncer", "completionTime"}.isdisjoint(plain)
    assert {"loss", "secondsLeft", "updatedAt"}.isdisjoint(plain["progress"])
    assert plain["phase"] == "Pending"


def test_a_status_is_read_back_as_it_was_written() -> None:
    condition = Condition(type="Ready", status="True", last_transition_time=EVENING, reason="Training", message="")
    status = JobStatus(phase="Training", conditions=(condition,), progress=Progress(step=3, updated_at=EVENING))
    read = JobStatus.model_validate(status.as_object())
    assert read.as_object() == status.as_object()
    assert read.conditions[0].last_transition_time == EVENING.replace(microsecond=0).astimezone(UTC)


def test_what_a_newer_operator_adds_is_let_pass() -> None:
    assert JobStatus.model_validate({"phase": "Training", "mood": "good"}).phase == "Training"


@pytest.mark.parametrize("reason", ["", "two words", "Ends-badly", "x" * 1025])
def test_a_reason_is_one_word(reason: str) -> None:
    with pytest.raises(ValidationError):
        Condition(type="Ready", status="True", last_transition_time=EVENING, reason=reason, message="")
