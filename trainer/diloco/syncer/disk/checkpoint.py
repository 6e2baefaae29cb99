"""Checkpoints of the syncer: written completely or not at all, verified when read, the newest valid one used.

A checkpoint is a folder ``NNNNNN`` with a file for each fragment (`fragment_file`), and a manifest with the engine's
snapshot and a digest of every file and of itself. Only fragments that have changed are written; the files of the others
are hard links to those of the checkpoint before. The folder has a temporary name until all of it is synced, so a crash
at any moment leaves the previous checkpoints intact.
"""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from diloco.core.dealing.dealer import Dealer
from diloco.core.fragments import FragmentTable, Layout, LayoutError, Match, layout_from_table
from diloco.core.merge.member_sizes import UsualSize
from diloco.runtime.files import UnusableFileError, fsync, read_json, sha256_bytes, sha256_file, share_file
from diloco.spec.outer_choice import OuterChoice
from diloco.spec.status.syncer import RegionBytes
from diloco.syncer.disk.checkpoint_names import checkpoint_names, clear_leftovers, last_number
from diloco.syncer.disk.fragment_file import FragmentTensors, file_of, read_fragment_file, write_fragment_file
from diloco.syncer.errors import SyncerError
from diloco.syncer.store import StoreImage

FORMAT = 1


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    size_bytes: int
    sha256: str


class CheckpointManifest(BaseModel):
    """A checkpoint's manifest."""

    # Otherwise a loss that is not finite would be written as null.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    format: int
    job: str
    layout: str
    """Digest of the model's layout."""
    tensors: tuple[FragmentTable, ...]
    """The layout (`Layout.table`), so that a restart needs no model."""
    model: str
    """What the job said of its model (`diloco.model.build.model_identity`)."""
    epoch: int = Field(ge=0, lt=1 << 43)
    """Its incarnations fit into messages."""
    versions: tuple[int, ...]
    """Of each fragment, and so of its file."""
    residuals: bool
    """Whether the files have residuals."""
    engine: dict[str, Any]
    """The engine's snapshot."""
    usual: tuple[UsualSize, ...] = ()
    """By fragment, of its outer gradients, so that a restart does not forget what members are compared with. Empty:
    nothing is known."""
    outer: OuterChoice
    """The outer optimizer of its merges."""
    bytes_by_region: tuple[RegionBytes, ...]
    """Between learners and syncer, since the job began."""
    data: dict[str, Any]
    """What was dealt to learners (`diloco.core.dealing`)."""
    written_at: float
    """Seconds since 1970."""
    reason: str
    files: dict[str, _File]

    @property
    def averaged(self) -> frozenset[int]:
        """Fragments with a mean of their last versions, by the engine's snapshot."""
        counts = self.engine.get("averaged")
        return frozenset(fragment for fragment, count in enumerate(counts if isinstance(counts, list) else ()) if count)


