"""A recommendation is a measured setting that fits, and names only what the job sets differently."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diloco.plan.model_size import model_size
from diloco.simulate.planning.advice import Advice, advice, not_measured
from diloco.simulate.planning.case import Case
from diloco.spec import JobSpec, recommendations
from diloco.spec.recommendations import Recommendation
from diloco.world.reading import read_world
from tests.support.small_job import named_job, small_job

WIDE = Recommendation(400, "A", "Muon", 6, "BF16", "F32", 1.0, 0.0, 4.0, 5, 4.0, 0.82)
NARROW = Recommendation(400, "A", "Muon", 6, "Int4", "Int8", 1.0, 0.0, 4.5, 2, 1.05, 0.82)
PLAIN = Recommendation(400, "A", "AdamW", 24, "BF16", "F32", 0.7, 0.3, 9.0, 5, 1.0, 0.93)


@pytest.fixture(autouse=True)
def _three_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recommendations, "MEASURED", (WIDE, NARROW, PLAIN))


def job(**sync: Any) -> JobSpec:
    regions = [{"name": name, "pools": [{"name": "a", "learners": 1}]} for name in ("east", "west")]
    return small_job(Path("text"), regions=regions, sync={"fragments": 24, "interval": 24} | sync)


def given(spec: JobSpec, *links: str, steps: tuple[str, ...] = ("*=0.5",)) -> Advice | None:
    return advice(case_of(spec, *links, steps=steps))


def case_of(spec: JobSpec, *links: str, steps: tuple[str, ...] = ("*=0.5",)) -> Case:
    return Case.of(named_job("planned", spec), read_world(spec, links, steps), model_size(spec, None).numels)


def told(found: Advice | None) -> list[str]:
    assert found is not None
    return [str(change) for change in found.changes]


def test_the_best_that_was_measured_is_recommended_where_links_carry_it() -> None:
    found = given(job(), "*=1Gbit/s,5ms")
    assert found is not None
    assert found.row == WIDE
    assert found.fit.fits
    # With that interval, averaging is the outer optimizer unless another one is given.
    assert told(found) == ["training.optimizer.type: Muon", "sync.interval: 6"]


def test_a_thinner_link_gets_what_it_carries() -> None:
    rows = [given(job(), f"*={rate}kbit/s,5ms") for rate in (2000, 500, 270, 50)]
    assert [None if found is None else found.row for found in rows] == [WIDE, NARROW, PLAIN, None]


def test_settings_of_which_the_links_lower_the_share_are_not_recommended() -> None:
    near, far = given(job(), "*=1Gbit/s,5ms", steps=("*=0.1",)), given(job(), "*=1Gbit/s,160ms", steps=("*=0.1",))
    assert near is not None
    assert near.row == WIDE
    assert far is not None
    assert far.row == PLAIN
    assert (far.fit.merged_share or 0) > 0.8 * PLAIN.merged_share


def test_where_that_is_so_of_all_the_one_with_most_merged_is(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tuple(replace(row, merged_share=1.0) for row in (WIDE, NARROW))
    monkeypatch.setattr(recommendations, "MEASURED", rows)
    found = given(job(), "*=1200kbit/s,5ms")
    assert found is not None
    assert found.row == rows[1]


def test_what_the_job_has_already_is_not_told_again() -> None:
    outer = {"learningRate": 0.7, "momentum": 0.3}
    assert told(given(job(outerOptimizer=outer), "*=270kbit/s,5ms")) == []


def test_of_a_sparse_job_the_density_goes_and_the_outer_optimizer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recommendations, "MEASURED", (PLAIN, replace(PLAIN, outer_learning_rate=1.0, outer_momentum=0)))
    sparse = job(compression="TopK", downlink="TopK", density=1 / 32)
    assert told(given(sparse, "*=1Gbit/s,5ms")) == [
        "sync.compression: BF16",
        "sync.downlink: F32",
        "no sync.density",
        "sync.outerOptimizer.learningRate: 0.7",
        "sync.outerOptimizer.momentum: 0.3",
    ]


def test_an_overlap_too_long_for_a_shorter_interval_is_left_to_the_engine() -> None:
    assert "sync.overlap: Auto" in told(given(job(overlap=8), "*=1Gbit/s,5ms"))
    assert "sync.overlap: Auto" not in told(given(job(overlap=4), "*=1Gbit/s,5ms"))


def test_steps_are_those_of_the_learner_that_the_schedule_counts_by() -> None:
    found = given(job(), "*=1Gbit/s,5ms", steps=("east=0.5", "west=1"))
    assert found is not None
    # The slower learner trains half a batch in a step of the faster: 1.5 batches of 64 tokens, of 100,000.
    assert found.steps == round(100_000 / 96)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tokens": 33_000 * 128}, "of about 33000 steps a learner (measured: 400 to 400)"),
        ({"preset": "micro"}, "of 4.79M parameters (measured: 0.1M)"),
    ],
)
def test_what_is_far_from_all_that_was_measured_is_said_to_be(changes: dict[str, Any], told: str) -> None:
    model = {"builtin": {"preset": changes.get("preset", "pico")}}
    training = {"sequenceLength": 16, "batchSize": 4, "tokens": changes.get("tokens", 100_000)}
    spec = small_job(Path("text"), model=model, training=training, sync={"fragments": 24, "interval": 24})
    case = case_of(spec, "*=1Gbit/s,5ms")
    assert advice(case) is None
    assert not_measured(case).endswith(told)


def test_without_step_times_nothing_is_recommended() -> None:
    assert given(job(), "*=1Gbit/s,5ms", steps=()) is None
