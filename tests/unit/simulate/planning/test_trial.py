"""A trial compared with long runs of the engine in virtual time: what it says of a few intervals goes on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from diloco.plan.verdict import Fit, FitKind, judge
from diloco.simulate.of_world import scenario_of
from diloco.simulate.planning.case import Case
from diloco.simulate.planning.trial import trial
from diloco.simulate.training.counted import layout_of_sizes
from diloco.simulate.world import Course, simulate_course
from diloco.spec import DiLoCoJob
from diloco.world.model import World as WorldFile
from tests.support.situations import EVEN, NEEDED
from tests.support.small_job import named_job, small_job

SHORT, LONG = 200, 400
"""Inner steps of two runs: what the longer one adds has neither a beginning nor an end."""
TOLERANCE = 0.05
"""Of a learner's merged share: steps that differ by 5 % are not in the closed form."""


@dataclass(frozen=True)
class World:
    """A learner for each step time, in a region of its own."""

    steps: Sequence[float]
    rates: Sequence[float]
    round_trips: Sequence[float]
    numels: tuple[int, ...] = EVEN
    interval: int = 24
    quorum: int = 1
    overlap: int | None = None
    staleness_bound_steps: int | None = None
    downlink: str = "F32"

    def case(self, steps: int = LONG) -> Case:
        return Case.of(self.job(steps), self.world(), self.numels)

    def fit(self) -> Fit:
        case = self.case()
        found = trial(case)
        assert found is not None
        return judge(case.situation, found.outcome)

    def world(self) -> WorldFile:
        regions = {
            f"r{index}": {
                "link": f"{rate!r}B/s" if math.isfinite(rate) else "unlimited",
                "roundTripSeconds": round_trip,
                "pools": {"p": {"stepSeconds": step, "stepDeviation": 0.05}},
            }
            for index, (step, rate, round_trip) in enumerate(zip(self.steps, self.rates, self.round_trips, strict=True))
        }
        return WorldFile.model_validate({"regions": regions})

    def job(self, steps: int) -> DiLoCoJob:
        sync: dict[str, Any] = {"fragments": len(self.numels), "interval": self.interval, "quorum": self.quorum}
        sync["downlink"] = self.downlink
        if self.overlap is not None:
            sync["overlap"] = self.overlap
        if self.staleness_bound_steps is not None:
            sync["maxStalenessSteps"] = self.staleness_bound_steps
        regions = [
            {"name": f"r{index}", "connections": 64, "pools": [{"name": "p"}]} for index in range(len(self.steps))
        ]
        tokens = steps * len(self.steps) * 64
        training = {"tokens": tokens, "sequenceLength": 16, "batchSize": 4, "evaluation": {"everyTokens": tokens}}
        spec = small_job(regions=regions, sync=sync, training=training)
        return named_job("planned", spec)

    def course(self, steps: int) -> Course:
        job = self.job(steps)
        scenario = scenario_of(job.spec, self.world(), sum(self.numels), 1)
        return simulate_course(job, scenario, layout_of_sizes(self.numels))


@dataclass(frozen=True)
class Seen:
    """Results of a run, without its beginning and its end."""

    shares: list[float]
    members_per_merge: float
    pace: float
    """Merges of what the schedule has in the steps of the fastest learner."""


def seen(world: World) -> Seen:
    short, long = world.course(SHORT), world.course(LONG)
    both = list(zip(short.view.learners, long.view.learners, strict=True))
    merges = long.counts.merges - short.counts.merges
    steps = max(after.steps - before.steps for before, after in both)
    return Seen(
        [(after.merged_tokens - before.merged_tokens) / (after.tokens - before.tokens) for before, after in both],
        (long.counts.members - short.counts.members) / merges,
        merges / (steps * len(world.numels) / world.interval),
    )


