"""Forecasts a job from a short simulation: the share of work that is merged, and when the job is complete.

Queues, waits and leads are the engine's own, simulated for a few intervals without failures. Failures are rarer than
that: what they cost is drawn from the same process for each learner, without the engine, and added, with the time in
which too few learners for the quorum are there.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from statistics import variance
from typing import Final

from diloco.core.sizes import F32
from diloco.simulate.failures import Failures, standstills
from diloco.simulate.of_world import scenario_of
from diloco.simulate.scenario import Scenario
from diloco.simulate.training.counted import counted_work, layout_of_sizes
from diloco.simulate.world import Course, Simulation
from diloco.spec import DiLoCoJob, JobSpec
from diloco.spec.names.learner_ids import pool_of
from diloco.world.cost import cost_of
from diloco.world.model import World

MOST_EVENTS: Final = 150_000
"""Things that happen in a short simulation, at most: a second or two of computing."""
_CYCLES: Final = 2
"""Intervals that are measured, after the first one of all learners."""
_DRAWS: Final = 40
_STOPS: Final = 50
"""Standstills of a learner that each draw covers, about."""
_DEVIATIONS: Final = 1.645
"""Of a normal distribution, from the middle to 5 and 95 %."""
_ENDLESS_TOKENS: Final = 10**15
_LEAST_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Forecast:
    """How a job goes in its world."""

    merged_share: float
    """Share of the learners' time whose work is merged, without failures."""
    by_pool: Mapping[str, float]
    """The same of each pool."""
    members_per_merge: float
    computing_share: float
    """Of the learners' time, left by failures and what they lose."""
    seconds: tuple[float, float, float]
    """Until the job is complete, with a chance of 5, 50 and 95 %."""
    cost: float
    """Of the job, in the currency of the world's prices, with a chance of 50 %."""
    simulated_seconds: float
    """Virtual time of the simulation."""


def forecast(job: DiLoCoJob, world: World, numels: tuple[int, ...], seed: int = 0) -> Forecast | None:
    """Simulate shortly; ``numels``: of the model's fragments.

    None: nothing is merged, or intervals and learners are too many to simulate shortly.

    Raises:
        WorldError: a step time is not known.
    """
    spec = job.spec
    failing = scenario_of(spec, world, sum(numels), seed)
    scenario = replace(failing, failures={})
    training = spec.training.model_copy(update={"tokens": _ENDLESS_TOKENS})
    endless = job.model_copy(update={"spec": spec.model_copy(update={"training": training})})
    layout = layout_of_sizes(numels)
    simulation = Simulation(endless, scenario, layout, counted_work(endless.spec, layout))
    begin = _settled(simulation, spec)
    if begin is None:
        return None
    sent = _sent(simulation)
    end = _later(simulation, spec, begin.counts.merges + _CYCLES * len(numels))
    if end is None or end.view.merged_tokens <= begin.view.merged_tokens:
        return None
    seconds = end.virtual_seconds - begin.virtual_seconds
    merged = end.view.merged_tokens - begin.view.merged_tokens
    speeds = {
        learner: spec.pool_of(learner).largest_batch(spec.training)
        * spec.training.sequence_length
        / scenario.profile(learner).step_seconds
        for learner in spec.learner_ids
    }
    computing, deviation = _computing(spec, failing, speeds, numels, seed)
    finish = _finish(spec, begin, merged / seconds, computing, deviation)
    rates = {region: (now - sent.get(region, 0)) / seconds for region, now in _sent(simulation).items()}
    return Forecast(
        merged_share=min(1.0, merged / seconds / math.fsum(speeds.values())),
        by_pool=_shares(begin, end, speeds),
        members_per_merge=(end.counts.members - begin.counts.members) / (end.counts.merges - begin.counts.merges),
        computing_share=computing,
        seconds=finish,
        cost=cost_of(spec, world, finish[1], {region: rate * finish[1] for region, rate in rates.items()}),
        simulated_seconds=end.virtual_seconds,
    )


