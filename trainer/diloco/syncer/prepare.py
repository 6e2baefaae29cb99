"""What a syncer needs before it serves: the model's layout, and the newest checkpoint or a new model.

Only a new job needs the model: a restart reads the checkpoint's files, which name all tensors. It builds the model only
if the job now says something else of it. It runs before there is an event loop.
"""

import logging
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from diloco.core.dealing.dealer import Dealer
from diloco.core.engine import snapshot
from diloco.core.engine.engine import Engine
from diloco.core.engine.options import RULES, EngineOptions
from diloco.core.engine.snapshot import LaterSnapshotError, SnapshotError
from diloco.core.fragments import Layout
from diloco.model import ModelError
from diloco.model.build import build_model, layout_of_job, model_identity
from diloco.model.entrypoint import one_line
from diloco.model.fragments import layout_of, read_fragment
from diloco.runtime.files import UnusableFileError
from diloco.runtime.process.exits import EXIT_UNEXPECTED
from diloco.spec import DiLoCoJob
from diloco.spec.outer_choice import OuterChoice
from diloco.spec.status.syncer import RegionBytes
from diloco.syncer.backup.ownership import JobName
from diloco.syncer.backup.restore import restore
from diloco.syncer.backup.weights import initial_parameters
from diloco.syncer.disk.checkpoint import (
    CheckpointContent,
    CheckpointManifest,
    LoadedCheckpoint,
    SavedCheckpoint,
    layout_without_model,
    load_checkpoint,
    newest_checkpoint,
    write_checkpoint,
)
from diloco.syncer.disk.checkpoint_names import has_had_checkpoints, set_aside
from diloco.syncer.disk.directory import SyncerDirectory
from diloco.syncer.errors import SyncerError
from diloco.syncer.options import SyncerOptions
from diloco.syncer.store import FragmentStore
from diloco.tape.reader import TapeError, TapeHeader, read_header
from diloco.tape.segments import find_tapes, segment_number

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartState:
    """The state a syncer process starts with."""

    layout: Layout
    store: FragmentStore
    engine: dict[str, Any] | None
    """The engine's snapshot; None for a new job."""
    saved: SavedCheckpoint | None
    """The checkpoint that it begins with; None for a new job that has none yet."""
    outer: OuterChoice
    """The outer optimizer: that of the checkpoint, if the job leaves the choice open."""
    bytes_by_region: tuple[RegionBytes, ...] = ()
    epoch: int = 0
    """Number of the start that wrote the checkpoint; 0 for a new job."""
    training: str = ""
    """Id of the training that a backup has brought; empty: none was restored."""
    data: dict[str, Any] = field(default_factory=lambda: Dealer().state())
    """What was dealt to learners."""

    @property
    def checkpoint(self) -> str:
        """Name of the checkpoint that it begins with; empty: there is none yet."""
        return self.saved.name if self.saved else ""


def prepare(job: DiLoCoJob, checkpoints: Path) -> StartState:
    """Load the newest complete checkpoint, or build the model; log checkpoints that are damaged.

    Without any checkpoint, the job begins as ``spec.initFrom`` says.

    Raises:
        ModelError: the model cannot be built, or is another one without values.
        LayoutError: it cannot be cut into fragments as asked.
        SyncerError: the checkpoint is of another job or model, or none of them is complete; or what the job is to
            begin from cannot be used.
        OSError: a broken checkpoint could not be set aside, or a backup could not be written to disk.
    """
    layout = layout_without_model(checkpoints, model_identity(job.spec)) or layout_of_job(job.spec)
    loaded, broken, training = _newest(job, checkpoints, layout)
    for problem in broken.values():
        _log.warning("skipped a damaged checkpoint: %s", problem)
    if broken and loaded is None:
        raise SyncerError(f"{checkpoints}: no checkpoint is usable; move them away to start the job from zero")
    if broken:
        set_aside(checkpoints, broken)
    if loaded is not None:
        if layout.constants is None:
            layout = replace(layout, constants=loaded.manifest.layout.partition(".")[2])
        store = empty_store(job, layout)
        fill_from(store, loaded)
        _log.info("continues from checkpoint %s", loaded.name)
        return StartState(
            layout,
            store,
            loaded.manifest.engine,
            SavedCheckpoint(loaded.name, loaded.manifest),
            OuterChoice.of(job.spec, loaded.manifest.outer),
            loaded.manifest.bytes_by_region,
            loaded.manifest.epoch,
            training,
            loaded.manifest.data,
        )
    return _begun(job, checkpoints, layout)


