import math

import pytest

from diloco.spec import recommendations
from diloco.spec.recommendations import MEASURED, Recommendation, ranked
from diloco.spec.sync import SyncSpec


def row(steps: int, interval: int, loss_percent: float, bytes_ratio: float) -> Recommendation:
    return Recommendation(steps, "A", "Muon", interval, "BF16", "F32", 1.0, 0.0, loss_percent, 5, bytes_ratio, 0.8)


@pytest.fixture
def _two_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (row(400, 24, 9.0, 1.0), row(400, 6, 4.0, 4.0), row(1600, 24, 3.0, 1.0), row(1600, 6, 3.5, 4.0))
    monkeypatch.setattr(recommendations, "MEASURED", rows)


@pytest.mark.usefixtures("_two_budgets")
def test_the_rows_of_the_nearest_budget_come_with_the_lowest_loss_first() -> None:
    short = (row(400, 6, 4.0, 4.0), row(400, 24, 9.0, 1.0))
    long = (row(1600, 24, 3.0, 1.0), row(1600, 6, 3.5, 4.0))
    assert [ranked(steps) for steps in (1, 790, 810, 10**9)] == [short, short, long, long]


def test_of_equal_losses_the_fewer_bytes_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recommendations, "MEASURED", (row(400, 6, 4.0, 4.0), row(400, 12, 4.0, 2.0)))
    assert [each.bytes_ratio for each in ranked(400)] == [2.0, 4.0]


@pytest.mark.usefixtures("_two_budgets")
def test_nothing_is_recommended_that_was_not_measured() -> None:
    assert ranked(400, optimizers=("AdamW",)) == ()
    assert ranked(400, setting="B") == ()


def test_every_row_is_one_that_a_manifest_may_have() -> None:
    assert MEASURED
    for measured in MEASURED:
        outer = {"learningRate": measured.outer_learning_rate, "momentum": measured.outer_momentum}
        SyncSpec.model_validate(
            {
                "interval": measured.interval,
                "compression": measured.compression,
                "downlink": measured.downlink,
                "outerOptimizer": outer,
            }
        )
        assert math.isfinite(measured.loss_percent)
        assert measured.bytes_ratio > 0
        assert 0 < measured.merged_share <= 1
