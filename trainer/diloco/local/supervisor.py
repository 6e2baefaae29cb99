"""The loop of ``diloco run``: starts the processes, watches them, injects the requested faults, and stops in order.

The decisions are made by pure code elsewhere (``restarts``, ``chaos.schedule``); this module carries them out. It runs
in the main thread, as signals arrive there and children end with the thread that started them.
"""

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from queue import Empty, SimpleQueue
from types import FrameType

from diloco.local.chaos.injector import FaultInjector
from diloco.local.chaos.region_link import RegionLink
from diloco.local.chaos.run_socket import ChaosListener, RunFacts
from diloco.local.chaos.schedule import ChaosPlan, RunState
from diloco.local.chaos.shaping import Pipe, Shape
from diloco.local.child import Child
from diloco.local.devices import devices_text
from diloco.local.fleet import Fleet, Managed, ProcessState
from diloco.local.fork_server import ForkServer
from diloco.local.join_watch import JoinWatch
from diloco.local.run_plan import SYNCER_THREADS, RunPlan, learner_arguments, syncer_arguments, thread_environment
from diloco.local.status_poll import StatusWatch
from diloco.local.targets import SYNCER
from diloco.local.view.screen import RunView
from diloco.local.view.snapshot import ActiveFaults, BandwidthMeter, RunSnapshot
from diloco.runtime.disk_rate import longest_write_seconds
from diloco.runtime.journal import Journal, read_journal
from diloco.runtime.process.exits import STOP_SIGNALS
from diloco.spec.status.engine import PRESENT, LearnerState, Phase

_TICK_SECONDS = 0.1
_DRAW_SECONDS = 0.25
_ALIVE_SECONDS = 10.0
"""Least time between journal entries that only say that the run goes on."""
_ALIVE_SHARE = 1 / 5000
"""The same as a share of the run's length so far, so that a month adds some megabytes (ours)."""
_LOGS_SECONDS = 10.0
_STOP_SECONDS = 60.0
"""Time for a process to finish its step, push what is due and write its checkpoint, if that is small."""
_LEARNERS_END_SECONDS = 20.0
"""Time for learners to receive the end of the job, once the syncer is gone."""
_KILL_SECONDS = 5.0
_SYNCER_END_SECONDS = 60.0
"""Time for the syncer to report the end of the job once every learner has ended."""


class Ending(StrEnum):
    """How the supervision ended."""

    FINISHED = "finished"
    """The syncer says that the job is over; its tape says whether it is complete or failed."""
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    """It was asked to stop, and can be resumed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended and, if there is something to explain, why."""

    ending: Ending
    reason: str = ""
    bad_input: bool = False


