"""Simulates a few intervals of a case, of learners that have the model, and tells what became of the work in them.

Queues, waits and leads are the engine's own. Of many learners that are alike a few are simulated, of an interval of
many short steps one of fewer longer ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import fsum
from typing import Final

from diloco.plan.links import link_uses, merging_share
from diloco.plan.outcome import Outcome
from diloco.plan.verdict import Fit, FitKind, judge
from diloco.simulate.of_world import scenario_of
from diloco.simulate.planning.case import Case
from diloco.simulate.training.counted import counted_work, layout_of_sizes
from diloco.simulate.world import Course, Simulation
from diloco.spec.names.learner_ids import pool_of, region_of

MOST_LEARNERS: Final = 16
FEWEST_LEARNERS: Final = 4
"""For one of many trials."""
MOST_EVENTS: Final = 40_000
"""Things that happen in a trial, at most: one or two seconds of computing."""
_CYCLES, _MORE_CYCLES = 2, 6
"""Intervals that are measured, after the first one of all learners: in one of many trials, and for a forecast."""
_STEPS: Final = 4
"""Steps of the slowest learner that are measured at least."""
_EVENTS: Final = 4
"""Between two looks whether a merge is made."""
_LOOKS: Final = 8
"""In an interval, whether enough is simulated."""
_PATIENCE: Final = 10
"""Times an interval, and a step of the slowest learner, after which no learner is waited for."""
_HOPELESS: Final = 50.0
"""Times as much as it carries that are due on a link: with more, nothing is simulated."""
_ENDLESS_TOKENS: Final = 10**15
_THEN: Final = "use diloco simulate, or fewer fragments or pools"


@dataclass(frozen=True, slots=True)
class Trial:
    """What a short simulation tells, of all learners."""

    outcome: Outcome
    members_per_merge: float
    begin_seconds: float
    """When the measured time began: every fragment was merged, and every learner had trained for an interval."""
    begin_merges: int
    begin_tokens: float
    """Merged by then."""
    tokens_per_second: float
    """Merged."""
    bytes_per_merge: Mapping[str, tuple[float, float]]
    """By region: up and down."""
    simulated_seconds: float


def fit_of(case: Case, most_learners: int = FEWEST_LEARNERS) -> Fit:
    """The fit of a case; without a simulation where arithmetic says that it does not fit."""
    found = judge(case.situation, None)
    return fit_after(case, trial(case, most_learners)) if found.fits else found


def fit_after(case: Case, tried: Trial | None) -> Fit:
    """The fit of a case after its trial. A case whose bytes fit, and of which nothing was simulated, does not count."""
    found = judge(case.situation, None if tried is None else tried.outcome)
    if tried is not None or not found.fits:
        return found
    reason = f"{found.reason}, but no interval could be simulated shortly, so this is by bytes alone; {_THEN}"
    return replace(found, kind=FitKind.NOT_SIMULATED, reason=reason)


def trial(case: Case, most_learners: int = MOST_LEARNERS) -> Trial | None:
    """Simulate a case; None: nothing is merged, or intervals and learners are too many to simulate shortly.

    Raises:
        WorldError: a step time is not known.
    """
    fullest = max(*(use.share for use in link_uses(case.situation)), merging_share(case.situation), 0.0)
    if fullest > _HOPELESS:
        return None
    small, factor = case.fewer(most_learners).coarser()
    spec = small.spec
    training = spec.training.model_copy(update={"tokens": _ENDLESS_TOKENS})
    endless = small.job.model_copy(update={"spec": spec.model_copy(update={"training": training})})
    layout = layout_of_sizes(case.numels)
    scenario = scenario_of(spec, small.world, sum(case.numels), 0)
    begun = {learner: replace(profile, building_seconds=0.0) for learner, profile in scenario.profiles.items()}
    scenario = replace(scenario, profiles=begun, failures={})
    simulation = Simulation(endless, scenario, layout, counted_work(endless.spec, layout, loaded=True))
    cycle = spec.sync.interval * (small.situation.quorum_step_seconds or 0.0)
    slowest = max(group.step_seconds or 0.0 for group in small.situation.groups)
    if not _settled(simulation, cycle, spec.sync.fragments, _PATIENCE * (cycle + slowest)):
        return None
    begin = _after_merges(simulation, 1)
    sent = _sent(simulation)
    cycles = _CYCLES if most_learners == FEWEST_LEARNERS else _MORE_CYCLES
    end = _after_merges(simulation, cycles * spec.sync.fragments)
    while simulation.now < begin.virtual_seconds + _STEPS * slowest and simulation.events < MOST_EVENTS:
        end = _after_merges(simulation, spec.sync.fragments)
    times = _times(case, small)
    # The engine itself counts no tokens while a learner has not begun.
    began, ended = _merged_tokens(begin, times), _merged_tokens(end, times)
    if ended <= began:
        return None
    seconds = end.virtual_seconds - begin.virtual_seconds
    merges = end.counts.merges - begin.counts.merges
    outcome = replace(Outcome.between(begin.view, end.view), seconds=seconds)
    pools = tuple(
        replace(
            pool,
            learners=round(times[pool.name] * pool.learners),
            tokens=times[pool.name] * pool.tokens,
            lead_steps=factor * pool.lead_steps,
        )
        for pool in outcome.pools
    )
    return Trial(
        outcome=replace(outcome, pools=pools),
        members_per_merge=(end.counts.members - begin.counts.members) / merges * _mean(times, small),
        begin_seconds=begin.virtual_seconds,
        begin_merges=begin.counts.merges,
        begin_tokens=began,
        tokens_per_second=(ended - began) / seconds,
        bytes_per_merge={
            region: (part * (up - before[0]), part * (down - before[1]))
            for region, (up, down) in _sent(simulation).items()
            for before, part in [(sent.get(region, (0, 0)), _mean(times, small, region) / merges)]
        },
        simulated_seconds=end.virtual_seconds,
    )


def _times(case: Case, small: Case) -> dict[str, float]:
    """By pool: learners of the case for each that is simulated."""
    return {
        group.name: group.learners / few.learners
        for group, few in zip(case.situation.groups, small.situation.groups, strict=True)
    }


def _mean(times: Mapping[str, float], small: Case, region: str | None = None) -> float:
    """The same of all pools, or of those of a region."""
    few = {g.name: g.learners for g in small.situation.groups if region in (None, region_of(g.name))}
    return sum(times[name] * learners for name, learners in few.items()) / sum(few.values())


def _merged_tokens(course: Course, times: Mapping[str, float]) -> float:
    return fsum(times[pool_of(one.id)] * one.merged_tokens for one in course.view.learners)


def _settled(simulation: Simulation, cycle_seconds: float, fragments: int, patience_seconds: float) -> bool:
    """Simulate until every fragment was merged, every learner has trained for an interval, and the overlap stays.

    After some time it need not be so. Returns whether that can be simulated shortly.
    """
    profile = simulation.scenario.profile
    allowed, since = 0, 0.0
    while (left := MOST_EVENTS - simulation.events) > 0:
        if not simulation.advance(simulation.now + cycle_seconds / _LOOKS, left):
            return False
        if simulation.progress.merges < fragments:
            continue
        view = simulation.course().view
        if view.fragments_allowed != allowed:
            allowed, since = view.fragments_allowed, simulation.now
        late, stays = simulation.now >= patience_seconds, simulation.now - since >= cycle_seconds / 2
        if late or (stays and all(one.steps * profile(one.id).step_seconds >= cycle_seconds for one in view.learners)):
            return True
    return False


def _after_merges(simulation: Simulation, more: int) -> Course:
    """The run just after so many more merges, or as far as it can be simulated shortly."""
    wanted = simulation.progress.merges + more
    while simulation.progress.merges < wanted and simulation.events < MOST_EVENTS:
        if not simulation.advance(most_events=_EVENTS):
            break
    course = simulation.course()
    return replace(course, counts=replace(course.counts))


def _sent(simulation: Simulation) -> dict[str, tuple[int, int]]:
    """Bytes by region, up and down."""
    up, down = simulation.traffic.up, simulation.traffic.down
    return {region: (up.get(region, 0), down.get(region, 0)) for region in {*up, *down}}
