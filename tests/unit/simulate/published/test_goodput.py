import math

import pytest

from diloco.simulate.published.goodput import (
    CALIBRATED,
    Pauses,
    data_parallel,
    decoupled,
    elastic,
    fitted,
    from_failures,
    through_engine,
)
from diloco.simulate.published.tables import CHIPS, DECOUPLED

YEAR_SECONDS = 365 * 86_400
HALF = 1_200_000


def test_the_calibrated_pauses_are_what_fits_the_data_parallel_rows() -> None:
    assert fitted() == CALIBRATED


def test_the_decoupled_cells_come_out_of_pauses_that_they_did_not_fit() -> None:
    differences = [
        abs(100 * decoupled(learners, chips, CALIBRATED) - paper)
        for learners, row in DECOUPLED.items()
        for chips, paper in zip(CHIPS, row, strict=True)
    ]
    assert len(differences) == 20
    assert sum(differences) / 20 < 1.0
    assert max(differences) < 4.0
    assert sum(one <= 2.0 for one in differences) >= 18


@pytest.mark.parametrize("chips", [1, 10_000, 2_400_000, 10**9])
@pytest.mark.parametrize(
    "pauses", [CALIBRATED, Pauses(0.0, 0.0, 0.0), Pauses(30.0, 600.0, 30.0), Pauses(0.0, 1e6, 9.0)]
)
def test_elastic_goodput_solves_its_equation(chips: int, pauses: Pauses) -> None:
    lost, goodput = chips / YEAR_SECONDS, elastic(chips, pauses)
    missing = math.exp(-lost * pauses.recovery_seconds * goodput)
    assert goodput == pytest.approx(1 / (1 + lost * (pauses.down_seconds + pauses.up_seconds * missing)), abs=1e-9)
    assert goodput >= data_parallel(chips, pauses) - 1e-9


def test_more_learners_of_fewer_chips_each_stand_still_less() -> None:
    shares = [decoupled(learners, HALF, CALIBRATED) for learners in (1, 2, 4, 8)]
    assert shares == sorted(shares)
    assert decoupled(2, 2 * HALF, CALIBRATED) == elastic(HALF, CALIBRATED)


def test_drawn_failures_agree_with_the_closed_forms() -> None:
    whole = from_failures(1, HALF, CALIBRATED, 4e5, whole=True)
    assert whole.goodput == pytest.approx(data_parallel(HALF, CALIBRATED), abs=0.01)
    assert whole.uptime == pytest.approx(whole.goodput)
    two = from_failures(2, HALF, CALIBRATED, 4e5)
    assert two.goodput == pytest.approx(decoupled(2, HALF, CALIBRATED), abs=0.01)
    assert two.uptime == pytest.approx(1 - (1 - two.goodput) ** 2, abs=0.01)  # they are independent


def test_the_engine_computes_as_the_closed_form_says_and_merges_less() -> None:
    engine = through_engine(2, HALF, CALIBRATED, 6 * 3600.0)
    assert engine.computing == pytest.approx(decoupled(2, HALF, CALIBRATED), abs=0.03)
    assert 0.7 * engine.computing < engine.merged < engine.computing
