from datetime import UTC, datetime
from typing import Any

import pytest

from diloco.spec.status.engine import Phase
from diloco.spec.status.job import Progress
from diloco_operator.decide.observed import SyncerStatusView
from diloco_operator.decide.status.progress import progress_of

NOW = datetime(2026, 11, 1, tzinfo=UTC)


def told(**figures: Any) -> Progress:
    return progress_of(SyncerStatusView(job="demo", epoch=1, phase=Phase.TRAINING, **figures), NOW)


def test_goodput_and_merged_are_told_and_the_classes_add_up() -> None:
    progress = told(merged=0.7, goodput=0.861, time_seconds={"merged": 700.0, "away": 200.0, "late": 100.0})
    assert (progress.merged, progress.goodput) == ("70%", "86%")
    assert progress.time == {"away": "20.0%", "late": "10.0%", "merged": "70.0%"}


@pytest.mark.parametrize(
    "seconds",
    [{}, {"merged": 0.0}, {"lost": -1.0}, {"Not a class": 5.0}],
)
def test_what_is_no_share_is_left_out(seconds: dict[str, float]) -> None:
    assert told(time_seconds=seconds).time is None
    assert told(time_seconds={**seconds, "waiting": 3.0}).time == {"waiting": "100.0%"}


def test_a_share_that_is_none_is_left_out() -> None:
    progress = told(merged=-0.5, goodput=-0.5, time_seconds={"merged": 1e308, "away": 1e308})
    assert (progress.merged, progress.goodput, progress.time) == (None, None, None)
    assert told(goodput=1e300).goodput == "100%"


def test_a_syncer_that_does_not_tell_leaves_them_out() -> None:
    assert "goodput" not in (plain := told().model_dump(exclude_none=True))
    assert "time" not in plain


def test_a_syncer_cannot_fill_the_status_with_classes() -> None:
    progress = told(time_seconds={f"class_{letter}{other}": 1.0 for letter in "abcdefgh" for other in "abcdefgh"})
    assert progress.time is not None
    assert len(progress.time) == 32
