"""What is recommended follows from what was measured."""

import math

import pytest

from diloco.spec import recommendations
from diloco.spec.recommendations import MEASURED, Recommendation, recommended
from diloco.spec.sync import SyncSpec


def row(steps: int, interval: int, loss_percent: float, bytes_ratio: float) -> Recommendation:
    return Recommendation(steps, "A", "Muon", interval, "BF16", "F32", 1.0, 0.0, loss_percent, 5, bytes_ratio)


@pytest.fixture
def _two_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (row(400, 24, 9.0, 1.0), row(400, 6, 4.0, 4.0), row(1600, 24, 3.0, 1.0), row(1600, 6, 3.5, 4.0))
    monkeypatch.setattr(recommendations, "MEASURED", rows)


@pytest.mark.usefixtures("_two_budgets")
def test_the_lowest_loss_of_the_nearest_budget_is_recommended() -> None:
    assert recommended(1) == row(400, 6, 4.0, 4.0)
    assert recommended(790) == row(400, 6, 4.0, 4.0)
    assert recommended(810) == row(1600, 24, 3.0, 1.0)
    assert recommended(10**9) == row(1600, 24, 3.0, 1.0)


@pytest.mark.usefixtures("_two_budgets")
def test_what_a_link_does_not_carry_is_not_recommended() -> None:
    assert recommended(400, bytes_ratio=3.9) == row(400, 24, 9.0, 1.0)
    assert recommended(400, bytes_ratio=0.9) is None


@pytest.mark.usefixtures("_two_budgets")
def test_nothing_is_recommended_that_was_not_measured() -> None:
    assert recommended(400, optimizers=("AdamW",)) is None
    assert recommended(400, setting="B") is None


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
