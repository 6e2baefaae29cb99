"""The outer optimizer that a job gets follows from its interval and length, unless the manifest gives one."""

import re
from typing import Any

import pytest

from diloco.spec import DiLoCoJob, JobSpec
from diloco.spec.job import Metadata
from diloco.spec.outer_choice import AVERAGE, DILOCO, LONG_INTERVAL, MEASURED, Measured, OuterChoice, expected_merges
from diloco.spec.sync import OuterOptimizer, SyncSpec
from tests.support.small_job import small_job

MIDDLE = MEASURED[1].optimizer
MANY_MERGES = MEASURED[-1].least_merges
GIVEN = OuterOptimizer(learning_rate=0.5, momentum=0.3)


def job(merges: float, *, interval: int = 24, pools: list[dict[str, Any]] | None = None, **sync: Any) -> JobSpec:
    """A job whose budget lasts for so many merges of each fragment with two learners and an interval of 24."""
    training = {"tokens": round(merges * 24 * 2 * 64), "sequenceLength": 16, "batchSize": 4}
    regions = [{"name": "here", "pools": pools or [{"name": "cpu", "learners": 2}]}]
    return small_job(training=training, sync={"fragments": 6, "interval": interval} | sync, regions=regions)


@pytest.mark.parametrize(
    ("merges", "chosen"),
    [(1, AVERAGE), (33.5, AVERAGE), (34, MIDDLE), (MANY_MERGES - 0.5, MIDDLE), (MANY_MERGES, DILOCO), (1000, DILOCO)],
)
def test_the_more_merges_are_expected_the_more_momentum(merges: float, chosen: OuterOptimizer) -> None:
    assert OuterChoice.of(job(merges)).optimizer == chosen


@pytest.mark.parametrize("row", MEASURED, ids=str)
def test_each_run_that_was_measured_is_within_its_own_range(row: Measured) -> None:
    assert OuterChoice.of(job(row.merges)).optimizer == row.optimizer


@pytest.mark.parametrize(
    ("merges", "learners", "interval", "optimizer", "how"),
    [
        (266, 4, 24, "AdamW", "as measured with"),
        (133 * 4, 4, 24, "AdamW", "as measured with"),
        (133 * 4 + 1, 4, 24, "AdamW", "extrapolated from"),
        (266, 5, 24, "AdamW", "extrapolated from"),
        (266, 4, 48, "AdamW", "extrapolated from"),
        (266, 4, 24, "Muon", "extrapolated from"),
    ],
)
def test_a_job_unlike_the_measured_ones_is_told_so(
    merges: int, learners: int, interval: int, optimizer: str, how: str
) -> None:
    pools = [{"name": "cpu", "learners": learners}]
    spec = job(merges * learners * interval / 24 / 2, pools=pools, interval=interval)
    inner = spec.training.optimizer.model_copy(update={"type": optimizer})
    spec = spec.model_copy(update={"training": spec.training.model_copy(update={"optimizer": inner})})
    assert expected_merges(spec) == merges
    assert f"; {how} 266, 4 learners, interval 24 and AdamW" in OuterChoice.of(spec).reason


@pytest.mark.parametrize("interval", [1, 6, LONG_INTERVAL - 1])
def test_a_short_interval_averages_however_long_the_job_is(interval: int) -> None:
    assert OuterChoice.of(job(10_000, interval=interval)).optimizer == AVERAGE


def test_a_job_with_top_k_averages_however_long_it_is() -> None:
    assert OuterChoice.of(job(1000, compression="TopK")) == OuterChoice(
        optimizer=AVERAGE, reason="sync.compression is TopK"
    )


def test_what_the_manifest_gives_is_taken_at_any_length() -> None:
    for merges in (1, 1000):
        given = job(merges, outerOptimizer={"learningRate": 0.5, "momentum": 0.3})
        assert OuterChoice.of(given, OuterChoice.of(job(1000))) == OuterChoice(optimizer=GIVEN)


@pytest.mark.parametrize(
    ("pools", "merges"),
    [
        ([{"name": "a", "learners": 1}], 40),
        ([{"name": "a", "learners": 4}], 10),
        ([{"name": "a", "learners": 4, "excludedIndices": [1, 2]}], 20),
        ([{"name": "a", "learners": 4, "minimumLearners": 1}], 10),
        ([{"name": "a", "learners": 1, "batchSize": 8}, {"name": "b", "learners": 2}], 10),
    ],
    ids=["one", "four", "two of four", "elastic: all", "by batch"],
)
def test_merges_of_a_fragment_are_the_intervals_of_a_learners_share(pools: list[dict[str, Any]], merges: int) -> None:
    assert expected_merges(job(20, pools=pools)) == merges
    assert expected_merges(job(20, pools=pools, interval=12)) == 2 * merges
    assert expected_merges(job(20, pools=pools, fragments=2)) == merges


def test_a_job_that_resumes_keeps_its_choice_however_its_pools_are_scaled() -> None:
    before = OuterChoice.of(job(MANY_MERGES))
    scaled = job(MANY_MERGES, pools=[{"name": "cpu", "learners": 50}])
    assert OuterChoice.of(scaled).optimizer == AVERAGE
    assert OuterChoice.of(scaled, before) == before


def test_a_job_whose_manifest_no_longer_gives_an_optimizer_chooses_one() -> None:
    assert OuterChoice.of(job(1), OuterChoice(optimizer=GIVEN)) == OuterChoice.of(job(1))


def test_it_says_what_was_chosen_and_why() -> None:
    given = job(17, outerOptimizer={"learningRate": 0.5, "momentum": 0.3})
    alike = ", 4 learners, interval 24 and AdamW"
    assert [str(OuterChoice.of(one)) for one in (job(17), job(600), job(600, interval=6), given)] == [
        f"learning rate 1, momentum 0 (Auto: expected merges of each fragment: 17; extrapolated from 17{alike})",
        f"learning rate 0.7, momentum 0.9 (Auto: expected merges of each fragment: 600; extrapolated from 266{alike})",
        "learning rate 1, momentum 0 (Auto: sync.interval 6 is below 24)",
        "learning rate 0.5, momentum 0.3 (as given)",
    ]


def test_a_job_with_its_optimizer_put_in_chooses_no_other() -> None:
    whole = DiLoCoJob(
        api_version="diloco.dev/v1alpha1", kind="DiLoCoJob", metadata=Metadata(name="made"), spec=job(MANY_MERGES)
    )
    assert OuterChoice.of(OuterChoice(optimizer=AVERAGE).put_into(whole).spec).optimizer == AVERAGE


def test_the_reference_has_the_bounds() -> None:
    described = " ".join(str(SyncSpec.model_fields["outer_optimizer"].description).split())
    assert f"if the interval is below {LONG_INTERVAL} or" in described
    assert [one.least_merges - 1 for one in MEASURED[1:]] == [
        int(word) for word in re.findall(r"up to (\d+)", described)
    ]
    assert f"from {MANY_MERGES} on" in described
