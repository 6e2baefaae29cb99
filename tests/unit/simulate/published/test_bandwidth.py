import pytest

from diloco.simulate.published.bandwidth import (
    BITS,
    GRID_GBITS,
    MODELS,
    Exchange,
    Model,
    grid_gbits,
    grid_steps,
    needed_gbits,
    published_exchange,
    utilization,
)
from diloco.simulate.published.tables import BANDWIDTH, UTILIZATIONS

SMALL = Model(parameters=1e9, layers=4, step_seconds=1.1)
"""With compute nodes of 0.1 s."""


def steps(method: str) -> list[int]:
    return [
        grid_steps(paper, grid_gbits(MODELS[name], published_exchange(method, MODELS[name]), wanted))
        for name, row in BANDWIDTH[method].items()
        for wanted, paper in zip(UTILIZATIONS, row, strict=True)
    ]


def test_the_published_cells_come_out_within_a_step_of_their_grid() -> None:
    found = {method: steps(method) for method in BANDWIDTH}
    every = [step for row in found.values() for step in row]
    assert len(every) == 75
    assert max(map(abs, every)) == 1
    assert every.count(0) >= 65
    assert set(found["data-parallel"]) == set(found["DiLoCo"]) == {0}


def test_a_step_of_data_parallel_training_is_its_graph() -> None:
    # Layers are exchanged from the last to the first, 1.25 s each; the last one's gradient is there after 4 forward
    # nodes and 2 backward nodes.
    exchanged = 0.6 + 4 * 1.25
    assert utilization(SMALL, Exchange(5.0), 1.0) == pytest.approx(1.1 / exchanged)


def test_exchanges_that_wait_for_gradients_cost_only_the_last_one() -> None:
    # A layer takes 0.025 s, less than its 0.2 s of backward nodes: only the first layer's is not hidden.
    assert utilization(SMALL, Exchange(0.1), 1.0) == pytest.approx(1.1 / 1.125)


def test_overlap_hides_what_takes_at_most_a_step() -> None:
    in_a_step = Exchange(4.0, interval=10, fragments=4, overlap_steps=1)  # a fragment of one layer takes 1 s
    assert utilization(SMALL, in_a_step, 1.0) == pytest.approx(1.0, abs=1e-3)
    # Without it the layers' forward nodes wait 1, 0.8, 0.5 and 0.2 s in an interval of 11 s.
    assert utilization(SMALL, Exchange(4.0, interval=10, fragments=4), 1.0) == pytest.approx(11 / 13.5)


def test_a_link_without_limit_costs_nothing_and_one_of_none_everything() -> None:
    for exchange in (Exchange(BITS), Exchange(BITS, 10), Exchange(BITS, 10, 4, 1)):
        assert utilization(SMALL, exchange, 1e9) == pytest.approx(1.0, abs=1e-6)
        assert utilization(SMALL, exchange, 1e-9) < 1e-6
        rates = [utilization(SMALL, exchange, rate) for rate in GRID_GBITS]
        assert rates == sorted(rates)


def test_the_needed_rate_reaches_the_utilization_and_the_grid_rounds_it_up() -> None:
    exchange = Exchange(BITS)
    rate = needed_gbits(SMALL, exchange, 0.9)
    assert utilization(SMALL, exchange, rate) >= 0.9 > utilization(SMALL, exchange, 0.999 * rate)
    place = GRID_GBITS.index(grid_gbits(SMALL, exchange, 0.9))
    assert GRID_GBITS[place - 1] < rate <= GRID_GBITS[place]
