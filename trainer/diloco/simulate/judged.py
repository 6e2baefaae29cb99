"""Goes on with a simulated run for as long as that tells something, and says how it ended.

A job that makes no progress, or so little that it would take many times as long as its learners need to train the
tokens, is not worth simulating to the end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import fsum, inf
from typing import Final

from diloco.simulate.scenario import Scenario
from diloco.simulate.world import Simulation
from diloco.spec import JobSpec
from diloco.spec.names.learner_ids import pool_of

HOPELESS_TIMES: Final = 20.0
"""A job that takes so many times as long as it takes to train its tokens is given up (ours)."""
_LEAST_PATIENCE_SECONDS: Final = 3600.0
_CYCLES: Final = 20
_RECOVERIES: Final = 20
_EVENTS: Final = 5000
"""Events between two looks."""


class Ending(StrEnum):
    """How a simulated run ended."""

    COMPLETE = "Complete"
    FAILED = "Failed"
    """The job failed, or no learner was left."""
    TIME_UP = "TimeUp"
    """The time to simulate is over."""
    STALLED = "Stalled"
    """Nothing more is merged."""
    TOO_SLOW = "TooSlow"
    """It would take far longer than it takes to train the tokens."""
    INTERRUPTED = "Interrupted"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How it ended, and when it would have been complete."""

    ending: Ending
    reason: str
    """One line."""
    finish_seconds: float | None
    """Virtual time of the end; of a job that is not complete: at the pace so far. None: nothing was merged."""


def training_seconds(spec: JobSpec, scenario: Scenario) -> float:
    """How long the learners take to train the budget if nothing stops them and nothing is lost."""
    speed = fsum(
        spec.pools[pool_of(learner)].batch_of(spec.training) / scenario.profile(learner).step_seconds
        for learner in spec.learner_ids
    )
    return spec.training.tokens / (speed * spec.training.sequence_length)


def patience_seconds(spec: JobSpec, scenario: Scenario) -> float:
    """After this time without a merge the run has stalled."""
    slowest = max(scenario.profile(learner).step_seconds for learner in spec.learner_ids)
    away = [
        one.recovery.mean_seconds + one.preempted.mean_seconds + one.pause_down_seconds + one.pause_up_seconds
        for one in scenario.failures.values()
    ]
    cycles, recoveries = _CYCLES * spec.sync.interval * slowest, _RECOVERIES * max(away, default=0.0)
    return max(_LEAST_PATIENCE_SECONDS, cycles, recoveries, 2 * spec.sync.startup_seconds)


def go_on(
    simulation: Simulation,
    spec: JobSpec,
    scenario: Scenario,
    limit_seconds: float | None,
    tell: Callable[[Simulation], None] = lambda _: None,
) -> Verdict:
    """Simulate to the end, or for ``limit_seconds``; ``tell`` is called now and then. Ctrl-C ends it, too."""
    patience, wanted_seconds = patience_seconds(spec, scenario), training_seconds(spec, scenario)
    merged, merged_at, end = 0.0, 0.0, inf if limit_seconds is None else limit_seconds
    try:
        while simulation.advance(min(end, simulation.now + patience / 4), _EVENTS):
            tell(simulation)
            now, progress = simulation.now, simulation.progress
            if now > end:
                over = f"the time to simulate, {end:.0f} s, is over{_withheld(simulation, spec)}"
                return _verdict(simulation, Ending.TIME_UP, over)
            if progress.merged_tokens > merged:
                merged, merged_at = progress.merged_tokens, now
            elif now - merged_at > patience and merged < progress.budget_tokens:
                return _verdict(simulation, Ending.STALLED, _stalled(simulation, merged_at))
            finish_seconds = _finish(simulation)
            hopeless = finish_seconds is not None and finish_seconds > HOPELESS_TIMES * wanted_seconds + patience
            if limit_seconds is None and now > patience and hopeless:
                return _verdict(simulation, Ending.TOO_SLOW, _too_slow(finish_seconds or inf, wanted_seconds))
    except KeyboardInterrupt:
        return _verdict(simulation, Ending.INTERRUPTED, "interrupted")
    finish = simulation.finish
    if finish is None:
        return _verdict(simulation, Ending.FAILED, "no learner is left")
    return _verdict(simulation, Ending.COMPLETE if finish.complete else Ending.FAILED, finish.reason)


def _verdict(simulation: Simulation, ending: Ending, reason: str) -> Verdict:
    return Verdict(ending, reason, _finish(simulation))


def _finish(simulation: Simulation) -> float | None:
    progress = simulation.progress
    # Before the engine counts what is merged, only the learners' own figures have it.
    merged = progress.merged_tokens or _tokens_of_learners(simulation)
    return simulation.now * max(1.0, progress.budget_tokens / merged) if merged > 0 else None


def _tokens_of_learners(simulation: Simulation) -> float:
    if not simulation.progress.merges:
        return 0.0
    return fsum(learner.merged_tokens for learner in simulation.course().view.learners)


def _withheld(simulation: Simulation, spec: JobSpec) -> str:
    if simulation.progress.merged_tokens or not (tokens := _tokens_of_learners(simulation)):
        return ""
    return (
        f"; {tokens:.0f} tokens are merged, and count once all learners have begun or"
        f" sync.startupSeconds, {spec.sync.startup_seconds} s, are over"
    )


def _stalled(simulation: Simulation, merged_at: float) -> str:
    view = simulation.course().view
    states: dict[str, int] = {}
    for learner in view.learners:
        states[learner.state] = states.get(learner.state, 0) + 1
    counts = ", ".join(f"{count} {state.lower()}" for state, count in states.items())
    since = f"since {merged_at:.0f} s" if merged_at else "at all"
    return f"nothing was merged {since} until {simulation.now:.0f} s, with learners {counts}: {view.phase_reason}"


def _too_slow(finish_seconds: float, wanted_seconds: float) -> str:
    times = finish_seconds / wanted_seconds
    return (
        f"at this pace it takes {finish_seconds:.3g} s, {times:.0f} times as long as its learners need to train the"
        f" tokens ({wanted_seconds:.3g} s)"
    )