def _cycle_seconds(spec: JobSpec, scenario: Scenario) -> float:
    """An interval of the learner that the schedule counts by: the K-th fastest."""
    steps = sorted(scenario.profile(learner).step_seconds for learner in spec.learner_ids)
    return spec.sync.interval * steps[min(spec.sync.quorum, len(steps)) - 1]


def _settled(simulation: Simulation, spec: JobSpec) -> Course | None:
    """The run when every fragment was merged and every learner has trained for an interval; None: it takes too long."""
    cycle = _cycle_seconds(spec, simulation.scenario)
    while (course := _later(simulation, spec, spec.sync.fragments)) is not None:
        slow = (simulation.scenario.profile(one.id).step_seconds for one in course.view.learners)
        if all(one.steps * each >= cycle for one, each in zip(course.view.learners, slow, strict=True)):
            return course
        if not simulation.advance(simulation.now + cycle, MOST_EVENTS):
            return None
    return None


def _later(simulation: Simulation, spec: JobSpec, merges: int) -> Course | None:
    """The run when so many merges are made; None: it takes too long."""
    cycle = _cycle_seconds(spec, simulation.scenario)
    while simulation.progress.merges < merges:
        if simulation.events >= MOST_EVENTS or not simulation.advance(simulation.now + cycle, MOST_EVENTS):
            return None
    if simulation.events >= MOST_EVENTS:
        return None
    course = simulation.course()
    return replace(course, counts=replace(course.counts))


def _sent(simulation: Simulation) -> dict[str, int]:
    up, down = simulation.traffic.up, simulation.traffic.down
    return {region: up.get(region, 0) + down.get(region, 0) for region in {*up, *down}}


def _shares(begin: Course, end: Course, speeds: Mapping[str, float]) -> dict[str, float]:
    """By pool: tokens merged of those that its learners could train in the time between."""
    merged: dict[str, float] = {}
    possible: dict[str, float] = {}
    seconds = end.virtual_seconds - begin.virtual_seconds
    for before, after in zip(begin.view.learners, end.view.learners, strict=True):
        place = pool_of(after.id)
        merged[place] = merged.get(place, 0.0) + after.merged_tokens - before.merged_tokens
        possible[place] = possible.get(place, 0.0) + speeds[after.id] * seconds
    return {place: min(1.0, merged[place] / tokens) for place, tokens in possible.items()}


@dataclass(frozen=True, slots=True)
class _Away:
    """How a learner comes and goes, whatever the others do."""

    share: float
    """Of its time."""
    lasts_seconds: float
    """From any moment at which it is away until it is back, on average."""
    ends_per_second: float
    """Ends of its process."""
    varies: float
    """Variance over a second of the share of time that failures take."""

    @property
    def leaves_per_second(self) -> float:
        """Of the time that it is there."""
        return self.share / (self.lasts_seconds * max(_LEAST_SHARE, 1 - self.share)) if self.share else 0.0


def _computing(
    spec: JobSpec, scenario: Scenario, speeds: Mapping[str, float], numels: tuple[int, ...], seed: int
) -> tuple[float, float]:
    """The mean share of time that failures leave, weighted by speed, and its deviation over a second."""
    steps = {pool_of(one): scenario.profile(one).step_seconds for one in speeds}
    # What the old process trained since the last merge of each fragment is gone.
    half = {place: spec.sync.interval / 2 * step for place, step in steps.items()}
    away: dict[str, _Away] = {}
    for learner in speeds:
        if (place := pool_of(learner)) in away:
            continue
        failures = scenario.failures.get(learner, Failures())
        rate = min((scenario.lines[line] for line in scenario.profile(learner).lines), default=math.inf)
        loading = F32.payload_bytes(sum(numels)) / rate
        away[place] = _away(failures, loading, half[place], f"{seed}/{place}")
    short, everywhere, lasts = _short_of_quorum(Counter(map(pool_of, speeds)), away, spec.sync.quorum)
    ahead = spec.sync.staleness_bound_steps - spec.sync.interval
    total, share, spread, stopped = math.fsum(speeds.values()), 0.0, 0.0, 0.0
    for learner, speed in speeds.items():
        weight, place = speed / total, pool_of(learner)
        one = away[place]
        # Without a quorum it trains to its staleness bound, since the quorum was lost or since it is back itself. If it
        # ends in that time, all this is gone, too.
        since = 1 / (1 / lasts + one.leaves_per_second) if lasts else 0.0
        waits = math.exp(-max(0, ahead) * steps[place] / since) if since else 0.0
        trains = since * (1 - waits)
        there = (1 - one.share) * (1 - short[place] * waits)
        share += weight * max(0.0, there - one.ends_per_second * (half[place] + short[place] * trains))
        spread += weight**2 * one.varies
        stopped += weight * waits
    # Times with and without a quorum alternate; all learners stop together.
    spread += 2 * everywhere * (1 - everywhere) ** 2 * lasts * stopped**2
    return max(_LEAST_SHARE, share), math.sqrt(spread)


