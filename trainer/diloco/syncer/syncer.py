"""A running syncer: builds its parts, does the work of every second, and ends the job and the process."""

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
from diloco.core.engine.events import LearnerFailed, LearnerReadmitted, LearnersPlanned, SnapshotAsked
from diloco.core.engine.options import RULES
from diloco.core.merge.codec import codec_named
from diloco.model.build import model_identity
from diloco.runtime.process.exits import EXIT_JOB_FAILED, EXIT_OK, EXIT_UNEXPECTED
from diloco.spec.names.learner_orders import FAILED_FILE, READMITTED_FILE
from diloco.spec.status.engine import EngineStatus
from diloco.spec.status.syncer import StoredStatus, SyncerStatus
from diloco.syncer.action_executor import ActionExecutor, MergeWork
from diloco.syncer.backup.backups import backups_of
from diloco.syncer.block_threads import BlockThreads
from diloco.syncer.disk.checkpoint import CheckpointContent, write_checkpoint
from diloco.syncer.disk.checkpointer import Checkpointer
from diloco.syncer.disk.directory import SyncerDirectory, epoch_on_wire
from diloco.syncer.disk.exporter import RETRY_SECONDS, Exporter, export
from diloco.syncer.engine_loop import EngineLoop
from diloco.syncer.errors import SyncerError
from diloco.syncer.job_file import JobFile
from diloco.syncer.merging import Merging
from diloco.syncer.options import SyncerOptions
from diloco.syncer.order_file import OrderFile
from diloco.syncer.peers.admission import Admission
from diloco.syncer.peers.claims import ClaimLimits, Claims, tokens_per_step
from diloco.syncer.peers.collaborators import Collaborators
from diloco.syncer.peers.dealing import Dealing
from diloco.syncer.peers.link_terms import terms_of
from diloco.syncer.peers.link_watch import LinkWatch
from diloco.syncer.peers.service import SyncService
from diloco.syncer.peers.sessions import Sessions
from diloco.syncer.prepare import StartState, recorded_bases
from diloco.syncer.reporting.curves import CurveFile
from diloco.syncer.reporting.metrics import SyncerMetrics
from diloco.syncer.reporting.status_builder import Reporter
from diloco.tape.keeper import TapeKeeper, TapeLimits
from diloco.tape.reader import TapeHeader
from diloco.tape.writer import TapeWriter
from diloco.wire.messages import Finished
from diloco.wire.server.traffic import Traffic

_log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_QUIET_SECONDS = 3.0
"""With ``exit_when_finished``: time without any session before the process exits."""
_QUIET_AFTER_RESTART_SECONDS = 15.0
"""The same if the job was over before this process began: learners must reconnect to learn that."""
_LINGER_SECONDS = 60.0
"""With ``exit_when_finished``: longest wait for learners to leave once they know that the job is over."""


