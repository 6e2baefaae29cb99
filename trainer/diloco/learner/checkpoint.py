"""A learner's own checkpoint: what it cannot get back from the syncer after a restart.

A checkpoint is a folder, ``NNNNNNNN/``: ``state.safetensors`` (optimizer moments, error-feedback residuals, what a loop
of the user's own saves) and ``manifest.json`` (identity, counters, SHA-256 of the tensors and of itself). It is written
to a temporary folder, synced and renamed, so a crash leaves the previous one intact. The newest complete checkpoint is
used, and two are kept. The model is not in it. Nothing is unpickled.

In a learner of several processes the others write their parts of the moments to ``parts/NNNNNNNN/``, each on its node.
The folder gets its name after that, and the manifest has the SHA-256 of every part.

The directory may outlive the job (``pools[].storage``). What cannot be used here is ignored with one line, and does not
keep the learner from training. The syncer says which training this is, so whether a checkpoint is of another one turns
out only after it was read (`diloco.learner.resume`).
"""

import json
import logging
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from diloco.core.fragments import Match, match_digests
from diloco.learner.checkpoint_parts import TENSORS_FILE, Others, PartError, remove_parts, write_part
from diloco.learner.exchange.residuals import Residual
from diloco.learner.options import is_other_training
from diloco.learner.training.fragment_trainer import TrainerState
from diloco.model.entrypoint import one_line
from diloco.runtime.files import (
    UnusableFileError,
    fsync,
    read_json,
    sha256_bytes,
    write_json_atomically,
)
from diloco.runtime.output import escaped

_KEPT: Final = 2
_FORMAT: Final = 1
_NAME: Final = re.compile(r"\d{8}|[1-9]\d{8,17}")
CHECKPOINTS_FOLDER: Final = "checkpoints"
"""Of a learner's directory."""
_MANIFEST: Final = "manifest.json"
_MANIFEST_BYTES: Final = 1 << 20
_MOST_PARTS: Final = 1 << 12
_DIGEST: Final = re.compile(r"[0-9a-f]{64}|")
_COUNTERS: Final = ("optimizer_steps", "steps", "tokens", "data_position")
_log = logging.getLogger(__name__)


class CheckpointWriteError(RuntimeError):
    """A checkpoint could not be written (full disk, no permission). Earlier ones are unchanged: training can go on."""


class _ForeignError(ValueError):
    """The checkpoint belongs to another inner optimizer or model; the text names both."""


class _OthersError(_ForeignError):
    """The checkpoint belongs to another job or learner; the text names both."""


class _DamagedError(ValueError):
    """The checkpoint is incomplete or damaged."""


@dataclass(frozen=True, slots=True)
class CheckpointIdentity:
    """What a checkpoint belongs to."""

    job: str
    learner: str
    layout_digest: str
    optimizer: str
    """What the moments belong to."""


@dataclass(frozen=True, slots=True)
class LearnerCheckpoint:
    """What a checkpoint stores."""

    state: TrainerState
    residuals: Mapping[int, Residual]
    """Error feedback by fragment: what the encoding has lost so far."""
    training: str = ""
    """Id of the training that it is of, as the syncer has said; empty: it has said none."""

    @property
    def size_bytes(self) -> int:
        """Bytes of its tensors."""
        residuals = (one.values for one in self.residuals.values())
        return sum(tensor.nbytes for tensor in (*self.state.tensors.values(), *residuals))


