"""Forecasts a job from its trial: the share of work that is merged, and when the job is complete.

The trial has no failures, as they are rarer than that: what they cost is drawn from the same process for each learner,
without the engine, and added, with the time in which too few learners for the quorum are there.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from statistics import variance
from typing import Final

from diloco.core.sizes import F32
from diloco.plan.links import link_uses
from diloco.simulate.failures import Failures, standstills
from diloco.simulate.of_world import scenario_of
from diloco.simulate.planning.case import Case
from diloco.simulate.planning.trial import Trial
from diloco.simulate.scenario import Scenario
from diloco.spec import JobSpec
from diloco.spec.names.learner_ids import pool_of, region_of
from diloco.world.cost import cost_of

_DRAWS: Final = 40
_STOPS: Final = 50
"""Standstills of a learner that each draw covers, about."""
_DEVIATIONS: Final = 1.645
"""Of a normal distribution, from the middle to 5 and 95 %."""
_LEAST_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Forecast:
    """How a job goes in its world."""

    merged_share: float
    """Share of the learners' time, from the beginning of the job to its end, whose work is in the model."""
    members_per_merge: float
    computing_share: float
    """Of the learners' time, left by failures and what they lose."""
    merges: int
    """Of the whole job."""
    bytes: Mapping[str, tuple[int, int]]
    """Of the whole job, by region: what its learners send and receive, payloads only."""
    seconds: tuple[float, float, float]
    """Until the job is complete, with a chance of 5, 50 and 95 %."""
    cost: float
    """Of the job, in the currency of the world's prices, with a chance of 50 %."""
    simulated_seconds: float
    """Virtual time of the simulation."""


def forecast_of(case: Case, tried: Trial, seed: int = 0) -> Forecast:
    """The forecast of a case from its trial; ``seed``: of the draws of failures."""
    spec = case.spec
    scenario = scenario_of(spec, case.world, sum(case.numels), seed)
    speeds = {
        learner: spec.pool_of(learner).batch_of(spec.training)
        * spec.training.sequence_length
        / scenario.profile(learner).step_seconds
        for learner in spec.learner_ids
    }
    failing = _failing(spec, scenario, speeds, case.numels, seed)
    begin, finish = _begin(case, tried), _finish(case, tried, failing)
    pace = (tried.outcome.merges / tried.outcome.seconds) * (1 - failing.short)
    merges = tried.begin_merges + max(0.0, finish[1] - begin) * pace
    sent = _sent(case, tried, failing, merges, finish[1])
    computed = math.fsum(speed / (1 - scenario.profile(learner).between_steps) for learner, speed in speeds.items())
    return Forecast(
        merged_share=min(1.0, spec.training.tokens / (computed * finish[1])),
        members_per_merge=tried.members_per_merge,
        computing_share=failing.computing,
        merges=round(merges),
        bytes=sent,
        seconds=finish,
        cost=cost_of(spec, case.world, finish[1], {region: sum(both) for region, both in sent.items()}),
        simulated_seconds=tried.simulated_seconds,
    )


def _sent(case: Case, tried: Trial, failing: "_Failing", merges: float, seconds: float) -> dict[str, tuple[int, int]]:
    """A learner loads the model once for each of its processes, and is in merges while it trains.

    It receives what is merged while it starts, too.
    """
    found = {}
    for region, (up, down) in tried.bytes_per_merge.items():
        groups = [group for group in case.situation.groups if region_of(group.name) == region]
        learners = sum(group.learners for group in groups)
        sends = math.fsum(group.learners * (1 - failing.away[group.name].share) for group in groups) / learners
        receives = math.fsum(group.learners * (1 - failing.away[group.name].unreachable) for group in groups) / learners
        ends = math.fsum(group.learners * failing.away[group.name].ends_per_second for group in groups)
        loaded = case.situation.exchange.load_bytes * (learners + seconds * ends)
        found[region] = (round(merges * sends * up), round(loaded + merges * receives * down))
    return found


