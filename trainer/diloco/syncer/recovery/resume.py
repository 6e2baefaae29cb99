"""Before a restarted syncer begins its epoch: takes what learners hold beyond its checkpoint, and writes a checkpoint.

Whatever goes wrong, the syncer goes on from the checkpoint that it has. Nothing on disk changes before the new
checkpoint is there as a whole, so that a crash in between is as if this had not begun.
"""

import asyncio
import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

import torch

from diloco.core.engine import snapshot
from diloco.core.engine.engine import EngineOptions
from diloco.core.merge.outer_optimizer import momentum_between
from diloco.model.build import model_identity
from diloco.runtime.addresses import format_address, parse_address
from diloco.runtime.process.loading import Loading
from diloco.spec.status.syncer import RecoveredStatus
from diloco.syncer.disk.checkpoint import CheckpointContent, write_checkpoint
from diloco.syncer.disk.checkpoint_names import prune_checkpoints
from diloco.syncer.disk.directory import SyncerDirectory
from diloco.syncer.options import SyncerOptions
from diloco.syncer.peers.link_terms import limits_of
from diloco.syncer.prepare import StartState, prepare, recorded_bases
from diloco.syncer.recovery.collector import Collector
from diloco.syncer.recovery.tail import MadeVersion
from diloco.syncer.recovery.tape_tail import TapeTail
from diloco.wire.server.server import SyncServer
from diloco.wire.server.traffic import Traffic

_log = logging.getLogger(__name__)

_LEAST_PATIENCE_SECONDS: Final = 12.0
"""Learners try again after 8 s at most, and then connect."""
_STOP_SECONDS: Final = 1.0
"""Time for calls under way to end before the syncer itself serves."""
_TELL_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Beginning:
    """A start of the syncer that is about to begin its epoch."""

    options: SyncerOptions
    directory: SyncerDirectory
    state: StartState
    """Of the newest checkpoint."""
    epoch: int
    tail: TapeTail | None
    """What was merged after that checkpoint; None: nothing that is known."""


async def recover(
    beginning: Beginning, tail: TapeTail, stop: asyncio.Event, loading: Loading
) -> tuple[SyncerOptions, StartState]:
    """Take from learners what the tape says was merged after the checkpoint.

    Returns the options, with the port that learners know by now, and what the epoch begins with: the new checkpoint, or
    the one that there was. ``stop`` ends it early.

    Raises:
        ListenError, TlsFileError: as when a syncer serves.
        SyncerError, ModelError, LayoutError, OSError: the earlier checkpoint cannot be read again.
    """
    work = _Restoring(beginning, tail)
    telling = asyncio.create_task(_tell(loading))
    try:
        listen = await work.collect(stop)
        options = replace(beginning.options, listen=listen)
        if stop.is_set():
            return options, beginning.state
        return options, await asyncio.to_thread(work.finished)
    finally:
        telling.cancel()
        work.close()


async def _tell(loading: Loading) -> None:
    """Keep the process healthy: this ends by itself, however long nothing comes."""
    while True:
        loading.switch_to("taking from learners what was merged after the checkpoint")
        await asyncio.sleep(_TELL_SECONDS)