class CheckpointStore:
    """The checkpoints of one identity in a directory. For one thread at a time."""

    def __init__(self, directory: Path, identity: CheckpointIdentity, others: Others | None = None) -> None:
        """``others``: the other processes of this learner; None: there are none, and never were."""
        self._directory = directory
        self._identity = identity
        self._others = others or Others({})
        self._damaged: set[Path] = set()

    def save(self, checkpoint: LearnerCheckpoint) -> Path:
        """Write a checkpoint, wait until it is on disk, and remove all but the newest two.

        Those of this learner that are of another model, inner optimizer or training are of no use any more. They are
        removed first, since a small volume may have no room for both. Those of other jobs and learners stay.

        Raises:
            CheckpointWriteError: it could not be written; one line.
        """
        aside: Path | None = None

        def begin() -> list[int]:
            nonlocal aside
            self._directory.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()
            self._remove_useless(checkpoint.training)
            numbers = [int(path.name) for path in self._checkpoints()]
            remove_parts(self._directory, numbers)
            aside = Path(tempfile.mkdtemp(prefix=".part-", dir=self._directory))
            return [max(numbers, default=0) + 1, *numbers]

        def write() -> str:
            assert aside is not None, "it has begun"
            tensors = checkpoint.state.tensors
            residuals = {fragment: one.values for fragment, one in checkpoint.residuals.items()}
            return write_part(aside / TENSORS_FILE, tensors, residuals, self._others.places)

        try:
            number, digests = self._others.written(begin, write)
            assert aside is not None, "it has begun"
            place = self._directory / f"{number:08d}"
            self._write_manifest(aside, checkpoint, digests)
            aside.replace(place)
            fsync(self._directory)
            self._prune(place)
        except (OSError, ValueError) as error:
            raise CheckpointWriteError(
                f"cannot write the checkpoint in {self._directory} ({one_line(error)})"
            ) from error
        finally:
            if aside is not None:
                shutil.rmtree(aside, ignore_errors=True)
        return place

    def load(self) -> LearnerCheckpoint | None:
        """The newest complete checkpoint of this identity; None if there is none.

        Each damaged one that is skipped is logged as a warning, and so is the newest one of another identity.
        """
        told = False
        try:
            found = sorted(self._checkpoints(), key=lambda path: int(path.name), reverse=True)
        except OSError as error:
            _log.warning("ignoring the checkpoints in %s: %s", self._directory, one_line(error))
            return None
        for path in found:
            try:
                return self._read(path)
            except _ForeignError as error:
                _log.log(logging.DEBUG if told else logging.WARNING, "ignoring checkpoint %s: %s", path, error)
                told = True
                if not isinstance(error, _OthersError):
                    return None  # what this learner has written before is older still
            except (ValueError, OSError) as error:
                self._damaged.add(path)
                told_plainly = isinstance(error, PartError | _DamagedError | UnusableFileError)
                _log.warning("ignoring checkpoint %s: %s", path, error if told_plainly else one_line(error))
        return None

    def _checkpoints(self) -> list[Path]:
        if not self._directory.is_dir():
            return []
        return [path for path in self._directory.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]

    def _write_manifest(self, aside: Path, checkpoint: LearnerCheckpoint, digests: list[str]) -> None:
        manifest = {
            "format": _FORMAT,
            **asdict(self._identity),
            **{name: getattr(checkpoint.state, name) for name in _COUNTERS},
            "training": checkpoint.training,
            "residual_versions": {f"{fragment}": one.version for fragment, one in checkpoint.residuals.items()},
            "sha256": digests[0],
        }
        if len(digests) > 1:
            manifest["parts"] = digests[1:]
        manifest["digest"] = _digest(manifest)
        write_json_atomically(aside / _MANIFEST, manifest)

    def _read(self, path: Path) -> LearnerCheckpoint:
        manifest = read_json(path / _MANIFEST, limit_bytes=_MANIFEST_BYTES)
        counters = _counters(manifest)
        self._check_identity(_identity(manifest))
        digests = _digests(manifest)
        found = self._others.read(self._directory, int(path.name), digests, counters["optimizer_steps"])
        state = TrainerState(found.optimizer, **counters)
        return LearnerCheckpoint(state, _residuals(manifest, found.residuals), _training(manifest))

    def _check_identity(self, found: CheckpointIdentity) -> None:
        for what, word in (("job", "job"), ("learner", "learner"), ("optimizer", "inner optimizer")):
            theirs, ours = getattr(found, what), getattr(self._identity, what)
            if theirs != ours:
                error = _ForeignError if what == "optimizer" else _OthersError
                raise error(f"it is of {word} {escaped(theirs)}, this is {word} {ours}")
        match match_digests(self._identity.layout_digest, found.layout_digest):
            case Match.OTHER_CUT:
                raise _ForeignError(
                    f"it is of another model (layout {escaped(found.layout_digest[:12])}, this one is "
                    f"{self._identity.layout_digest[:12]})"
                )
            case Match.OTHER_CONSTANTS:
                raise _ForeignError("it is of a model with other frozen parameters or buffers")
            case Match.SAME:
                pass

    def _remove_leftovers(self) -> None:
        """Remove what a crash during writing has left."""
        for path in self._directory.glob(".part-*"):
            shutil.rmtree(path, ignore_errors=True)

    def _remove_useless(self, training: str) -> None:
        """Remove what this learner has written and cannot use in ``training``."""
        for path in self._checkpoints():
            manifest = _whole_manifest(path)
            if manifest is None or not self._is_own(manifest):
                continue
            try:
                self._check_identity(_identity(manifest))
            except _ForeignError:
                useless = True
            else:
                useless = is_other_training(_training(manifest), training)
            if useless:
                shutil.rmtree(path, ignore_errors=True)

    def _is_own(self, manifest: dict[str, Any]) -> bool:
        """Whether this learner of this job has written it, with whichever model."""
        found = _identity(manifest)
        return (found.job, found.learner) == (self._identity.job, self._identity.learner)

    def _prune(self, newest: Path) -> None:
        """Keep the newest and one more, a damaged one only if there is no other; and those of others."""
        others = [
            path
            for path in self._checkpoints()
            if path != newest and ((manifest := _whole_manifest(path)) is None or self._is_own(manifest))
        ]
        others.sort(key=lambda path: (path not in self._damaged, int(path.name)), reverse=True)
        for path in others[_KEPT - 1 :]:
            shutil.rmtree(path, ignore_errors=True)