@dataclass(frozen=True, slots=True)
class _Away:
    """How a learner comes and goes, whatever the others do."""

    share: float
    """Of its time."""
    lasts_seconds: float
    """From any moment at which it is away until it is back, on average."""
    ends_per_second: float
    """Ends of its process."""
    unreachable: float
    """Share of its time in which it has no session."""
    varies: float
    """Variance over a second of the share of time that failures take."""

    @property
    def leaves_per_second(self) -> float:
        """Of the time that it is there."""
        return self.share / (self.lasts_seconds * max(_LEAST_SHARE, 1 - self.share)) if self.share else 0.0


@dataclass(frozen=True, slots=True)
class _Failing:
    """What failures do to the job."""

    computing: float
    """The mean share of time that they leave, weighted by speed."""
    deviation: float
    """Of it, over a second."""
    short: float
    """Share of time without a quorum."""
    away: Mapping[str, _Away]
    """By pool."""


def _failing(
    spec: JobSpec, scenario: Scenario, speeds: Mapping[str, float], numels: tuple[int, ...], seed: int
) -> _Failing:
    steps = {pool_of(one): scenario.profile(one).step_seconds for one in speeds}
    # What the old process trained since the last merge of each fragment is gone.
    half = {place: spec.sync.interval / 2 * step for place, step in steps.items()}
    away: dict[str, _Away] = {}
    for learner in speeds:
        if (place := pool_of(learner)) in away:
            continue
        failures = scenario.failures.get(learner, Failures())
        profile = scenario.profile(learner)
        rate = min(profile.link.bytes_per_second, *(scenario.lines[line] for line in profile.lines), math.inf)
        loading = F32.payload_bytes(sum(numels)) / rate + profile.building_seconds
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
    return _Failing(max(_LEAST_SHARE, share), math.sqrt(spread), everywhere, away)


def _away(failures: Failures, loading_seconds: float, lost_seconds: float, seed: str) -> _Away:
    """How these failures take a learner away. A new process loads the model; what the old one had not sent is lost."""
    some = takewhile(lambda numbered: numbered[0] < _STOPS, enumerate(standstills(failures, seed)))
    horizon = max((stop.at_seconds + stop.seconds for _, stop in some), default=0.0)
    if horizon <= 0:
        return _Away(0.0, 0.0, 0.0, 0.0, 0.0)
    shares, stretches, ends, without = list[float](), list[float](), 0, 0.0
    for draw in range(_DRAWS):
        taken = 0.0
        for stop in takewhile(lambda one: one.at_seconds < horizon, standstills(failures, f"{seed}/{draw}")):
            loading, lost = (loading_seconds, lost_seconds) if stop.ends_process else (0.0, 0.0)
            stood = min(stop.seconds, horizon - stop.at_seconds)
            stretches.append(stood + loading)
            without += stood if stop.ends_process else 0.0
            taken += stretches[-1] + lost
            ends += stop.ends_process
        shares.append(taken / horizon)
    away = math.fsum(stretches)
    lasts = math.fsum(one * one for one in stretches) / (2 * away) if away else 0.0
    drawn = _DRAWS * horizon
    return _Away(min(1.0, away / drawn), lasts, ends / drawn, without / drawn, variance(shares) * horizon)


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


def _begin(case: Case, tried: Trial) -> float:
    """When the measured time of the trial begins in the job.

    Learners receive the model before they begin; one behind a link that is too thin may never have it.
    """
    loads = (use.learners * use.load_seconds for use in link_uses(case.situation) if not use.too_thin)
    starts = (case.world.pool(group.name).start_seconds for group in case.situation.groups)
    return tried.begin_seconds + max(loads, default=0.0) + max(starts)


def _finish(case: Case, tried: Trial, failing: _Failing) -> tuple[float, float, float]:
    begin, left = _begin(case, tried), max(0.0, case.spec.training.tokens - tried.begin_tokens)

    def after(share: float) -> float:
        return begin + left / (tried.tokens_per_second * max(_LEAST_SHARE, share))

    middle = after(failing.computing)
    spread = _DEVIATIONS * failing.deviation / math.sqrt(middle)
    return after(min(1.0, failing.computing + spread)), middle, after(failing.computing - spread)
