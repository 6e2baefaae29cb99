"""The state of a run at one moment, for every view. Values only; no clock is read."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

from diloco.local.fleet import Fleet, Managed, ProcessState
from diloco.local.status_poll import Seen
from diloco.runtime.rate import Rate
from diloco.spec.names.learner_ids import region_of
from diloco.spec.status.engine import LearnerStatus
from diloco.spec.status.syncer import SyncerStatus


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Payload over the last seconds, in bytes per second."""

    pushed: float = 0.0
    pulled: float = 0.0


class BandwidthMeter:
    """Bandwidth from the byte counts of the syncer's status."""

    def __init__(self, window_seconds: float = 10.0) -> None:
        self._window_seconds = window_seconds
        self._start_over()

    def _start_over(self) -> None:
        self._pushed, self._pulled = Rate(self._window_seconds), Rate(self._window_seconds)
        self._seen_at = -math.inf

    def read(self, seen: Seen) -> Bandwidth:
        """Add a status (possibly the same one again); returns the bandwidth."""
        moved = seen.status.bytes_by_region
        up, down = sum(one.up.total for one in moved), sum(one.down.total for one in moved)
        if up < self._pushed.latest or down < self._pulled.latest:
            self._start_over()  # a restarted syncer counts from its checkpoint
        if seen.monotonic > self._seen_at:
            self._pushed.add(seen.monotonic, up)
            self._pulled.add(seen.monotonic, down)
            self._seen_at = seen.monotonic
        return Bandwidth(self._pushed.per_second, self._pulled.per_second)


@dataclass(frozen=True, slots=True)
class LearnerSnapshot:
    """One learner in the live view. State and restarts are its process's if this program supervises it."""

    id: str
    state: str
    restarts: int
    status: LearnerStatus | None
    """None before the syncer first answered."""
    processes: int = 1


@dataclass(frozen=True, slots=True)
class ActiveFaults:
    """The injected faults that are in effect now."""

    paused: frozenset[str] = frozenset()
    """Processes."""
    cut: frozenset[str] = frozenset()
    """Regions."""


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """The run."""

    job: str
    elapsed_seconds: float
    syncer_state: str
    learners: tuple[LearnerSnapshot, ...]
    status: SyncerStatus | None = None
    """The syncer's status; None before it first answered."""
    bandwidth: Bandwidth = Bandwidth()

    @property
    def progress(self) -> float:
        """Merged tokens over the budget, 0 to 1."""
        if self.status is None or self.status.budget_tokens <= 0:
            return 0.0
        return min(1.0, self.status.merged_tokens / self.status.budget_tokens)

    @classmethod
    def from_fleet(
        cls, job: str, fleet: Fleet, seen: Seen | None, active_faults: ActiveFaults, elapsed_seconds: float
    ) -> Self:
        """A snapshot from processes and status; ``bandwidth`` is left to the caller (``dataclasses.replace``)."""
        known = {learner.id: learner for learner in seen.status.learners} if seen else {}
        rows = []
        for process in fleet.learners.values():
            status = known.get(process.name)
            word = status.state.lower() if status and process.joined else "starting"
            state = _state(process, word, active_faults)
            rows.append(LearnerSnapshot(process.name, state, process.restarts, status, process.processes))
        return cls(
            job=job,
            elapsed_seconds=elapsed_seconds,
            syncer_state=_state(fleet.syncer, seen.status.phase.lower() if seen else "starting", active_faults),
            learners=tuple(rows),
            status=seen.status if seen else None,
        )

    @classmethod
    def from_status(cls, status: SyncerStatus, processes: Mapping[str, int] = MappingProxyType({})) -> Self:
        """A snapshot from a syncer's status alone, for processes that this program does not supervise.

        ``processes``: of learners, by id, where they are known.
        """
        rows = tuple(
            LearnerSnapshot(one.id, one.state.lower(), one.restarts, one, processes.get(one.id, 1))
            for one in status.learners
        )
        return cls(
            job=status.job,
            elapsed_seconds=status.elapsed_seconds,
            syncer_state=status.phase.lower(),
            learners=rows,
            status=status,
        )


def _state(process: Managed, word: str, active_faults: ActiveFaults) -> str:
    if process.state is ProcessState.WAITING:
        return "restarting" if process.started_at else "starting"
    if process.state is not ProcessState.RUNNING:
        return "ended" if process.state is ProcessState.DONE else process.state.value
    if process.name in active_faults.paused:
        return "paused"
    if region_of(process.name) in active_faults.cut:
        return "cut off"
    return word
