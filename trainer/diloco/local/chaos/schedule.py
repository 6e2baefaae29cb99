"""Decides when faults are due. Pure: it gets the run's state and returns the faults; seeded, and without a clock.

A fault by step hits each of its victims once, as soon as the victim is up and has reached that step. A fault by rate
hits after exponentially distributed spans of the victim's own up-time (a Poisson process), drawn from the run's seed,
so that two runs with one seed hit each learner at the same ages.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from diloco.local.chaos.spec import Fault, FaultKind
from diloco.local.targets import SYNCER
from diloco.spec.learner_ids import region_of

_SECONDS_AN_HOUR = 3600.0


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


class DueFault(NamedTuple):
    """A fault to inject now, and its victim."""

    fault: Fault
    victim: str

    @property
    def key(self) -> str:
        """Identifies this fault of this victim within the run, across resumes."""
        return f"{self.fault.text} {self.victim}"


class ChaosPlan:
    """Records which faults have been injected, and how long each victim was up."""

    def __init__(self, faults: Sequence[Fault], *, seed: int, injected: Collection[str] = ()) -> None:
        """Plan ``faults``; those whose ``DueFault.key`` is in ``injected`` happened before a resume."""
        self._by_step = [
            DueFault(fault, victim) for fault in faults if fault.step is not None for victim in fault.victims
        ]
        self._pending = [due_fault for due_fault in self._by_step if due_fault.key not in injected]
        self._by_rate = [
            _Exposure(DueFault(fault, victim), fault.rate_per_hour, seed)
            for fault in faults
            if fault.rate_per_hour is not None
            for victim in fault.victims
        ]
        self._last_now: float | None = None

    def due(self, run_state: RunState) -> list[DueFault]:
        """The faults to inject now; each is returned once."""
        span = 0.0 if self._last_now is None else max(0.0, run_state.now - self._last_now)
        self._last_now = run_state.now
        due = [due_fault for due_fault in self._pending if _reached(due_fault, run_state)]
        self._pending = [due_fault for due_fault in self._pending if due_fault not in due]
        due += [
            exposure.due_fault
            for exposure in self._by_rate
            if _up(exposure.due_fault, run_state) and exposure.spend(span)
        ]
        return due


class _Exposure:
    """The up-time of one victim of one fault, and its age at the next injection."""

    def __init__(self, due_fault: DueFault, rate_per_hour: float, seed: int) -> None:
        self.due_fault = due_fault
        self._rate = rate_per_hour / _SECONDS_AN_HOUR
        self._random = random.Random(f"{seed} {due_fault.key}")  # noqa: S311  # failures, not secrets
        self._left_seconds = self._random.expovariate(self._rate)

    def spend(self, seconds: float) -> bool:
        """Count ``seconds`` of up-time; returns whether the next injection falls into them (at most one does)."""
        self._left_seconds -= seconds
        if self._left_seconds > 0:
            return False
        self._left_seconds = self._random.expovariate(self._rate)
        return True


def _up(due_fault: DueFault, run_state: RunState) -> bool:
    if due_fault.fault.kind is FaultKind.CUT:
        return any(region_of(process) == due_fault.victim for process in run_state.up if process != SYNCER)
    return due_fault.victim in run_state.up


def _reached(due_fault: DueFault, run_state: RunState) -> bool:
    fault = due_fault.fault
    at = run_state.syncer_step if fault.by_syncer_step else run_state.learner_steps.get(due_fault.victim, 0)
    return _up(due_fault, run_state) and fault.step is not None and at >= fault.step