class Supervisor:
    """Supervises one run. Use once."""

    def __init__(self, plan: RunPlan, view: RunView) -> None:
        self._plan = plan
        self._view = view
        self._interrupts = 0
        self._signalled: SimpleQueue[int] = SimpleQueue()
        self._bandwidth = BandwidthMeter()
        self._drawn_at = 0.0
        self._began = self._attended_at = time.monotonic()
        self._steps_at_start: dict[tuple[str, int], int] = {}
        self._incarnations_at_start: dict[tuple[str, int], int | None] = {}
        if devices := devices_text(plan.devices):
            view.announce(devices)

    def run(self) -> Outcome:
        """Run the job to its end, until it fails, or until a signal asks for its end.

        Raises:
            OSError: the output directory cannot be written at the start, or a process cannot be started at all.
        """
        plan, announce = self._plan, self._view.announce
        earlier = read_journal(plan.directory.journal)
        injected = {str(entry.details["key"]) for entry in earlier if "key" in entry.details}
        journal = Journal(plan.directory.journal, announce)
        journal.check()
        links = self._links()
        watch = StatusWatch(plan.http_address)
        # With one thread it begins no other; each process sets the number of its own, and has its own environment.
        forks = ForkServer(thread_environment(1))
        fleet = self._fleet(journal, links, forks)
        faults = ChaosPlan(plan.faults, seed=plan.job.spec.training.seed, injected=injected)
        injector = FaultInjector(faults, fleet, links, journal)
        facts = RunFacts(plan.job.metadata.name, plan.job.spec.learner_ids, plan.relayed_regions, plan.http_address)
        chaos = ChaosListener(plan.directory, facts, announce)
        processes = {learner: len(devices) for learner, devices in plan.devices.items()}
        journal.write("run", processes=processes, resumed=plan.request.resume)
        announce(f"starting a syncer and {len(processes)} learner(s)")
        try:
            with self._signals():
                watch.start()
                ending = Ending.FAILED  # if something raises, processes are still given time to write checkpoints
                try:
                    outcome = self._supervise(fleet, injector, watch, chaos)
                    ending = outcome.ending
                finally:
                    chaos.close()
                    injector.stop()
                    self._stop(fleet, injector, watch, ending)
            journal.write("end", ending=outcome.ending, reason=outcome.reason)
            return outcome
        finally:
            # Leave no process behind, whatever went wrong above.
            forks.end()
            for process in fleet.running():
                process.child.signal(signal.SIGKILL)
                process.child.wait()
            watch.stop()
            for link in links.values():
                link.close()
            journal.close()

    def _links(self) -> dict[str, RegionLink]:
        """A relay for each region that needs one. All of them share the syncer's own link."""
        world = self._plan.world

        def pipe(bytes_per_second: float) -> tuple[Pipe, ...]:
            return (Pipe(bytes_per_second, time.monotonic),) if math.isfinite(bytes_per_second) else ()

        to_syncer, from_syncer = pipe(world.syncer.bytes_per_second), pipe(world.syncer.bytes_per_second)
        relays = {}
        for region in self._plan.relayed_regions:
            link = world.region(region)
            delay_seconds = link.round_trip_seconds / 2
            up = Shape((*pipe(link.bytes_per_second), *to_syncer), delay_seconds)
            down = Shape((*from_syncer, *pipe(link.bytes_per_second)), delay_seconds)
            relays[region] = RegionLink(self._plan.sync_address, up, down)
        return relays

    def _fleet(self, journal: Journal, links: dict[str, RegionLink], forks: ForkServer) -> Fleet:
        plan, policy = self._plan, self._plan.job.spec.failure_policy
        relays = {region: link.address for region, link in links.items()}
        syncer = Child(syncer_arguments(plan), plan.directory.log(SYNCER), thread_environment(SYNCER_THREADS), forks)
        learners = {
            learner: Managed(
                learner,
                Child(
                    learner_arguments(plan, learner, relays),
                    plan.directory.log(learner),
                    thread_environment(plan.learner_threads),
                    forks,
                ),
                processes=len(devices),
            )
            for learner, devices in plan.devices.items()
        }
        return Fleet(
            syncer=Managed(SYNCER, syncer),
            learners=learners,
            journal=journal,
            announce=self._view.announce,
            maximum_restarts=policy.max_restarts_per_learner,
            minimum_learners=policy.minimum_learners,
            nothing_left=self._nothing_left,
            loading=forks.loading,
        )

    def _nothing_left(self) -> str | None:
        directory = self._plan.directory
        if directory.has_checkpoint:
            return None
        return f"{directory.syncer} no longer has a checkpoint: it was removed, and the global model with it"

    def _supervise(self, fleet: Fleet, injector: FaultInjector, watch: StatusWatch, chaos: ChaosListener) -> Outcome:
        """Loop until there is an outcome."""
        alive_at = logs_at = time.monotonic()
        joining = JoinWatch(self._view.announce)
        while True:
            fleet.reap()
            fleet.start_due()
            self._note_progress(fleet, watch)
            chaos.serve(injector)
            injector.apply_due(self._run_state(fleet, injector, watch))
            self._draw(fleet, injector, watch)
            joining.look(fleet)
            now = time.monotonic()
            if now - alive_at >= max(_ALIVE_SECONDS, _ALIVE_SHARE * (now - self._began)):
                fleet.journal.write("alive")
                alive_at = now
            if now - logs_at >= _LOGS_SECONDS:
                for process in fleet.everyone:
                    process.child.bound_log()
                logs_at = now
            if (outcome := self._outcome(fleet)) is not None:
                return outcome
            self._await_signal()

    def _outcome(self, fleet: Fleet) -> Outcome | None:
        if self._interrupts:
            return Outcome(Ending.INTERRUPTED)
        if fleet.syncer.state is ProcessState.DONE:
            return Outcome(Ending.FINISHED)
        if fleet.failure is not None:
            return Outcome(Ending.FAILED, fleet.failure.reason, fleet.failure.bad_input)
        now = time.monotonic()
        if any(p.state in (ProcessState.RUNNING, ProcessState.WAITING) for p in fleet.learners.values()):
            self._attended_at = now
        elif now - self._attended_at > _SYNCER_END_SECONDS:
            return Outcome(Ending.FAILED, "every learner has ended, but the syncer does not report the job as over")
        limit = self._plan.job.spec.active_deadline_seconds
        if limit is not None and now - self._began > limit:
            return Outcome(Ending.FAILED, f"not complete after activeDeadlineSeconds ({limit} s)")
        return None

    def _note_progress(self, fleet: Fleet, watch: StatusWatch) -> None:
        """Find out from the status which processes have worked since their latest start."""
        seen = watch.seen
        if seen is None:
            return
        fleet.job_over = seen.status.phase in (Phase.COMPLETE, Phase.FAILED)
        if fleet.job_over:  # it ends once the model and its backup are written, however long that takes
            self._attended_at = max(self._attended_at, seen.monotonic)
        if fleet.syncer.child.running and seen.monotonic > fleet.syncer.started_at:
            fleet.syncer.proven = True
        for learner in seen.status.learners:
            process = fleet.learners.get(learner.id)
            if process is None or process.state is not ProcessState.RUNNING:
                continue
            present, start = learner.state in PRESENT, (learner.id, process.restarts)
            # Its process of before may still have a session; the first one's has none with a syncer that starts too.
            earlier = learner.incarnation if process.restarts or not present else None
            incarnation = self._incarnations_at_start.setdefault(start, earlier)
            if seen.monotonic > process.started_at:
                process.joined = process.joined or (present and learner.incarnation != incarnation)
                # It joins with the steps of its checkpoint: only a change from the first number seen is a new step.
                steps = self._steps_at_start.setdefault(start, learner.steps)
                trains = learner.steps != steps and learner.state == LearnerState.TRAINING
                process.proven = process.proven or trains

    def _run_state(self, fleet: Fleet, injector: FaultInjector, watch: StatusWatch) -> RunState:
        seen = watch.seen
        status = seen.status if seen else None
        up = {p.name for p in fleet.everyone if p.proven and p.child.running and p.name not in injector.paused}
        return RunState(
            now=time.monotonic(),
            syncer_step=status.syncer_step if status else 0,
            learner_steps={learner.id: learner.steps for learner in status.learners} if status else {},
            up=up,
        )

    def _draw(self, fleet: Fleet, injector: FaultInjector, watch: StatusWatch) -> None:
        now = time.monotonic()
        if now - self._drawn_at < _DRAW_SECONDS:
            return
        self._drawn_at = now
        seen = watch.seen
        active_faults = ActiveFaults(injector.paused, injector.cut)
        snapshot = RunSnapshot.from_fleet(self._plan.job.metadata.name, fleet, seen, active_faults, now - self._began)
        self._view.update(replace(snapshot, bandwidth=self._bandwidth.read(seen)) if seen else snapshot)

    def _stop(self, fleet: Fleet, injector: FaultInjector, watch: StatusWatch, ending: Ending) -> None:
        """Stop the learners first, so that they can push their work, then the syncer, which writes a checkpoint."""
        fleet.stop_restarting()
        learners = list(fleet.learners.values())
        if ending is Ending.FINISHED:
            # Whoever has no session does not hear of the end, and would try to reach the syncer.
            for process in fleet.running(learners):
                if not _has_session(process, watch):
                    process.child.signal(signal.SIGTERM)
            self._await_end(fleet, learners, _LEARNERS_END_SECONDS)
        for processes in (learners, [fleet.syncer]):
            if not fleet.running(processes):
                continue
            # All write to this machine's disk.
            size_bytes = len(fleet.running(processes)) * self._plan.directory.checkpoint_bytes
            if ending is Ending.INTERRUPTED:
                self._view.announce(f"stopping {'the learners' if processes is learners else 'the syncer'}")
                self._draw(fleet, injector, watch)
            for process in fleet.running(processes):
                process.child.signal(signal.SIGTERM)
            self._await_end(fleet, processes, longest_write_seconds(size_bytes, _STOP_SECONDS))
            for process in fleet.running(processes):
                process.child.signal(signal.SIGKILL)
            self._await_end(fleet, processes, _KILL_SECONDS, hurry=False)

    def _await_end(self, fleet: Fleet, processes: list[Managed], seconds: float, *, hurry: bool = True) -> None:
        """Wait at most this long until they have ended; a second interrupt ends the wait (``hurry``)."""
        deadline = time.monotonic() + seconds
        while fleet.running(processes) and time.monotonic() < deadline and not (hurry and self._interrupts > 1):
            self._await_signal()
            fleet.reap()
        fleet.reap()

    def _await_signal(self) -> None:
        """Wait for a tick at most; the end of a child is a signal too."""
        with suppress(Empty):
            self._signalled.get(timeout=_TICK_SECONDS)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def note(number: int, _frame: FrameType | None) -> None:
            self._interrupts += number != signal.SIGCHLD
            self._signalled.put(number)

        numbers = (*STOP_SIGNALS, signal.SIGHUP, signal.SIGCHLD)
        before = {number: signal.signal(number, note) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _has_session(process: Managed, watch: StatusWatch) -> bool:
    """Whether a learner had a session since its latest start, by the latest status."""
    seen = watch.seen
    if seen is None or seen.monotonic <= process.started_at:
        return False
    return any(one.id == process.name and one.state in PRESENT for one in seen.status.learners)
