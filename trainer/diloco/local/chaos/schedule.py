"""When faults are due: at named times and steps, or at random times drawn from a seed. Pure.

Each unit that fails (a learner, pool, region or node, or the syncer) has a random sequence of its own, drawn from the
seed and the fault's key. So one seed gives the same times, and those of one unit do not depend on which others there
are. ``diloco chaos`` plans its faults in advance (`plan_faults`). ``diloco run --chaos`` counts steps and the victim's
own up-time (`ChaosPlan`), so that two runs with one seed hit each learner at the same ages.
"""

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

from diloco.local.chaos.spec import ChaosError, Fault, FaultKind, Unit
from diloco.local.targets import SYNCER
from diloco.spec.names.learner_ids import pool_of, region_of

MOST_FAULTS: Final = 10_000


def random_times(seed: int, fault: Fault) -> Iterator[float]:
    """Seconds at which a fault by rate is due, without end: a Poisson process."""
    draws = random.Random(f"{seed} {fault.key}")  # noqa: S311  # failures, not secrets
    at = 0.0
    while fault.rate_per_hour:
        at += draws.expovariate(fault.rate_per_hour / 3600.0)
        yield at


def plan_faults(
    faults: Sequence[Fault], seconds: float, seed: int, nodes: Mapping[str, str] | None = None
) -> tuple[Fault, ...]:
    """The faults of a session of so many seconds, by time. ``nodes``: in a cluster, by learner the one it is on.

    Raises:
        ChaosError: a time is beyond the session's end, there are too many faults, or there are none.
    """
    if not faults:
        raise ChaosError("nothing to do; use --fault, as in --fault 'kill:*@rate=6'")
    planned: list[Fault] = []
    for one in _occurrences(faults, seconds, seed, nodes or {}):
        planned.append(one)
        if len(planned) > MOST_FAULTS:
            raise ChaosError(
                f"--for: these rates give more than {MOST_FAULTS} faults; use a shorter time or lower rates"
            )
    return tuple(sorted(planned, key=lambda fault: (fault.at_seconds, fault.kind, fault.target)))


def units(fault: Fault, nodes: Mapping[str, str]) -> tuple[Fault, ...]:
    """A fault by rate, of each unit that fails by itself."""
    if fault.unit is Unit.LEARNER:
        return fault.each
    victims: dict[str, tuple[str, ...]] = {}
    for learner in fault.victims:
        if name := _unit_of(fault.unit, learner, nodes):
            victims[name] = (*victims.get(name, ()), learner)
    around = fault.victims if fault.unit is Unit.NODE else ()
    return tuple(replace(fault, target=name, victims=its, around=around) for name, its in victims.items())


def _unit_of(unit: Unit, learner: str, nodes: Mapping[str, str]) -> str:
    if unit is Unit.NODE:
        return nodes.get(learner, "")
    return pool_of(learner) if unit is Unit.POOL else region_of(learner)


def _occurrences(faults: Sequence[Fault], seconds: float, seed: int, nodes: Mapping[str, str]) -> Iterator[Fault]:
    for fault in faults:
        if fault.rate_per_hour is not None:
            for one in units(fault, nodes):
                for at in takewhile(lambda at: at <= seconds, random_times(seed, one)):
                    yield replace(one, at_seconds=at)
        elif fault.at_seconds > seconds:
            raise ChaosError(
                f"--fault {fault.text!r}: at={fault.at_seconds:g} is after the end; use at most --for's "
                f"{seconds:g} s, or a longer --for"
            )
        else:
            yield fault


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of the run at one moment, as the supervisor sees it."""

    now: float
    """Seconds, from any monotonic clock."""
    syncer_step: int
    learner_steps: Mapping[str, int]
    """Inner steps of each learner, as far as known."""
    up: Collection[str]
    """Learners that train and, if it serves, ``syncer``: those that a fault can hit."""

    def reaches(self, fault: Fault) -> bool:
        """Whether the only victim of ``fault`` is up."""
        if fault.kind is FaultKind.CUT:
            return any(region_of(process) == fault.target for process in self.up if process != SYNCER)
        return fault.target in self.up

    def steps(self, fault: Fault) -> int:
        """The steps by which ``fault`` counts."""
        return self.syncer_step if fault.by_syncer_step else self.learner_steps.get(fault.target, 0)


class ChaosPlan:
    """The faults of ``diloco run --chaos``: which have been injected, and how long each victim was up."""

    def __init__(self, faults: Sequence[Fault], *, seed: int, injected: Collection[str] = ()) -> None:
        """Plan ``faults``; those whose ``key`` is in ``injected`` happened before a resume."""
        alone = [one for fault in faults for one in fault.each]
        self._pending = [one for one in alone if one.step is not None and one.key not in injected]
        self._by_rate = [_Exposure(one, seed) for one in alone if one.rate_per_hour is not None]
        self._last_now: float | None = None

    def due(self, state: RunState) -> list[Fault]:
        """The faults to inject now, each of one victim and returned once."""
        span = 0.0 if self._last_now is None else max(0.0, state.now - self._last_now)
        self._last_now = state.now
        due = [one for one in self._pending if state.reaches(one) and state.steps(one) >= (one.step or 0)]
        self._pending = [one for one in self._pending if one not in due]
        return due + [one.fault for one in self._by_rate if state.reaches(one.fault) and one.spend(span)]


class _Exposure:
    """The up-time of one victim of one fault, and its age at the next injection."""

    def __init__(self, fault: Fault, seed: int) -> None:
        self.fault = fault
        self._times = random_times(seed, fault)
        self._next_seconds = next(self._times)
        self._up_seconds = 0.0

    def spend(self, seconds: float) -> bool:
        """Count ``seconds`` of up-time; returns whether the next injection falls into them (at most one does)."""
        self._up_seconds += seconds
        if self._up_seconds < self._next_seconds:
            return False
        self._next_seconds = next(self._times)
        return True
