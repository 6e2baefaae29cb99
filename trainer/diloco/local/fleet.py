"""The processes of a run: starts them, watches them, restarts them as ``restarts`` decides, and stops them in order.

Used from the main thread only.
"""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from diloco.local.child import Child
from diloco.local.restarts import (
    BACKOFF,
    Decision,
    EndedProcess,
    Verdict,
    after_learner_exit,
    after_syncer_exit,
)
from diloco.local.targets import SYNCER
from diloco.runtime.journal import Journal
from diloco.runtime.process.exits import EXIT_BAD_INPUT, EXIT_OK, how_it_ended


class ProcessState(StrEnum):
    """The state of a process of the run."""

    RUNNING = "running"
    WAITING = "waiting"
    DONE = "done"
    GIVEN_UP = "given up"


@dataclass(slots=True)
class Managed:
    """A process and its state."""

    name: str
    """A learner's id, or ``syncer``."""
    child: Child
    processes: int = 1
    """Of a learner."""
    state: ProcessState = ProcessState.WAITING
    restart_at: float = 0.0
    restarts: int = 0
    early_exits: int = 0
    proven: bool = False
    """Since it was last started it has served (syncer) or made a step (learner)."""
    joined: bool = False
    """A learner: since it was last started it has had a session."""
    has_served: bool = False
    by_chaos: bool = False
    started_at: float = 0.0
    ended_well: bool = False
    not_started: int = 0
    """Failed attempts in a row to start it, because the machine has no process or file left."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the run cannot go on."""

    reason: str
    bad_input: bool


@dataclass
class Fleet:
    """All processes of one run."""

    syncer: Managed
    learners: dict[str, Managed]
    journal: Journal
    announce: Callable[[str], None]
    """Called with each event, as one line for people."""
    maximum_restarts: int | None = None
    minimum_learners: int = 0
    nothing_left: Callable[[], str | None] = lambda: None
    """Returns why a syncer that has served must not be restarted: it would start from scratch."""
    loading: Callable[[], bool] = lambda: False
    """Whether processes would start sooner if they waited a little."""
    failure: Failure | None = field(default=None, init=False)
    job_over: bool = field(default=False, init=False)
    """The syncer has reported the end: a process that exits with 0 now is finished."""
    _restarts_stopped: bool = field(default=False, init=False)
    _clock: Callable[[], float] = field(default=time.monotonic)

    @property
    def everyone(self) -> list[Managed]:
        """The syncer and every learner."""
        return [self.syncer, *self.learners.values()]

    def find(self, name: str) -> Managed:
        """The process of that name."""
        return self.syncer if name == SYNCER else self.learners[name]

    def start_due(self) -> None:
        """Start every waiting process that is due.

        Raises:
            OSError: a process cannot be started for the first time. Later starts are retried without end.
        """
        if self.loading():
            return
        now = self._clock()
        for process in self.everyone:
            if self.job_over and process.state is ProcessState.WAITING and process.ended_well:
                process.state = ProcessState.DONE
            if process.state is ProcessState.WAITING and now >= process.restart_at:
                again = process.started_at > 0
                if process is self.syncer and process.has_served and (lost := self.nothing_left()):
                    process.state = ProcessState.GIVEN_UP
                    self.failure = self.failure or Failure(lost, bad_input=False)
                    continue
                pid = self._start(process, again=again)
                if pid is None:
                    continue
                process.restarts += again
                process.started_at, process.proven, process.by_chaos, process.joined = now, False, False, False
                process.state = ProcessState.RUNNING
                self.journal.write("start", process.name, pid=pid, restarts=process.restarts)
                if again:
                    self.announce(f"{process.name} restarted")

    def _start(self, process: Managed, *, again: bool) -> int | None:
        try:
            pid = process.child.start()
        except OSError as error:
            if not again:
                raise
            # A shortage of the machine, which does not count against the process.
            if not process.not_started:
                self.announce(f"{process.name} cannot be started ({error.strerror or error}); retrying")
            process.not_started += 1
            process.restart_at = self._clock() + BACKOFF.seconds(process.not_started)
            return None
        process.not_started = 0
        return pid

    def reap(self) -> None:
        """Note every process that has ended, and decide whether to restart it."""
        for process in self.everyone:
            code = process.child.poll() if process.state is ProcessState.RUNNING else None
            if code is not None:
                self._ended(process, code)
        left = [p for p in self.learners.values() if p.state is not ProcessState.GIVEN_UP]
        if self.failure is None and len(left) < max(1, self.minimum_learners):
            last = next((p for p in self.learners.values() if p.state is ProcessState.GIVEN_UP), None)
            why = f": {last.name}: {last.reason}" if last else ""
            self.failure = Failure(f"{len(left)} of {len(self.learners)} learners are left{why}", bad_input=False)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process."""
        self.find(name).child.signal(number)

    def running(self, processes: list[Managed] | None = None) -> list[Managed]:
        """Those of ``processes`` (default: all) that run."""
        return [process for process in processes or self.everyone if process.child.running]

    def stop_restarting(self) -> None:
        """Restart nothing from now on."""
        self._restarts_stopped = True
        for process in self.everyone:
            if process.state is ProcessState.WAITING:
                process.state = ProcessState.DONE

    def _ended(self, process: Managed, code: int) -> None:
        process.has_served = process.has_served or process.proven
        process.ended_well = code == EXIT_OK
        too_early = not (process.proven or process.by_chaos or process.ended_well)
        process.early_exits = process.early_exits + 1 if too_early else 0
        early = not self.job_over
        record = EndedProcess(
            code, process.child.last_line(), process.restarts, process.early_exits, process.by_chaos, early
        )
        learner = process is not self.syncer
        decision = after_learner_exit(record, self.maximum_restarts) if learner else after_syncer_exit(record)
        if self._restarts_stopped:
            decision = Decision(Verdict.DONE, "the run is over")
        self.journal.write(
            "exit",
            process.name,
            code=code,
            verdict=decision.verdict,
            reason=decision.reason,
            by_chaos=process.by_chaos,
        )
        process.reason = decision.reason
        self._act(process, code, decision)

    def _act(self, process: Managed, code: int, decision: Decision) -> None:
        process.state = ProcessState.DONE
        if decision.verdict is Verdict.RESTART:
            process.state = ProcessState.WAITING
            process.restart_at = self._clock() + decision.delay_seconds
            self.announce(f"{process.name} ended ({how_it_ended(code)})")
        elif decision.verdict is Verdict.GIVE_UP:
            process.state = ProcessState.GIVEN_UP
            self.journal.write("give_up", process.name, reason=decision.reason)
            self.announce(f"gave up {process.name}: {decision.reason}")
        elif decision.verdict is Verdict.FAIL:
            process.state = ProcessState.GIVEN_UP
            self.failure = self.failure or Failure(decision.reason, bad_input=code == EXIT_BAD_INPUT)