class Syncer:
    """A running syncer, without its servers. Owned by the event loop."""

    _told_at = 0.0
    """When learners were told of the job's end."""

    def __init__(
        self,
        options: SyncerOptions,
        directory: SyncerDirectory,
        start_state: StartState,
        epoch: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Build the parts, and make sure that there is a checkpoint to fall back to.

        ``clock`` returns seconds and never goes back.

        Raises:
            SyncerError: the first checkpoint could not be written.
            SnapshotError: the checkpoint's snapshot does not belong to this job.
        """
        self.job = options.job.metadata.name
        self.epoch, wire_epoch = str(epoch), epoch_on_wire(epoch)
        self.metrics = SyncerMetrics()
        self.serving = False
        """Whether learners are admitted."""
        self._options = options
        self._directory = directory
        self._layout, self._store = start_state.layout, start_state.store
        self._recovered, self._outer = start_state.recovered, start_state.outer
        spec = options.job.spec
        self._pools = dict(spec.pools)
        """By ``region/pool``: pools and, below, regions of the manifest. What it has no longer stays: a message of a
        learner that was there may still come."""
        self.regions = dict(spec.regions_by_name)
        self.traffic = Traffic(self.regions, start_state.bytes_by_region)
        """Bytes between learners and syncer, over all starts: the one count of them."""
        self._clock = clock
        self._started_at = clock()
        self._finished_at: float | None = None
        self._quiet_seconds = _QUIET_SECONDS
        self._events_at_checkpoint = 0
        self._checkpoint_due = float(options.job.spec.syncer.checkpoint_every_seconds)
        self._files = _files(options, epoch)
        self._concluding: asyncio.Task[None] | None = None
        self._checks = ThreadPoolExecutor(2, "check", torch.set_num_threads, (1,))
        self._disk = ThreadPoolExecutor(1, "disk")
        self._exporter = Exporter(directory.model, self._disk)
        threads = options.threads or torch.get_num_threads()
        self._block_threads = BlockThreads(threads)
        self._reporter, self._curve_file = Reporter(self.job, epoch), CurveFile(directory.curves)
        engine_options = EngineOptions.from_job(options.job, self._layout)
        self._engine = Engine(engine_options, epoch, start_state.engine)
        self._dealing = Dealing.of(
            spec,
            self._pools,
            directory.dealt,
            start_state.data,
            anew=not start_state.checkpoint or bool(start_state.training),
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
        base = start_state.checkpoint or self._first_checkpoint()
        self._checkpointer.newest = base
        protected = recorded_bases(directory.tape)
        self._checkpointer.protected = protected | {base} if options.record else protected
        self._backups = backups_of(options.job, directory, self._layout, self._checkpointer, clock)
        self._tape = self._begin_tape(base, start_state)
        self._engine_loop = EngineLoop(self._engine, self._tape, self._now)
        self._admission = Admission(spec.learner_ids)
        self._collaborators = collaborators = Collaborators(
            job=self.job,
            epoch=wire_epoch,
            layout=self._layout,
            codec=codec_named(spec.sync.compression),
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
        merging = Merging(self._layout, spec.sync, self._outer.optimizer, self._block_threads)
        work = MergeWork(
            merging, threads, self._checkpointer, directory.payloads if options.record else None, self._finish
        )
        self._executor = ActionExecutor(collaborators, sessions, self._engine_loop, work)
        self.service = SyncService(collaborators, sessions)

    def start(self) -> None:
        """Start processing events."""
        _log.info("outer optimizer: %s", self._outer)
        self._engine_loop.start(self._executor)
        self.serving = True
        if self._view().finished:
            self._finished_at = self._told_at = self._now()
            self._quiet_seconds = _QUIET_AFTER_RESTART_SECONDS
            self._exporter.resume(self._export_now(), self._merged_tokens)

    def status(self) -> SyncerStatus:
        """The current status. Call it on the event loop."""
        self.metrics.inbox_bytes.set(self._collaborators.inbox.held_bytes)
        self.metrics.posted_pulls.set(self._collaborators.posted.waiting)
        stored = StoredStatus(
            checkpoint=self._checkpointer.status,
            tape_problem=self._tape.problem or self._executor.record_problem,
            model_exported=self._exporter.exported and (self._backups is None or self._backups.settled),
            backup=None if self._backups is None else self._backups.status,
            links=self._links.status(self._now()),
            bytes_by_region=self.traffic.read(),
            recovered=self._recovered,
            outer_optimizer=str(self._outer),
            data=self._dealing.dealer.status(),
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
        self._exporter.cancel()
        if self._backups is not None:
            self._backups.close()
        if self._concluding is not None:
            self._concluding.cancel()
        self._executor.close()
        self._block_threads.close()
        self._checks.shutdown()
        self._disk.shutdown()
        self._tape.close()

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
                row = self._collaborators.curves.row(self.status())
                self._disk.submit(self._curve_file.append, row)
            self._tape.flush()
            self._request_checkpoint(now)
            self._back_up()
            self._dealing.tick()
            await self._poll_files()
            if self._sessions.admitted:
                quiet_since = now
            if self._goes_on(view) and not self._work_left():
                _log.info("training.tokens is above what was merged when the job ended: the next process goes on")
                return
            if not self._options.exit_when_finished or self._finished_at is None or self._work_left():
                continue
            if now - max(quiet_since, self._told_at) >= self._quiet_seconds:
                return
            if now - self._told_at >= _LINGER_SECONDS:
                _log.warning("%d learners have not left; no longer waiting for them", self._sessions.admitted)
                return

    def _goes_on(self, view: EngineStatus) -> bool:
        """Whether the budget was raised after the job was complete. A process that has ended a job trains no more."""
        wanted = 0 if self._files is None else self._files[0].job.spec.training.tokens
        return view.complete and wanted > view.merged_tokens

    def _work_left(self) -> bool:
        concluding = self._concluding is not None and not self._concluding.done()
        uploads = self._backups is not None and self._exporter.exported and not self._backups.settled
        return self._checkpointer.busy or self._exporter.busy or concluding or uploads

    def _back_up(self) -> None:
        if self._backups is None:
            return
        over = self._concluding is None or self._concluding.done()
        if self._finished_at is not None and self._exporter.exported and over and not self._checkpointer.busy:
            self._backups.ended()
        self._backups.tick()

    def _request_checkpoint(self, now: float) -> None:
        if now < self._checkpoint_due or self._checkpointer.busy:
            return
        self._checkpoint_due = now + self._options.job.spec.syncer.checkpoint_every_seconds
        if self._engine_loop.events != self._events_at_checkpoint:
            self._engine_loop.post(SnapshotAsked("a checkpoint is due"))

    async def _poll_files(self) -> None:
        if self._files is None:
            return
        (job_file, *order_files), loop = self._files, asyncio.get_running_loop()
        for order_file in order_files:
            for order in await loop.run_in_executor(self._checks, order_file.poll):
                self._engine_loop.post(order)
        for event in await loop.run_in_executor(self._checks, job_file.poll):
            if isinstance(event, LearnersPlanned):
                spec = job_file.job.spec
                self._pools |= spec.pools
                self.regions |= spec.regions_by_name
                self.traffic.add(self.regions)
                self._admission.planned(event.learners)
            self._engine_loop.post(event)

    def _first_checkpoint(self) -> str:
        try:
            return write_checkpoint(self._directory.checkpoints, self._content("the job begins"))
        except OSError as error:
            where = self._directory.checkpoints
            text = f"{where}: the first checkpoint could not be written ({error.strerror or error})"
            raise SyncerError(text, EXIT_UNEXPECTED) from error
        finally:
            self._store.release()

    def _capture(self, reason: str) -> CheckpointContent:
        self._events_at_checkpoint = self._engine_loop.events
        return self._content(reason)

    def _content(self, reason: str) -> CheckpointContent:
        engine = self._engine.snapshot(self._shown_at())
        assert tuple(engine["versions"]) == self._store.versions, "engine and store are at different versions"
        image = self._store.hold()
        epoch, outer, moved = int(self.epoch), self._outer, self.traffic.read()
        dealt, model = self._dealing.dealer.state(), model_identity(self._options.job.spec)
        return CheckpointContent(self.job, self._layout, epoch, image, engine, outer, reason, moved, dealt, model)

    def _begin_tape(self, base: str, start_state: StartState) -> TapeWriter:
        limits = TapeLimits.of_size(self._options.job.spec.syncer.tape_bytes, keep_all=self._options.record)
        header = TapeHeader(
            job=self._outer.put_into(self._options.job).model_dump(mode="json", by_alias=True),
            layout=self._layout.digest,
            epoch=int(self.epoch),
            base_checkpoint=base,
            record=self._options.record,
            engine=start_state.engine or {},
            started_at=time.time(),
            rules=RULES,
            tensors=self._layout.table,
        )
        keeper = TapeKeeper(self._directory.tape, limits)
        return TapeWriter(self._directory.tape, header, limits, self._engine.image, keeper)

    def _finish(self, action: Finish) -> None:
        self._finished_at = self._now()
        self._concluding = asyncio.create_task(self._conclude(action))
        self._exporter.begin(self._export_now())

    async def _conclude(self, action: Finish) -> None:
        """Write the end to disk before learners are notified of it, because they then leave for good."""
        began = self._now()
        while True:
            failures = self._checkpointer.status.failures
            self._checkpointer.request(f"the job is over: {action.reason}")
            await self._checkpointer.idle()
            took = self._now() - began
            if self._checkpointer.status.failures == failures or took >= self._checkpointer.longest_seconds:
                break
            await asyncio.sleep(RETRY_SECONDS)
        self._told_at = self._now()
        self._sessions.send_all(Finished(action.complete, action.reason))

    def _export_now(self) -> Callable[[], None]:
        """A function that writes the model as it is now."""
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
        return self._now() if self._finished_at is None else self._finished_at

    def _view(self) -> EngineStatus:
        return self._engine.view(self._shown_at())


def _files(options: SyncerOptions, epoch: int) -> tuple[JobFile, OrderFile, OrderFile] | None:
    """What is followed while the job runs, if the manifest is a file."""
    path = options.job_file
    if path is None:
        return None
    readmitted = OrderFile(path.parent / READMITTED_FILE, epoch, LearnerReadmitted)
    return JobFile(path, options.job), readmitted, OrderFile(path.parent / FAILED_FILE, epoch, LearnerFailed)