def _begun(job: DiLoCoJob, checkpoints: Path, without_values: Layout) -> StartState:
    """A job at its beginning; its model must be cut as it is ``without_values``, which is all that others build."""
    module = build_model(job.spec)
    layout = layout_of(module, job.spec.sync.fragments)
    if layout.cut != without_values.cut:
        raise ModelError(
            f"model: {job.spec.model.name} has {layout.numel} trained parameters in other tensors than on torch's meta "
            f"device, where it has {without_values.numel}; build the same model on both"
        )
    store = empty_store(job, layout)
    begins = job.spec.init_from
    if begins is None:
        given = [torch.empty(fragment.numel, dtype=torch.float32) for fragment in layout.fragments]
        for fragment, parameters in zip(layout.fragments, given, strict=True):
            read_fragment(module, fragment, parameters)
    else:
        given = initial_parameters(begins, module, layout, checkpoints.with_name(".initial.part"))
    for fragment, parameters in zip(layout.fragments, given, strict=True):
        store.put(fragment.index, 0, parameters)
    return StartState(layout, store, None, None, OuterChoice.of(job.spec))


def _newest(job: DiLoCoJob, checkpoints: Path, layout: Layout) -> tuple[LoadedCheckpoint | None, dict[str, str], str]:
    readable = partial(_check_engine, EngineOptions.from_job(job, layout))
    loaded, broken = newest_checkpoint(checkpoints, layout, job.metadata.name, readable)
    begins = job.spec.init_from
    if loaded is not None or broken or has_had_checkpoints(checkpoints) or begins is None or begins.type != "Resume":
        return loaded, broken, ""

    def load(name: str) -> LoadedCheckpoint:
        restored = load_checkpoint(checkpoints, name, layout, job.metadata.name)
        readable(checkpoints / name, restored.manifest)
        return restored

    restored, training = restore(begins, JobName.of(job.metadata), layout, checkpoints, load=load)
    return restored, {}, training


def _check_engine(options: EngineOptions, folder: Path, manifest: CheckpointManifest) -> None:
    """Raise if the engine cannot resume from a checkpoint: an earlier one is used then."""
    try:
        snapshot.check(options, manifest.engine)
    except LaterSnapshotError as error:  # not damaged, so not to be set aside
        raise SyncerError(f"{folder}: {error}; use the version of diloco that wrote it or a later one") from None
    except SnapshotError as error:
        raise UnusableFileError(f"{folder}: {error}") from None
    try:
        Dealer.restored(manifest.data)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnusableFileError(f"{folder}: what was dealt is damaged ({one_line(error)})") from None
    if tuple(manifest.engine["versions"]) != manifest.versions:
        raise UnusableFileError(f"{folder}: its engine and its fragments are at different versions")


def empty_store(job: DiLoCoJob, layout: Layout) -> FragmentStore:
    """A store that keeps as many older versions as the job's anchor needs, and residuals if updates are encoded."""
    sync = job.spec.sync
    return FragmentStore(
        layout,
        older_versions=sync.max_version_lag if sync.anchor == "Current" else 0,
        residuals=sync.downlink != "F32",
    )


def fill_from(store: FragmentStore, checkpoint: LoadedCheckpoint) -> None:
    """Put a checkpoint's tensors into a store, which owns them from then on."""
    for fragment, (version, tensors) in enumerate(zip(checkpoint.manifest.versions, checkpoint.fragments, strict=True)):
        store.put(fragment, version, *tensors)
    for fragment, usual in enumerate(checkpoint.manifest.usual):
        store.set_usual(fragment, usual)


def recorded_bases(tape: Path) -> frozenset[str]:
    """Checkpoints that recorded tapes begin with, which a replay needs; a tape without its beginning needs none."""
    bases: set[str] = set()
    for files in find_tapes(tape):
        if segment_number(files.segments[0]) > 0:
            continue
        try:
            header = read_header(files.segments[0])
        except TapeError as error:
            _log.warning("%s", error)
            continue
        if header.record and header.base_checkpoint:
            bases.add(header.base_checkpoint)
    return frozenset(bases)


def with_first_checkpoint(job: DiLoCoJob, directory: SyncerDirectory, state: StartState, epoch: int) -> StartState:
    """The same state of a new job, with a checkpoint on disk that a restart begins with.

    Raises:
        SyncerError: it could not be written.
    """
    name, layout = job.metadata.name, state.layout
    engine = Engine(EngineOptions.from_job(job, layout), epoch).snapshot(0.0)
    content = CheckpointContent(
        name,
        layout,
        epoch,
        state.store.hold(),
        engine,
        state.outer,
        "the job begins",
        data=state.data,
        model=model_identity(job.spec),
    )
    try:
        directory.dealt.unlink(missing_ok=True)  # of another training
        return replace(state, saved=write_checkpoint(directory.checkpoints, content))
    except OSError as error:
        text = f"{directory.checkpoints}: the first checkpoint could not be written ({error.strerror or error})"
        raise SyncerError(text, EXIT_UNEXPECTED) from error
    finally:
        state.store.release()


def tape_header(options: SyncerOptions, state: StartState, epoch: int) -> TapeHeader:
    """The first line of this start's tape."""
    return TapeHeader(
        job=state.outer.put_into(options.job).model_dump(mode="json", by_alias=True),
        layout=state.layout.digest,
        epoch=epoch,
        base_checkpoint=state.checkpoint,
        record=options.record,
        engine=state.engine or {},
        started_at=time.time(),
        rules=RULES,
        tensors=state.layout.table,
    )
