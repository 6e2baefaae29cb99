"""A job in its world as a value that can be changed, and made smaller for a short simulation."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Self

from diloco.plan.changes import FEWEST_INTERVALS, Change, LinkRate, Setting, StepTime
from diloco.plan.situation import SYNCER_LINK, Situation, line_rate, situation_of
from diloco.spec import DiLoCoJob, JobSpec
from diloco.spec.automatic import AUTO
from diloco.spec.placement import Region
from diloco.spec.quantities import UNLIMITED
from diloco.world.model import PoolWorld, RegionWorld, World

_LEAST_STEPS: Final = 96
"""Steps of an interval, and four for each fragment, that are simulated at least if there are as many."""
_FIELDS: Final = {
    "sync.compression": "compression",
    "sync.downlink": "downlink",
    "sync.interval": "interval",
    "sync.maxStalenessSteps": "max_staleness_steps",
    "sync.overlap": "overlap",
}


@dataclass(frozen=True)
class Case:
    """A job, and a world that says of every region and pool of it what holds there."""

    job: DiLoCoJob
    world: World
    numels: tuple[int, ...]
    """Parameters of each fragment."""

    @classmethod
    def of(cls, job: DiLoCoJob, world: World, numels: tuple[int, ...]) -> Self:
        """The case of a job in a world."""
        spec, regions = job.spec, {}
        for region in spec.regions:
            given = world.region(region.name)
            pools = {}
            for pool in region.pools:
                place = f"{region.name}/{pool.name}"
                seconds = world.step_seconds(spec, place, sum(numels)) if pool.size else None
                pools[pool.name] = world.pool(place).model_copy(update={"step_seconds": seconds})
            rate = _rate_text(line_rate(region, given))
            regions[region.name] = given.model_copy(update={"link": rate, "pools": pools})
        free = tuple(region.model_copy(update={"bandwidth": None}) for region in spec.regions)
        whole = world.model_copy(update={"regions": regions})
        return cls(_with(job, regions=free), whole, numels)

    @property
    def spec(self) -> JobSpec:
        """Of the job."""
        return self.job.spec

    @cached_property
    def situation(self) -> Situation:
        """For the arithmetic."""
        return situation_of(self.spec, self.world, self.numels)

    @cached_property
    def steps(self) -> int:
        """Inner steps of the learner that the schedule counts by, until the budget is trained. Needs step times."""
        return max(1, round(self.spec.training.tokens / self.situation.tokens_in_a_step))

    @property
    def longest_interval(self) -> int:
        """With which the job still has enough of them; may be 0."""
        return self.steps // FEWEST_INTERVALS

    @property
    def short(self) -> bool:
        """Whether the job has too few intervals."""
        return self.spec.sync.interval > self.longest_interval

    def changed(self, changes: Iterable[Change]) -> Self:
        """The case with these changes."""
        case = self
        for change in changes:
            case = case._changed(change)
        return case

    def with_steps(self, seconds: float) -> Self:
        """The case with inner steps of this duration everywhere."""
        return self._with_pools(lambda _: {"step_seconds": seconds})

    def _changed(self, change: Change) -> Self:
        match change:
            case StepTime(factor):
                return self._with_pools(lambda pool: {"step_seconds": factor * (pool.step_seconds or 0.0)})
            case LinkRate(link, rate):
                return self._with_rate(link, rate)
            case Setting(field, value) if field in _FIELDS:
                sync = self.spec.sync.model_copy(update={_FIELDS[field]: value})
                return replace(self, job=_with(self.job, sync=sync))
            case Setting(field, value):
                name = field.removeprefix("regions[").removesuffix("].connections")
                regions = (
                    one.model_copy(update={"connections": value}) if one.name == name else one
                    for one in self.spec.regions
                )
                return replace(self, job=_with(self.job, regions=tuple(regions)))

    def _with_pools(self, changes: Callable[[PoolWorld], dict[str, Any]]) -> Self:
        regions = {}
        for name, region in self.world.regions.items():
            pools = {key: pool.model_copy(update=changes(pool)) for key, pool in region.pools.items()}
            regions[name] = region.model_copy(update={"pools": pools})
        return replace(self, world=self.world.model_copy(update={"regions": regions}))

    def _with_rate(self, link: str, bytes_per_second: float) -> Self:
        text, world = _rate_text(bytes_per_second), self.world
        if link == SYNCER_LINK:
            changed = {"syncer": world.syncer.model_copy(update={"link": text})}
            return replace(self, world=world.model_copy(update=changed))
        region = world.regions[link].model_copy(update={"link": text})
        return replace(self, world=world.model_copy(update={"regions": {**world.regions, link: region}}))

    def fewer(self, most: int) -> Self:
        """The case with about ``most`` learners, and links, quorum and merges in proportion.

        Learners of a pool are alike, so each of fewer takes its part of a link as each of all does.
        """
        spec, world = self.spec, self.world
        everyone = len(spec.learner_ids)
        if everyone <= most:
            return self
        regions, worlds = [], {}
        for region in spec.regions:
            pools = tuple(
                pool.model_copy(update={"learners": round(pool.size * most / everyone) or 1, "excluded_indices": ()})
                if pool.size
                else pool
                for pool in region.pools
            )
            fewer = region.model_copy(update={"pools": pools})
            regions.append(fewer)
            share = _learners(fewer) / _learners(region) if _learners(region) else 1.0
            worlds[region.name] = _scaled(world.regions[region.name], share)
        left = sum(map(_learners, regions))
        quorum = left if spec.sync.quorum >= everyone else max(1, round(spec.sync.quorum * left / everyone))
        syncer = world.syncer.model_copy(
            update={
                "link": _rate_text(world.syncer.bytes_per_second * left / everyone),
                "merge_rate": _rate_text(world.syncer.merge_bytes_per_second * left / everyone),
            }
        )
        job = _with(
            self.job,
            regions=tuple(regions),
            sync=spec.sync.model_copy(update={"quorum": quorum}),
            failure_policy=spec.failure_policy.model_copy(update={"minimum_learners": 1}),
        )
        return replace(self, job=job, world=world.model_copy(update={"regions": worlds, "syncer": syncer}))

    def coarser(self) -> tuple[Self, int]:
        """The case with fewer and longer steps in a long interval, and how many steps each of them stands for."""
        sync, training = self.spec.sync, self.spec.training
        factor = sync.interval // max(_LEAST_STEPS, 4 * len(self.numels))
        if factor <= 1:
            return self, 1
        bound, overlap = sync.max_staleness_steps, sync.overlap
        steps = {
            "interval": round(sync.interval / factor),
            "overlap": overlap if overlap == AUTO else math.ceil(overlap / factor),
            "max_staleness_steps": None if bound is None else math.ceil(bound / factor),
        }
        longer = training.model_copy(update={"sequence_length": training.sequence_length * factor})
        pools = self._with_pools(
            lambda pool: {
                "step_seconds": factor * (pool.step_seconds or 0.0),
                # The sum of independent steps deviates less.
                "step_deviation": pool.step_deviation / math.sqrt(factor),
            }
        )
        return replace(pools, job=_with(self.job, sync=sync.model_copy(update=steps), training=longer)), factor


def _with(job: DiLoCoJob, **changes: Any) -> DiLoCoJob:
    return job.model_copy(update={"spec": job.spec.model_copy(update=changes)})


def _learners(region: Region) -> int:
    return sum(pool.size for pool in region.pools)


def _scaled(region: RegionWorld, share: float) -> RegionWorld:
    return region.model_copy(update={"link": _rate_text(region.bytes_per_second * share)})


def _rate_text(bytes_per_second: float) -> str:
    return f"{bytes_per_second!r}B/s" if math.isfinite(bytes_per_second) else UNLIMITED