def _away(failures: Failures, loading_seconds: float, lost_seconds: float, seed: str) -> _Away:
    """How these failures take a learner away. A new process loads the model; what the old one had not sent is lost."""
    some = takewhile(lambda numbered: numbered[0] < _STOPS, enumerate(standstills(failures, seed)))
    horizon = max((stop.at_seconds + stop.seconds for _, stop in some), default=0.0)
    if horizon <= 0:
        return _Away(0.0, 0.0, 0.0, 0.0)
    shares, stretches, ends = list[float](), list[float](), 0
    for draw in range(_DRAWS):
        taken = 0.0
        for stop in takewhile(lambda one: one.at_seconds < horizon, standstills(failures, f"{seed}/{draw}")):
            loading, lost = (loading_seconds, lost_seconds) if stop.ends_process else (0.0, 0.0)
            stretches.append(min(stop.seconds, horizon - stop.at_seconds) + loading)
            taken += stretches[-1] + lost
            ends += stop.ends_process
        shares.append(taken / horizon)
    away = math.fsum(stretches)
    lasts = math.fsum(one * one for one in stretches) / (2 * away) if away else 0.0
    drawn = _DRAWS * horizon
    return _Away(min(1.0, away / drawn), lasts, ends / drawn, variance(shares) * horizon)


def _short_of_quorum(
    learners: Mapping[str, int], away: Mapping[str, _Away], wanted: int
) -> tuple[dict[str, float], float, float]:
    """Learners come and go independently: how often fewer than the quorum are there.

    Returns by place the share of a learner's time there, the share of all time, and how long it lasts on average.
    """
    quorum = min(wanted, sum(learners.values()))

    def chances(of: Mapping[str, int]) -> list[float]:
        """By number, below the quorum, of learners that are there."""
        found = [1.0]
        for place, number in of.items():
            gone = away[place].share
            for _ in range(number):
                found = [
                    gone * own + (1 - gone) * less
                    for own, less in zip([*found, 0.0][:quorum], [0.0, *found], strict=False)
                ]
        return found

    others = {place: chances({**learners, place: number - 1}) for place, number in learners.items()}
    # It begins when one leaves of exactly as many as are wanted.
    begins = math.fsum(
        learners[place] * others[place][-1] * (1 - one.share) * one.leaves_per_second for place, one in away.items()
    )
    everywhere = min(1.0, math.fsum(chances(learners)))
    short = {place: math.fsum(found[:-1]) for place, found in others.items()}
    return short, everywhere, everywhere / begins if begins else 0.0


def _finish(
    spec: JobSpec, begin: Course, tokens_per_second: float, computing: float, deviation: float
) -> tuple[float, float, float]:
    left = max(0.0, spec.training.tokens - begin.view.merged_tokens)

    def after(share: float) -> float:
        return begin.virtual_seconds + left / (tokens_per_second * max(_LEAST_SHARE, share))

    middle = after(computing)
    spread = _DEVIATIONS * deviation / math.sqrt(middle)
    return after(min(1.0, computing + spread)), middle, after(computing - spread)
