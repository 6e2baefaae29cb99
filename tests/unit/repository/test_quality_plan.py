"""How the benchmark of quality finds rates and what it makes of losses."""

import pytest

from support.quality.figures import figures, half_width
from support.quality.plan import due, neighbours, walk
from support.quality.runs import Setting
from support.quality.variants import CHOICE_SEED, LADDERS, VARIANTS, Rates, Stage


def test_a_walk_ends_where_both_neighbours_of_every_part_are_worse() -> None:
    def loss(rates: Rates) -> float:
        assert rates.effective is not None
        return abs(LADDERS["adamw"].index(rates.adamw) - 2) + abs(LADDERS["effective"].index(rates.effective) - 6)

    parts = ("adamw", "effective", "momentum")
    losses: dict[Rates, float] = {}
    best, missing = None, [Rates(8e-3, effective=1.0, momentum=0.0)]
    while missing:
        losses |= {rates: loss(rates) for rates in missing}
        best, missing = walk(Rates(8e-3, effective=1.0, momentum=0.0), parts, losses)
    assert best == Rates(LADDERS["adamw"][2], effective=LADDERS["effective"][6], momentum=0.0)
    assert set(neighbours(best, parts)) <= losses.keys()


def test_a_run_that_diverged_is_never_the_best() -> None:
    start = Rates(8e-3)
    losses = {rates: float("nan") for rates in neighbours(start, ("adamw",))} | {start: 2.0}
    assert walk(start, ("adamw",), losses) == (start, [])


def test_seeds_are_due_only_after_the_search() -> None:
    stages = (Stage("A", 400, ("data_parallel",), 2),)
    ladder = LADDERS["adamw"]
    best = Rates(ladder[ladder.index(VARIANTS["data_parallel"].start.adamw) + 1])
    results: dict[Setting, dict[str, float]] = {}
    while len(results) < 4:  # the start, its neighbours, and the best one's other neighbour
        now = due(stages, stages, results)
        assert {setting.seed for setting in now} == {CHOICE_SEED}
        results |= {setting: {"loss": abs(setting.rates.adamw - best.adamw)} for setting in now}
    assert due(stages, stages, results) == [Setting("data_parallel", "A", 400, seed, best) for seed in (0, 1)]


def test_a_budget_without_a_search_takes_the_rates_of_the_next_smaller() -> None:
    small, large = (Stage("A", steps, ("data_parallel",), 1, searched=()) for steps in (400, 1600))
    assert due((large,), (small, large), {}) == [
        Setting("data_parallel", "A", 1600, 0, VARIANTS["data_parallel"].start)
    ]


def test_a_mean_of_the_last_models_has_no_run_of_its_own() -> None:
    stages = (Stage("B", 6400, ("by_default", "by_default_averaged"), 1, searched=()),)
    (setting,) = due(stages, stages, {})
    assert setting.variant == "by_default"
    run = {"loss": 1.5, "loss_of_means": {"0.06": 1.25, "0.12": 1.0}, "cpu_seconds": 1.0, "commit": "abc"}
    counts = {"trained_tokens": 100, "merged_tokens": 90, "learner_steps": [6400], "pushed_bytes": 1}
    last, mean = figures(stages, {setting: run | counts})["rows"]
    assert (last["loss"], mean["loss"]) == (1.5, 1.25)
    assert mean["inner_steps"] == last["inner_steps"] == 6400


def test_the_interval_of_pairs_is_students() -> None:
    # By hand: mean 2, standard deviation 1, 3 values: 4.303 / sqrt(3).
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(2.4843, abs=1e-3)
    assert half_width([1.0]) is None
