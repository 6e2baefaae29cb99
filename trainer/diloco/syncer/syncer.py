"""A running syncer: builds its parts, does the work of every second, and ends the process."""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch

from diloco.core.engine import snapshot
from diloco.core.engine.actions import Finish
from diloco.core.engine.engine import Engine, EngineOptions
from diloco.core.engine.events import LearnersPlanned, SnapshotAsked
from diloco.core.merge.codecs import uplink_codec
from diloco.model.build import model_identity
from diloco.runtime.journal import Journal
from diloco.runtime.process.exits import EXIT_JOB_FAILED, EXIT_OK, EXIT_UNEXPECTED
from diloco.spec import JobSpec
from diloco.spec.status.engine import EngineStatus
from diloco.spec.status.syncer import StoredStatus, SyncerStatus
from diloco.syncer.action_executor import ActionExecutor, MergeWork
from diloco.syncer.backup.backups import backups_of
from diloco.syncer.block_threads import BlockThreads
from diloco.syncer.disk.checkpoint import CheckpointContent
from diloco.syncer.disk.checkpointer import DUE, Checkpointer
from diloco.syncer.disk.directory import SyncerDirectory, epoch_on_wire
from diloco.syncer.disk.exporter import Exporter, export
from diloco.syncer.engine_loop import EngineLoop
from diloco.syncer.followed_files import FollowedFiles
from diloco.syncer.job_end import JobEnd
from diloco.syncer.merging import Merging
from diloco.syncer.options import SyncerOptions
from diloco.syncer.peers.admission import Admission
from diloco.syncer.peers.claims import ClaimLimits, Claims, tokens_per_step
from diloco.syncer.peers.collaborators import Collaborators
from diloco.syncer.peers.dealing import Dealing
from diloco.syncer.peers.link_terms import terms_of
from diloco.syncer.peers.link_watch import LinkWatch
from diloco.syncer.peers.service import SyncService
from diloco.syncer.peers.sessions import Sessions
from diloco.syncer.prepare import StartState, recorded_bases, tape_header
from diloco.syncer.reporting.curves import CurveFiles
from diloco.syncer.reporting.decisions import PART_BYTES
from diloco.syncer.reporting.metrics import SyncerMetrics
from diloco.syncer.reporting.status_builder import Reporter
from diloco.syncer.tracking.trackers import TrackedRun
from diloco.syncer.tracking.tracking import Tracking
from diloco.tape.keeper import TapeKeeper, TapeLimits
from diloco.tape.writer import TapeWriter
from diloco.wire.server.traffic import Traffic

_log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0