def _identity(manifest: dict[str, Any]) -> CheckpointIdentity:
    return CheckpointIdentity(*(str(manifest.get(one.name)) for one in fields(CheckpointIdentity)))


def _training(manifest: dict[str, Any]) -> str:
    return str(manifest.get("training"))


def _residuals(manifest: dict[str, Any], values: Mapping[int, Tensor]) -> dict[int, Residual]:
    versions = manifest.get("residual_versions", {})
    if not isinstance(versions, dict) or not all(type(one) is int for one in versions.values()):
        raise _DamagedError(f"{_MANIFEST} has no usable versions of its residuals")
    return {one: Residual(versions[f"{one}"], tensor) for one, tensor in values.items() if f"{one}" in versions}


def _digests(manifest: dict[str, Any]) -> list[str]:
    """Of all parts."""
    found = manifest.get("parts", [])
    digests = [manifest.get("sha256"), *(found if isinstance(found, list) else [None])]
    usable = [one for one in digests if isinstance(one, str) and _DIGEST.fullmatch(one)]
    if len(usable) != len(digests) or len(digests) > _MOST_PARTS:
        raise _DamagedError(f"{_MANIFEST} has no usable digests")
    return usable


def _whole_manifest(path: Path) -> dict[str, Any] | None:
    """The manifest of a checkpoint; None: it cannot be read, or is not what was written."""
    try:
        manifest = read_json(path / _MANIFEST, limit_bytes=_MANIFEST_BYTES)
        _counters(manifest)
    except (_DamagedError, UnusableFileError, OSError):
        return None
    return dict(manifest)


def _digest(manifest: dict[str, Any]) -> str:
    rest = {name: value for name, value in manifest.items() if name != "digest"}
    return sha256_bytes(json.dumps(rest, sort_keys=True).encode())


def _counters(manifest: Any) -> dict[str, int]:
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != _FORMAT:
        text = f"{_MANIFEST}: format is {escaped(str(found))}; this version of diloco reads {_FORMAT}"
        raise _DamagedError(f"{text}; use the version that wrote it")
    counters = {name: manifest.get(name) for name in _COUNTERS}
    if manifest.get("digest") != _digest(manifest):
        raise _DamagedError(f"{_MANIFEST} is not what was written")
    usable = {name: value for name, value in counters.items() if isinstance(value, int) and 0 <= value < 1 << 63}
    if usable.keys() != counters.keys():
        raise _DamagedError(f"{_MANIFEST} has no usable counters")
    return usable
