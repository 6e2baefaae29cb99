"""Makes the scenario of a job from its world: what each learner, link and machine does."""

import math
from typing import Final

from diloco.plan.situation import line_rate
from diloco.simulate.failures import Absence, Failures
from diloco.simulate.scenario import Link, Profile, Scenario
from diloco.spec import JobSpec
from diloco.spec.placement import Region
from diloco.world import WorldError
from diloco.world.model import RegionWorld, World
from diloco.world.rates import bytes_per_second_of

_SYNCER_LINE: Final = "syncer/"
"""Name of the syncer's own line: no region can have it."""
_HOUR: Final = 3600.0


def scenario_of(spec: JobSpec, world: World, parameters: int, seed: int) -> Scenario:
    """The scenario of a job whose model has so many trained parameters.

    Raises:
        WorldError: a step time is not known.
    """
    profiles, failures, lines = {}, {}, _lines(spec, world)
    for region in spec.regions:
        given = world.region(region.name)
        passed = tuple(name for name in (region.name, _SYNCER_LINE) if name in lines)
        link = Link(given.round_trip_seconds / 2, _own_rate(region, given), given.jitter_seconds)
        for pool in region.pools:
            if not pool.size:
                continue
            place = f"{region.name}/{pool.name}"
            conditions, step_seconds = world.pool(place), world.step_seconds(spec, place, parameters)
            if step_seconds is None:
                raise WorldError(
                    f"regions.{region.name}.pools.{pool.name}.stepSeconds: is missing; use seconds, or chipFlops"
                )
            profile = Profile(
                step_seconds,
                conditions.step_deviation,
                link=link,
                lines=passed,
                notice_seconds=conditions.preemption_notice_seconds,
                between_steps=conditions.between_steps,
                building_seconds=conditions.start_seconds,
            )
            failing = failures_of(spec, world, place)
            for index in pool.indices:
                profiles[f"{place}/{index}"] = profile
                if failing is not None:
                    failures[f"{place}/{index}"] = failing
    return Scenario(
        profiles,
        failures=failures,
        lines=lines,
        merge_seconds=0.0,
        merge_bytes_per_second=world.syncer.merge_bytes_per_second,
        deadline_seconds=math.inf,
        seed=seed,
    )


def _lines(spec: JobSpec, world: World) -> dict[str, float]:
    """Bytes a second of the lines that can be full: those that carry less than what leads into them does together."""
    lines, into_syncer = {}, 0.0
    for region in spec.regions:
        given, learners = world.region(region.name), sum(pool.size for pool in region.pools)
        rate, used = line_rate(region, given), learners * _own_rate(region, given) if learners else 0.0
        if rate < used:
            lines[region.name] = rate
        into_syncer += min(rate, used)
    if world.syncer.bytes_per_second < into_syncer:
        lines[_SYNCER_LINE] = world.syncer.bytes_per_second
    return lines


def _own_rate(region: Region, given: RegionWorld) -> float:
    """What the connections of one learner carry."""
    return bytes_per_second_of(region.connections, given.round_trip_seconds)


def failures_of(spec: JobSpec, world: World, place: str) -> Failures | None:
    """How the learners at ``region/pool`` fail; None: they do not."""
    pool, chips = world.pool(place), world.chips(spec, place)
    if pool.chip_interruption_hours is None and not pool.preemptions_per_hour:
        return None
    away = Absence(pool.recovery.mean_seconds, pool.recovery.shape, pool.recovery.power)
    return Failures(
        chips=chips,
        slice_chips=pool.slice_chips or chips,
        chip_interruption_seconds=(pool.chip_interruption_hours or math.inf) * _HOUR,
        pause_down_seconds=pool.pause_down_seconds,
        pause_up_seconds=pool.pause_up_seconds,
        recovery=away,
        preemption_seconds=_HOUR / pool.preemptions_per_hour if pool.preemptions_per_hour else math.inf,
        preempted=away,
    )