class Syncer:
    """A running syncer, without its servers. Owned by the event loop."""

    def __init__(
        self,
        options: SyncerOptions,
        directory: SyncerDirectory,
        start_state: StartState,
        epoch: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Build the parts. ``start_state`` has a checkpoint; ``clock`` returns seconds and never goes back.

        Raises:
            SnapshotError: the checkpoint's snapshot does not belong to this job.
        """
        self.job = options.job.metadata.name
        self.epoch, wire_epoch = str(epoch), epoch_on_wire(epoch)
        self.metrics = SyncerMetrics()
        self.serving = False
        """Whether learners are admitted."""
        self._options, self._directory = options, directory
        self._layout, self._store = start_state.layout, start_state.store
        self._outer = start_state.outer
        spec = options.job.spec
        self._pools = dict(spec.pools)
        """By ``region/pool``: pools and, below, regions of the manifest. What it has no longer stays: a message of a
        learner that was there may still come."""
        self.regions = dict(spec.regions_by_name)
        self.traffic = Traffic(self.regions, start_state.bytes_by_region)
        """Bytes between learners and syncer, over all starts: the one count of them."""
        self._clock, self._started_at = clock, clock()
        self._events_at_checkpoint = 0
        self._checkpoint_due = float(options.job.spec.syncer.checkpoint_every_seconds)
        self._checks = ThreadPoolExecutor(2, "check", torch.set_num_threads, (1,))
        self._disk = ThreadPoolExecutor(1, "disk")
        threads = options.threads or torch.get_num_threads()
        self._block_threads, self._reporter = BlockThreads(threads), Reporter(self.job, epoch)
        self._curve_files = CurveFiles(directory.curves, directory.status)
        self._exporter = Exporter(directory.model, self._disk)
        self._journal = Journal(directory.journal, _log.warning, PART_BYTES)
        engine_options = EngineOptions.from_job(options.job, self._layout)
        self._engine = Engine(engine_options, epoch, start_state.engine)
        self._dealing = Dealing.of(
            spec,
            self._pools,
            directory.dealt,
            start_state.data,
            anew=bool(start_state.training),
        )
        self._checkpointer = Checkpointer(
            directory.checkpoints,
            options.job.spec.syncer.max_checkpoints,
            self._disk,
            capture=self._capture,
            release=self._store.release,
            check=lambda content: snapshot.check(engine_options, json.loads(json.dumps(content.engine))),
            metrics=self.metrics,
            clock=clock,
        )
        assert start_state.saved is not None, "there is nothing to fall back to"
        self._checkpointer.begin_with(start_state.saved)
        protected = recorded_bases(directory.tape)
        self._checkpointer.protected = protected | {start_state.checkpoint} if options.record else protected
        self._backups = backups_of(options.job, directory, self._layout, self._checkpointer, clock)
        tape, limits = directory.tape, TapeLimits.of_size(spec.syncer.tape_bytes, keep_all=options.record)
        header = tape_header(options, start_state, epoch)
        self._tape = TapeWriter(tape, header, limits, self._engine.image, TapeKeeper(tape, limits))
        self._engine_loop = EngineLoop(self._engine, self._tape, self._now)
        self._files = FollowedFiles(options, epoch, self._checks, self._engine_loop.post, self._planned)
        self._admission = Admission(spec.learner_ids)
        self._collaborators = collaborators = Collaborators(
            job=self.job,
            epoch=wire_epoch,
            layout=self._layout,
            codec=uplink_codec(spec.sync),
            store=self._store,
            claims=Claims(
                ClaimLimits.of(spec, self._pools, lambda: self._engine.progress), self.metrics.claims_refused.inc, clock
            ),
            dealing=self._dealing,
            admission=self._admission,
            metrics=self.metrics,
            checks=self._checks,
            post=self._engine_loop.post,
            clock=clock,
        )
        self.loads = collaborators.loads  # the server asks it whose parts go behind others
        self._links = LinkWatch(
            spec.sync, self._layout, tokens_per_step(spec.training, self._pools), collaborators.meter
        )
        self._sessions = sessions = Sessions(collaborators, terms_of(self.regions), directory.known_training())
        self._tracking = Tracking(
            spec.training.tracking, TrackedRun(self.job, directory.known_training(), directory.root), directory.curves
        )
        self._end = JobEnd(self._checkpointer, self._exporter, self._backups, sessions.send_all, self._now)
        merging = Merging(self._layout, spec.sync, self._outer.optimizer, self._block_threads)
        work = MergeWork(
            merging, threads, self._checkpointer, directory.payloads if options.record else None, self._finish
        )
        self._executor = ActionExecutor(collaborators, sessions, self._engine_loop, work)
        self.service = SyncService(collaborators, sessions)

    def start(self) -> None:
        """Start processing events."""
        _log.info("outer optimizer: %s", self._outer)
        self._collaborators.decisions.serves(self.epoch)
        self._engine_loop.start(self._executor)
        self.serving = True
        self._tracking.start()
        if self._view().finished:
            self._end.was_before(self._export_now(), self._merged_tokens)

    def status(self) -> SyncerStatus:
        """The current status. Call it on the event loop."""
        self.metrics.inbox_bytes.set(self._collaborators.inbox.held_bytes)
        self.metrics.posted_pulls.set(self._collaborators.posted.waiting)
        stored = StoredStatus(
            parameters=self._layout.numel,
            checkpoint=self._checkpointer.status,
            tape_problem=self._tape.problem or self._executor.record_problem,
            model_exported=self._exporter.exported and (self._backups is None or self._backups.settled),
            backup=None if self._backups is None else self._backups.status,
            links=self._links.status(self._now()),
            measured_links=self._links.measured(),
            bytes_by_region=self.traffic.read(),
            outer_optimizer=str(self._outer),
            computing=self._sessions.computing,
            data=self._dealing.dealer.status(),
            trackers=self._tracking.status(),
        )
        return self._reporter.status(self._view(), stored)

    async def until_over(self, stop: asyncio.Event) -> int:
        """Run until ``stop`` is set, something fails, or the job is over and all have left. Returns the exit code."""
        stopped = asyncio.ensure_future(stop.wait())
        ticking = asyncio.ensure_future(self._tick_until_left())
        ends: list[asyncio.Future[Any]] = [stopped, ticking, self._engine_loop.failed]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if self._engine_loop.failed.done():
                _log.critical("the syncer cannot continue", exc_info=self._engine_loop.failed.exception())
                return EXIT_UNEXPECTED
            if stopped.done():
                self.serving = False
                await self._dealing.stop()
                kept = await self._checkpointer.last()
                if kept:
                    self._dealing.released()
                self._engine_loop.stop()  # a later merge would be announced but lost
                return EXIT_OK if kept else EXIT_UNEXPECTED
            ticking.result()
            self._dealing.released()
            return EXIT_OK if self._view().complete else EXIT_JOB_FAILED
        finally:
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)

    def stop_serving(self) -> None:
        """Admit no more learners, and end all posted pulls."""
        self.serving = False
        self._collaborators.posted.stop()

    def close(self) -> None:
        """Stop processing events, and end the threads."""
        self._engine_loop.stop()
        self._end.cancel()
        self._executor.close()
        self._block_threads.close()
        self._checks.shutdown()
        if not self._engine_loop.broken:
            self._write_journal(self._view())
            self._disk.submit(self._curve_files.keep, self.status())
        self._disk.submit(self._journal.close)
        self._disk.shutdown()
        self._tape.close()
        self._tracking.close(over=self._view().finished)

    async def _tick_until_left(self) -> None:
        """Every second: rates, the tape, checkpoints. Returns once the job is over and the process may exit."""
        quiet_since = self._now()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now = self._now()
            view = self._view()
            self._reporter.sample(view, now)
            await self._links.look(view, now, self._checks)
            if self._collaborators.curves.due(view):
                status = self.status()
                self._disk.submit(self._curve_files.append, self._collaborators.curves.row(status))
                self._disk.submit(self._curve_files.keep, status)
            self._write_journal(view)
            self._tape.flush()
            if self._end.at is not None and not self._end.work_left():
                self._tape.end(self._exporter.digest)
            self._request_checkpoint(now)
            self._end.back_up()
            self._dealing.tick()
            await self._files.poll()
            if self._sessions.admitted:
                quiet_since = now
            # A process that has ended a job trains no more, even if the budget was raised afterwards.
            raised = view.complete and self._files.wanted_tokens > view.merged_tokens
            if raised and not self._end.work_left():
                _log.info("training.tokens is above what was merged when the job ended: the next process goes on")
                return
            if self._options.exit_when_finished and self._end.may_exit(now, quiet_since, self._sessions.admitted):
                return

    def _write_journal(self, view: EngineStatus) -> None:
        self._collaborators.decisions.look(view)
        if decisions := self._collaborators.decisions.take():
            self._disk.submit(self._journal.append, *decisions)

    def _request_checkpoint(self, now: float) -> None:
        if now < self._checkpoint_due or self._checkpointer.busy:
            return
        every = self._options.job.spec.syncer.checkpoint_every_seconds
        self._checkpoint_due = now + max(every, self._checkpointer.pause_seconds)
        if self._engine_loop.events != self._events_at_checkpoint:
            self._engine_loop.post(SnapshotAsked(DUE))

    def _planned(self, spec: JobSpec, event: LearnersPlanned) -> None:
        self._pools |= spec.pools
        self.regions |= spec.regions_by_name
        self.traffic.add(self.regions)
        self._admission.planned(event.learners)
        self._dealing.plan(event.learners)

    def _capture(self, reason: str) -> CheckpointContent:
        self._events_at_checkpoint = self._engine_loop.events
        engine, base = self._engine.snapshot(self._shown_at()), self._checkpointer.base
        versions = self._store.versions
        assert tuple(engine["versions"]) == versions, "engine and store are at different versions"
        residuals = self._store.keeps_residuals
        image = self._store.hold(base.same(versions, residuals=residuals) if base else ())
        epoch, outer, moved = int(self.epoch), self._outer, self.traffic.read()
        dealt, model = self._dealing.dealer.state(), model_identity(self._options.job.spec)
        return CheckpointContent(self.job, self._layout, epoch, image, engine, outer, reason, moved, dealt, model, base)

    def _finish(self, action: Finish) -> None:
        self._end.begin(action, self._export_now())

    def _export_now(self) -> Callable[[], str]:
        """A function that writes the model as it is now, and returns the file's SHA-256."""
        parameters = [self._store.current(fragment.index).parameters for fragment in self._layout.fragments]
        folder, tokens = self._directory.model, self._merged_tokens
        return partial(export, self._options.job, self._layout, parameters, tokens, folder)

    @property
    def _merged_tokens(self) -> int:
        return round(self._view().merged_tokens)

    def _now(self) -> float:
        return self._clock() - self._started_at

    def _shown_at(self) -> float:
        """The time to show: fixed once the job is over, so that shares and duration no longer change."""
        return self._now() if self._end.at is None else self._end.at

    def _view(self) -> EngineStatus:
        return self._engine.view(self._shown_at())
