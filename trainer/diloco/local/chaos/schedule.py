"""When faults are due: at named times and steps, or at random times drawn from a seed. Pure.

Each unit that fails (a learner, pool, region or node, or the syncer) has a random sequence of its own, drawn from the
seed and the fault's key. So one seed gives the same times, and those of one unit do not depend on which others there
are. ``diloco chaos`` plans its faults in advance (`plan_faults`). ``diloco run --chaos`` counts steps and the victim's
own up-time (`ChaosPlan`), so that two runs with one seed hit each learner at the same ages.
"""

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile
from typing import Final

from diloco.local.chaos.spec import ChaosError, Fault, FaultKind
from diloco.local.targets import SYNCER, TargetError, learners_named
from diloco.spec.names.learner_ids import pool_of, region_of

MOST_FAULTS: Final = 10_000


def random_times(seed: int, fault: Fault) -> Iterator[float]:
    """Seconds at which a fault by rate is due, without end: a Poisson process."""
    draws = random.Random(f"{seed} {fault.key}")  # noqa: S311  # failures, not secrets
    at = 0.0
    while fault.rate_per_hour:
        at += draws.expovariate(fault.rate_per_hour / 3600.0)
        yield at


class Unit(StrEnum):
    """What a rate counts failures of."""

    LEARNER = "learners"
    POOL = "pools"
    REGION = "regions"
    NODE = "nodes"
    SYNCER = "syncer"


@dataclass(frozen=True, slots=True)
class Rate:
    """Failures of each unit."""

    kind: FaultKind
    unit: Unit
    per_hour: float
    """Of each unit, on average."""
    seconds: float = 0.0

    @property
    def flag(self) -> str:
        """The option that gives it."""
        return f"--{self.kind}-{self.unit}"


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked ``diloco chaos`` for."""

    seconds: float
    seed: int = 0
    faults: tuple[Fault, ...] = ()
    rates: tuple[Rate, ...] = ()
    only: tuple[str, ...] = ()
    """Learners, pools or regions to which the rates are limited; empty: all."""


def plan_faults(
    request: Request, learner_ids: Sequence[str], nodes: Mapping[str, str] | None = None
) -> tuple[Fault, ...]:
    """The faults of a session, by time. ``nodes``: in a cluster, the node of each learner that has one.

    Raises:
        ChaosError: a name fits nothing in the job, a time is beyond the session's end, there are too many faults, or
            there are none.
    """
    allowed = _allowed(request.only, learner_ids)
    if not request.faults and not any(rate.per_hour for rate in request.rates):
        raise ChaosError("nothing to do; use --fault, or a rate such as --kill-learners 6")
    faults: list[Fault] = []
    for fault in _all(request, allowed, nodes or {}):
        faults.append(fault)
        if len(faults) > MOST_FAULTS:
            raise ChaosError(
                f"--for: these rates give more than {MOST_FAULTS} faults; use a shorter time or lower rates"
            )
    return tuple(sorted(faults, key=lambda fault: (fault.at_seconds, fault.kind, fault.target)))


def units(unit: Unit, learner_ids: Sequence[str], nodes: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The units of a kind: name -> its learners (``syncer``: itself)."""
    if unit is Unit.SYNCER:
        return {SYNCER: (SYNCER,)}
    learners: dict[str, tuple[str, ...]] = {}
    for learner in learner_ids:
        if name := _unit_of(unit, learner, nodes):
            learners[name] = (*learners.get(name, ()), learner)
    return learners


def _unit_of(unit: Unit, learner: str, nodes: Mapping[str, str]) -> str:
    if unit is Unit.NODE:
        return nodes.get(learner, "")
    return {Unit.POOL: pool_of, Unit.REGION: region_of}.get(unit, str)(learner)


def _all(request: Request, allowed: Sequence[str], nodes: Mapping[str, str]) -> Iterator[Fault]:
    by_rate: list[Fault] = []
    for fault in request.faults:
        if fault.rate_per_hour is not None:
            by_rate += fault.each
        elif fault.at_seconds > request.seconds:
            raise ChaosError(
                f"--fault {fault.text!r}: at={fault.at_seconds:g} is after the end; use at most --for's "
                f"{request.seconds:g} s, or a longer --for"
            )
        else:
            yield fault
    for rate in request.rates:
        around = tuple(allowed) if rate.unit is Unit.NODE else ()
        by_rate += (
            Fault(
                rate.kind,
                name,
                victims=(name,) if rate.kind is FaultKind.CUT else learners,
                text=f"{rate.kind} {rate.unit}",
                rate_per_hour=rate.per_hour,
                seconds=rate.seconds,
                around=around,
            )
            for name, learners in units(rate.unit, allowed, nodes).items()
        )
    for fault in by_rate:
        for at in takewhile(lambda at: at <= request.seconds, random_times(request.seed, fault)):
            yield replace(fault, at_seconds=at)


def _allowed(only: Sequence[str], learner_ids: Sequence[str]) -> tuple[str, ...]:
    if not only:
        return tuple(learner_ids)
    named: set[str] = set()
    for target in only:
        try:
            named.update(learners_named(target, learner_ids))
        except TargetError as error:
            raise ChaosError(f"--only {target!r}: {error}") from error
    return tuple(learner for learner in learner_ids if learner in named)


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
