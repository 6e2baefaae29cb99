"""Checkpoints of the syncer: written completely or not at all, verified when read, the newest valid one used.

A checkpoint is a folder ``NNNNNN`` with the parameters, the momentum and, if updates to learners are encoded, the
residuals (safetensors, one flat f32 tensor per fragment), and a manifest with the engine's snapshot and a digest of
every file and of itself. It is written to a temporary folder, synced and renamed, so a crash at any moment leaves the
previous one intact.
"""

import json
import re
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from diloco.core.dealing.dealer import Dealer
from diloco.core.fragments import FragmentTable, Layout, LayoutError, Match, layout_from_table
from diloco.core.merge.member_sizes import UsualSize
from diloco.model.tensor_file import TensorType, opened, write_tensor_file
from diloco.runtime.files import UnusableFileError, fsync, read_json, sha256_bytes
from diloco.spec.outer_choice import OuterChoice
from diloco.spec.status.syncer import RegionBytes
from diloco.syncer.errors import SyncerError
from diloco.syncer.store import StoreImage, check_values

FORMAT = 1
_NAME = re.compile(r"^\d{6,}$")
_BROKEN = ".broken"
_PARAMETERS = "parameters.safetensors"
_MOMENTUM = "momentum.safetensors"
_RESIDUALS = "residuals.safetensors"


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


class OtherModelError(SyncerError):
    """The checkpoint's model is cut into fragments differently from the job's."""


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


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A checkpoint that was read and found complete."""

    name: str
    manifest: CheckpointManifest
    parameters: tuple[torch.Tensor, ...]
    """f32, shape (numel,), by fragment."""
    momentum: tuple[torch.Tensor, ...]
    residuals: tuple[torch.Tensor, ...] = ()
    """Empty if it has none."""


def checkpoint_names(directory: Path) -> list[str]:
    """Names of the checkpoints in a directory, oldest first."""
    if not directory.is_dir():
        return []
    return sorted((path.name for path in directory.iterdir() if _NAME.match(path.name)), key=int)


def has_had_checkpoints(directory: Path) -> bool:
    """Whether there are checkpoints, or broken ones that were set aside."""
    return bool(checkpoint_names(directory) or _set_aside_before(directory))


def write_checkpoint(directory: Path, content: CheckpointContent) -> str:
    """Write a checkpoint and return its name.

    Raises:
        OSError: it could not be written in full; nothing of it is left, and earlier ones are unchanged.
    """
    name = f"{_last_number(directory) + 1:06d}"
    aside = directory / f".{name}.part"
    try:
        _clear_leftovers(directory)
        aside.mkdir(parents=True)
        image = content.image
        files = {_PARAMETERS: [one.parameters for one in image.fragments], _MOMENTUM: image.momentum}
        if image.residuals:
            files[_RESIDUALS] = image.residuals
        written = {name: _write_tensors(aside / name, tensors) for name, tensors in files.items()}
        text = _canonical(_manifest(content, written).model_dump(mode="json"))
        path = aside / "manifest.json"
        path.write_text(f'{{"sha256":"{sha256_bytes(text.encode())}","manifest":{text}}}\n')
        fsync(path, aside)
        aside.rename(directory / name)
        fsync(directory)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return name


def prune_checkpoints(directory: Path, keep: int, protected: frozenset[str]) -> None:
    """Delete all but the newest ``keep`` checkpoints; those in ``protected`` are neither deleted nor counted.

    Raises:
        OSError: one could not be deleted.
    """
    for name in [name for name in checkpoint_names(directory) if name not in protected][:-keep]:
        # Renamed first, so that a partly deleted one is never taken for a checkpoint.
        to_delete = directory / f".{name}.part"
        (directory / name).rename(to_delete)
        shutil.rmtree(to_delete)


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
    if not {_PARAMETERS, _MOMENTUM} <= manifest.files.keys() <= {_PARAMETERS, _MOMENTUM, _RESIDUALS}:
        raise UnusableFileError(f"{folder}/manifest.json: it names the files {sorted(manifest.files)}")
    tensors = {file: tuple(read_tensors(folder / file, one.sha256, layout)) for file, one in manifest.files.items()}
    return LoadedCheckpoint(name, manifest, tensors[_PARAMETERS], tensors[_MOMENTUM], tensors.get(_RESIDUALS, ()))


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


def set_aside(directory: Path, broken: Iterable[str]) -> None:
    """Rename broken checkpoints to ``NNNNNN.broken``, for inspection, and delete those set aside earlier.

    One with a higher number is kept, so that its number is not used again.

    Raises:
        OSError: one could not be renamed.
    """
    names = list(broken)
    highest = max((int(name) for name in names), default=0)
    for number, old in _set_aside_before(directory):
        if number < highest:
            shutil.rmtree(old, ignore_errors=True)
    for name in names:
        (directory / name).rename(directory / f"{name}{_BROKEN}")


def _set_aside_before(directory: Path) -> list[tuple[int, Path]]:
    found = directory.glob(f"*{_BROKEN}") if directory.is_dir() else ()
    return [(int(name), path) for path in found if _NAME.match(name := path.name.removesuffix(_BROKEN))]


def _last_number(directory: Path) -> int:
    """The highest number that a checkpoint here has or had: tapes name checkpoints, so a number must not be reused."""
    aside = [number for number, _ in _set_aside_before(directory)]
    return max([*(int(name) for name in checkpoint_names(directory)), *aside], default=0)


def _manifest(content: CheckpointContent, files: dict[str, _File]) -> CheckpointManifest:
    return CheckpointManifest(
        format=FORMAT,
        job=content.job,
        layout=content.layout.digest,
        tensors=content.layout.table,
        model=content.model,
        epoch=content.epoch,
        versions=tuple(fragment.version for fragment in content.image.fragments),
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


def _write_tensors(path: Path, tensors: Sequence[torch.Tensor]) -> _File:
    digest = write_tensor_file(path, {_tensor_name(index): tensor for index, tensor in enumerate(tensors)})
    return _File(size_bytes=path.stat().st_size, sha256=digest)


def read_tensors(path: Path, digest: str, layout: Layout) -> list[torch.Tensor]:
    """One tensor for each fragment, f32, shape (numel,), from a file with this SHA-256.

    Raises:
        UnusableFileError: it is not such a file, or it has values that nothing can be trained with.
    """
    wanted = {_tensor_name(one.index): TensorType(torch.float32, (one.numel,)) for one in layout.fragments}
    with opened(path) as file:
        if file.tensors != wanted:
            raise UnusableFileError(f"{path}: it does not hold the tensors of the {len(wanted)} fragments")
        found = file.read(dict.fromkeys(wanted, ()), digest)
    tensors = [found[name] for name in wanted]
    if problem := check_values(tensors):
        raise UnusableFileError(f"{path}: {problem}")
    return tensors


def _describe(layout: Layout) -> str:
    return f"{layout.numel} parameters in {len(layout.fragments)} fragments, layout {layout.digest[:12]}"


def _clear_leftovers(directory: Path) -> None:
    for path in directory.glob(".*.part") if directory.is_dir() else ():
        shutil.rmtree(path, ignore_errors=True)


def _tensor_name(fragment: int) -> str:
    return f"fragment.{fragment:05d}"


def _canonical(manifest: Any) -> str:
    """The text whose digest the file has."""
    return json.dumps(manifest, sort_keys=True, separators=(",", ":"))