LARGE = (sum(EVEN) // 4, *(3 * sum(EVEN) // 4 // 23,) * 23)
"""One fragment has a quarter of the parameters, as an embedding may."""
NEAR, ANY = (0.01,) * 4, (math.inf,) * 4
HALF = (0.5,) * 4
GOOD = {
    "near and fast": World(HALF, ANY, NEAR),
    "half used": World(HALF, (2 * NEEDED,) * 4, NEAR),
    "nearly full": World(HALF, (1.1 * NEEDED,) * 4, NEAR),
    "two on thin links": World(HALF, (1.2 * NEEDED, 1.2 * NEEDED, math.inf, math.inf), NEAR),
    "one far": World((0.1,) * 4, ANY, (0.16, 0.01, 0.01, 0.01)),
    "one farther": World((0.05,) * 4, ANY, (0.2, 0.01, 0.01, 0.01)),
    "all far": World((0.1,) * 4, ANY, (0.16,) * 4),
    "one five times slower": World((2.5, 0.5, 0.5, 0.5), ANY, NEAR),
    "one ten times slower": World((5.0, 0.5, 0.5, 0.5), ANY, NEAR),
    "every second step": World(HALF, (0.7 * NEEDED,) * 4, NEAR, interval=48),
    "thin, with encoded updates": World(HALF, (0.55 * NEEDED,) * 4, NEAR, downlink="Int8"),
    "three a step": World(HALF, (3.5 * NEEDED,) * 4, NEAR, interval=8),
    "four fragments": World(HALF, (1.5 * NEEDED,) * 4, NEAR, numels=(24_000,) * 4),
    "all farther": World((0.05,) * 4, ANY, (0.2,) * 4),
    "all farther, with the overlap that is needed": World((0.05,) * 4, ANY, (0.2,) * 4, overlap=5),
    "sparse and thin": World(HALF, (0.55 * NEEDED,) * 4, NEAR, interval=48),
    "sparse and thin, with the overlap that is needed": World(HALF, (0.55 * NEEDED,) * 4, NEAR, interval=48, overlap=3),
    "one large fragment on an idle link": World(HALF, ANY, NEAR, numels=LARGE),
    "one large fragment": World(HALF, (4 * NEEDED,) * 4, NEAR, numels=LARGE),
    "lock-step": World(HALF, ANY, NEAR, quorum=4, overlap=2, staleness_bound_steps=26),
}
BAD = {
    "too thin": (World(HALF, (0.7 * NEEDED,) * 4, NEAR), FitKind.LINK_TOO_THIN),
    "overlap too short": (World((0.05,) * 4, ANY, (0.4,) * 4, overlap=2), FitKind.OVERLAP_TOO_SHORT),
    "one beyond reach": (World((0.05,) * 4, ANY, (1.4, 0.01, 0.01, 0.01)), FitKind.ROUND_TOO_LONG),
}


ROUGH = {"thin, with encoded updates": 0.1, "four fragments": 0.1}
"""Tolerance where links are nearly full, or fragments few and large: a few intervals do not show the usual overlap."""


@pytest.mark.slow
@pytest.mark.parametrize("name", GOOD)
def test_what_fits_goes_on_as_it_began_and_keeps_the_schedule(name: str) -> None:
    world = GOOD[name]
    found, run = world.fit(), seen(world)
    assert found.fits, found.reason
    assert found.outcome is not None
    for pool, share in zip(found.outcome.pools, run.shares, strict=True):
        assert pool.merged == pytest.approx(share, abs=ROUGH.get(name, TOLERANCE))
    assert run.members_per_merge > 0.96 * len(world.steps)
    assert run.pace == pytest.approx(1, abs=0.04)


@pytest.mark.slow
@pytest.mark.parametrize(("world", "kind"), BAD.values(), ids=BAD)
def test_what_does_not_fit_loses_members_or_the_schedule(world: World, kind: FitKind) -> None:
    found, run = world.fit(), seen(world)
    assert found.kind is kind
    assert run.members_per_merge < 0.9 * len(world.steps) or run.pace < 0.9


def test_one_beyond_reach_is_left_out_and_costs_the_others_nothing() -> None:
    world, _ = BAD["one beyond reach"]
    found, run = world.fit(), seen(world)
    assert found.outcome is not None
    assert [pool.late > 0.5 for pool in found.outcome.pools] == [True, False, False, False]
    assert run.shares[0] < 0.1
    for pool, share in zip(found.outcome.pools[1:], run.shares[1:], strict=True):
        assert pool.merged == pytest.approx(share, abs=TOLERANCE)


def test_a_learner_whose_step_spans_most_of_an_interval_is_named() -> None:
    found = World((0.02, 1.0, 1.0, 1.0), ANY, NEAR).fit()
    assert found.kind is FitKind.ROUND_TOO_LONG


def test_lock_step_fits_and_nobody_is_late() -> None:
    found = GOOD["lock-step"].fit()
    assert found.fits
    assert found.outcome is not None
    assert {pool.late for pool in found.outcome.pools} == {0.0}


@pytest.mark.parametrize(("learners", "interval"), [(40, 24), (2, 2000)])
def test_of_many_learners_and_long_intervals_a_part_tells_the_same(learners: int, interval: int) -> None:
    """The link is used to the same share in all of them."""
    shares = []
    for count, steps in ((2, 24), (learners, interval)):
        rate = 1.5 * NEEDED * count
        regions = [{"name": "here", "connections": 64, "pools": [{"name": "p", "learners": count}]}]
        job = named_job("planned", small_job(regions=regions, sync={"fragments": 24, "interval": steps}))
        pool = {"stepSeconds": 0.5 * (24 / steps), "stepDeviation": 0.05 * math.sqrt(steps / 24)}
        world = WorldFile.model_validate({"regions": {"here": {"link": f"{rate}B/s", "pools": {"p": pool}}}})
        found = trial(Case.of(job, world, EVEN))
        assert found is not None
        (one,) = found.outcome.pools
        assert one.learners == count
        shares.append(one.merged)
    assert shares[1] == pytest.approx(shares[0], abs=0.03)


def test_a_link_that_lets_nothing_through_is_not_simulated() -> None:
    assert trial(World(HALF, (0.01 * NEEDED,) * 4, NEAR).case()) is None