class OtherModelError(SyncerError):
    """The checkpoint's model is cut into fragments differently from the job's."""


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint that is on disk."""

    name: str
    manifest: CheckpointManifest

    def same(self, versions: tuple[int, ...], *, residuals: bool) -> frozenset[int]:
        """Fragments of these ``versions`` that it has in the same version; none if it differs in ``residuals``."""
        if self.manifest.residuals != residuals:
            return frozenset()
        pairs = enumerate(zip(self.manifest.versions, versions, strict=True))
        return frozenset(fragment for fragment, (theirs, ours) in pairs if theirs == ours)


@dataclass(frozen=True, slots=True)
class CheckpointContent:
    """What to write: everything as it was at one moment."""

    job: str
    layout: Layout
    epoch: int
    image: StoreImage
    engine: dict[str, Any]
    outer: OuterChoice
    reason: str
    bytes_by_region: tuple[RegionBytes, ...] = ()
    data: dict[str, Any] = field(default_factory=lambda: Dealer().state())
    model: str = ""
    """What the job says of its model; empty: a restart compares the checkpoint with the model itself."""
    base: SavedCheckpoint | None = None
    """The last one of the same store: what is in ``image`` of the fragments that it has may change meanwhile."""


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint(SavedCheckpoint):
    """A checkpoint that was read and found complete."""

    fragments: tuple[FragmentTensors, ...]

    @property
    def parameters(self) -> tuple[torch.Tensor, ...]:
        """f32, shape (numel,), by fragment."""
        return tuple(one.parameters for one in self.fragments)


def write_checkpoint(directory: Path, content: CheckpointContent) -> SavedCheckpoint:
    """Write a checkpoint, with the files of its base for fragments that have not changed.

    Raises:
        OSError: it could not be written in full; nothing of it is left, and earlier ones are unchanged.
    """
    name = f"{last_number(directory) + 1:06d}"
    aside = directory / f".{name}.part"
    try:
        clear_leftovers(directory)
        aside.mkdir(parents=True)
        manifest = _manifest(content, _write_fragments(directory, aside, content))
        text = _canonical(manifest.model_dump(mode="json"))
        path = aside / "manifest.json"
        path.write_text(f'{{"sha256":"{sha256_bytes(text.encode())}","manifest":{text}}}\n')
        fsync(path, aside)
        aside.rename(directory / name)
        fsync(directory)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return SavedCheckpoint(name, manifest)


def _write_fragments(directory: Path, aside: Path, content: CheckpointContent) -> dict[str, _File]:
    image, base = content.image, content.base
    same = base.same(image.versions, residuals=bool(image.residuals)) if base else frozenset[int]()
    files: dict[str, _File] = {}
    for index in range(len(image.fragments)):
        file = file_of(index)
        if base is not None and index in same:
            files[file] = base.manifest.files[file]
            linked = share_file(directory / base.name / file, aside / file)
            if not linked and sha256_file(aside / file) != files[file].sha256:
                raise UnusableFileError(f"{directory / base.name / file}: its digest does not match")
        else:
            residual = image.residuals[index] if image.residuals else None
            mean = image.means[index] if image.means else None
            tensors = FragmentTensors(image.fragments[index].parameters, image.momentum[index], residual, mean)
            digest = write_fragment_file(aside / file, tensors)
            files[file] = _File(size_bytes=(aside / file).stat().st_size, sha256=digest)
    return files


def load_checkpoint(directory: Path, name: str, layout: Layout, job: str) -> LoadedCheckpoint:
    """Read one checkpoint and check everything.

    Raises:
        UnusableFileError: it is broken; the text says which file and how.
        SyncerError: it is complete, but of another job or another model, or a later version of diloco wrote it.
    """
    folder = directory / name
    manifest = _read_manifest(folder / "manifest.json")
    if manifest.job != job:
        raise SyncerError(f"{folder}: the checkpoint is of job {manifest.job!r}, not of {job!r}; use another directory")
    match = layout.match(manifest.layout)
    if match is Match.OTHER_CUT:
        theirs, ours = _describe(layout_from_table(manifest.tensors)), _describe(layout)
        raise OtherModelError(
            f"{folder}: a checkpoint of another model ({theirs}) than the job's ({ours});"
            " use another directory, or the model and sync.fragments it was made with"
        )
    if match is Match.OTHER_CONSTANTS:
        raise SyncerError(
            f"{folder}: a checkpoint of a model with other frozen parameters or buffers than the job's;"
            " use another directory, or the base model it was made with"
        )
    names = [file_of(fragment.index) for fragment in layout.fragments]
    if sorted(manifest.files) != names:
        raise UnusableFileError(f"{folder}/manifest.json: it does not name the files of {len(names)} fragments")
    found, averaged = [], manifest.averaged
    for fragment, file in zip(layout.fragments, names, strict=True):
        tensors = read_fragment_file(folder / file, manifest.files[file].sha256, fragment.numel)
        if (tensors.residual is not None) != manifest.residuals:
            raise UnusableFileError(f"{folder / file}: it does not hold what the manifest says of residuals")
        if tensors.mean is None and fragment.index in averaged:
            raise UnusableFileError(f"{folder / file}: it lacks the mean of its last versions")
        found.append(tensors)
    return LoadedCheckpoint(name, manifest, tuple(found))


def read_checkpoint_manifest(folder: Path) -> CheckpointManifest:
    """The manifest of the checkpoint in ``folder``; its files are not read.

    Raises:
        UnusableFileError: it is missing or damaged.
        SyncerError: a later version of diloco wrote it.
    """
    return _read_manifest(folder / "manifest.json")


def layout_without_model(directory: Path, model: str) -> Layout | None:
    """The layout of the newest readable checkpoint if it is of this ``model`` (`model_identity`); None if it is not."""
    for name in reversed(checkpoint_names(directory)):
        try:
            manifest = read_checkpoint_manifest(directory / name)
        except UnusableFileError:
            continue
        layout = layout_from_table(manifest.tensors)
        return replace(layout, constants=manifest.layout.partition(".")[2]) if manifest.model == model else None
    return None


def newest_checkpoint(
    directory: Path, layout: Layout, job: str, check: Callable[[Path, CheckpointManifest], None]
) -> tuple[LoadedCheckpoint | None, dict[str, str]]:
    """The newest complete checkpoint, and what is wrong with newer ones, by name.

    ``check`` gets a checkpoint's folder and manifest, and raises ``UnusableFileError`` if it cannot be resumed from.

    Raises:
        SyncerError: it is of another job or model, or of a later version of diloco.
    """
    broken: dict[str, str] = {}
    for name in reversed(checkpoint_names(directory)):
        try:
            loaded = load_checkpoint(directory, name, layout, job)
            check(directory / name, loaded.manifest)
        except UnusableFileError as error:
            broken[name] = str(error)
        else:
            return loaded, broken
    return None, broken


def _manifest(content: CheckpointContent, files: dict[str, _File]) -> CheckpointManifest:
    return CheckpointManifest(
        format=FORMAT,
        job=content.job,
        layout=content.layout.digest,
        tensors=content.layout.table,
        model=content.model,
        epoch=content.epoch,
        versions=content.image.versions,
        residuals=bool(content.image.residuals),
        engine=content.engine,
        usual=content.image.usual,
        outer=content.outer,
        bytes_by_region=content.bytes_by_region,
        data=content.data,
        written_at=time.time(),
        reason=content.reason,
        files=files,
    )


def _read_manifest(path: Path) -> CheckpointManifest:
    plain = read_json(path)
    if not isinstance(plain, dict) or plain.keys() != {"sha256", "manifest"} or not isinstance(plain["manifest"], dict):
        raise UnusableFileError(f"{path}: not a checkpoint's manifest")
    if plain["sha256"] != sha256_bytes(_canonical(plain["manifest"]).encode()):
        raise UnusableFileError(f"{path}: its digest does not match: it was changed or damaged")
    form = plain["manifest"].get("format")
    if form != FORMAT:
        # It is not damaged, so it is not set aside: the version that wrote it can resume from it.
        raise SyncerError(
            f"{path}: checkpoint format is {form!r}; this version of diloco reads {FORMAT}; use the version that wrote"
            " it or a later one"
        )
    try:
        manifest = CheckpointManifest.model_validate(plain["manifest"])
        cut = layout_from_table(manifest.tensors).cut
    except ValidationError as error:
        raise UnusableFileError(f"{path}: not a checkpoint's manifest ({error.error_count()} problems)") from None
    except LayoutError as error:
        raise UnusableFileError(f"{path}: its tensors are of no model ({error})") from None
    if cut != manifest.layout.partition(".")[0]:
        raise UnusableFileError(f"{path}: its layout is not that of its tensors")
    usual = zip(manifest.usual, manifest.tensors, strict=False)
    if len(manifest.usual) not in (0, len(manifest.tensors)) or not all(one.is_of(len(of)) for one, of in usual):
        raise UnusableFileError(f"{path}: its usual sizes are not those of its tensors")
    return manifest


def _describe(layout: Layout) -> str:
    return f"{layout.numel} parameters in {len(layout.fragments)} fragments, layout {layout.digest[:12]}"


def _canonical(manifest: Any) -> str:
    """The text whose digest the file has."""
    return json.dumps(manifest, sort_keys=True, separators=(",", ":"))