class _Restoring:
    """The work on one start."""

    def __init__(self, beginning: Beginning, tail: TapeTail) -> None:
        self._options, self._directory = beginning.options, beginning.directory
        self._tail, self._start, self._epoch = tail, beginning.state, beginning.epoch
        self._store, self._before = self._start.store, self._start.store.versions
        self._began = time.monotonic()
        self._checks = ThreadPoolExecutor(2, "check", torch.set_num_threads, (1,))
        self._estimated: set[int] = set()
        self._taken: set[int] = set()
        self._senders = 0
        regions = self._options.job.spec.regions_by_name
        self._traffic = Traffic(regions, self._start.bytes_by_region)

    def close(self) -> None:
        self._checks.shutdown()

    async def collect(self, stop: asyncio.Event) -> str:
        """Listen to learners and take what has its proof; returns the address that was listened on."""
        job, tail = self._options.job, self._tail.tail
        collector = Collector(
            job=job.metadata.name,
            epoch=self._tail.epoch,
            layout=self._start.layout,
            provable=self._tail.provable(),
            known=tail.known | frozenset(job.spec.learner_ids),
            awaited=tail.present or tail.known,
            take=self._take,
            checks=self._checks,
        )
        server = SyncServer(collector, self._options.server(limits_of(job.spec.regions_by_name)), self._traffic)
        patience = max(job.spec.sync.lease_seconds, _LEAST_PATIENCE_SECONDS)
        port = await server.start()
        address = format_address(parse_address(self._options.listen)[0], port)
        # It is not worth more time than it takes to do the work again.
        most = patience + tail.seconds
        _log.info("takes them from learners at %s, in %.0f s at most", address, most)
        try:
            await collector.collect(patience_seconds=patience, most_seconds=most, stop=stop)
        finally:
            await server.stop(_STOP_SECONDS)
        self._senders = len(collector.senders)
        return address

    def finished(self) -> StartState:
        """What the epoch begins with."""
        made = self._tail.tail.made
        all_made = sum(len(versions) for versions in made)
        if self._taken:
            for fragment, one in self._tail.unchanged().items():
                if fragment not in self._taken:
                    self._rename(fragment, one.version)
        restored = sum(self._store.versions) - sum(self._before)
        status = RecoveredStatus(
            restored=restored,
            lost=all_made - restored,
            fragments=len(self._taken),
            estimated=len(self._estimated),
            senders=self._senders,
            seconds=time.monotonic() - self._began,
        )
        if not self._taken:
            _log.warning("no learner holds what was merged after checkpoint %s: it is lost", self._start.checkpoint)
            return replace(self._start, recovered=status)
        try:
            begun = self._written(status)
        except (OSError, ValueError) as error:
            _log.error("what learners hold is not used, as it cannot be written: %s", error)
            again = prepare(self._options.job, self._directory.checkpoints)
            return replace(again, recovered=status.model_copy(update={"restored": 0, "lost": all_made}))
        _log.info(
            "%d of %d versions that were merged after checkpoint %s are restored from %d learners in %.1f s, as"
            " checkpoint %s",
            *(status.restored, all_made, self._start.checkpoint, status.senders, status.seconds, begun.checkpoint),
        )
        if self._estimated:
            _log.warning(
                "the outer momentum of %d fragments is estimated: more than one merge of them was restored",
                len(self._estimated),
            )
        return begun

    async def _take(self, fragment: int, made: MadeVersion, values: torch.Tensor) -> None:
        work = self._put
        await asyncio.get_running_loop().run_in_executor(self._checks, work, fragment, made, values)

    def _put(self, fragment: int, made: MadeVersion, values: torch.Tensor) -> None:
        store, optimizer = self._store, self._tail.optimizer
        before, momentum, residual = (
            store.current(fragment).parameters,
            store.momentum(fragment),
            store.residual(fragment),
        )
        if residual is not None:  # it was part of what the next update was made of; that of this version is not known
            before = before + residual
        exact = momentum_between(before, values, momentum, made.steps, optimizer)
        if not exact or (made.steps > 1 and optimizer.momentum > 0.0):
            self._estimated.add(fragment)
        store.put(fragment, made.version, values, momentum)
        self._taken.add(fragment)

    def _rename(self, fragment: int, version: int) -> None:
        """Note that merges have failed, and left the fragment as it is."""
        store = self._store
        parameters, momentum = store.current(fragment).parameters, store.momentum(fragment)
        store.put(fragment, version, parameters, momentum, store.residual(fragment))

    def _written(self, status: RecoveredStatus) -> StartState:
        """Write a checkpoint of what there is now.

        Raises:
            OSError: it could not be written in full.
            ValueError: the engine could not resume from it.
        """
        start, job, store = self._start, self._options.job, self._store
        engine = self._tail.tail.snapshot(store.versions)
        snapshot.check(EngineOptions.from_job(job, start.layout), json.loads(json.dumps(engine)))
        by_region, reason = self._traffic.read(), "restored from what learners hold"
        content = CheckpointContent(
            job.metadata.name,
            start.layout,
            self._epoch,
            store.hold(),
            engine,
            start.outer,
            reason,
            by_region,
            start.data,
            model_identity(job.spec),
        )
        checkpoints, keep = self._directory.checkpoints, job.spec.syncer.max_checkpoints
        prune_checkpoints(checkpoints, max(2, keep - 1), recorded_bases(self._directory.tape))
        try:
            saved = write_checkpoint(checkpoints, content)
        finally:
            store.release()
        return replace(
            start,
            engine=engine,
            saved=saved,
            bytes_by_region=by_region,
            epoch=self._epoch,
            recovered=status,
        )
