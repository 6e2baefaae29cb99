"""The batch size of a learner: as the job says, or what fits its memory (`pools[].batchSize: Auto`).

What was found is kept in the learner's directory, so that a restarted process takes the same and starts sooner. A size
is on trial until the learner has written two checkpoints with it, as memory is fullest then. If two processes in a row
end without a word while the same size is on trial, smaller ones are tried: one may have been killed for another reason.
"""

import logging
from pathlib import Path
from typing import Final, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from diloco.learner.data.opening import batch_size_of
from diloco.learner.data.task import JobTask
from diloco.learner.options import LearnerOptions
from diloco.learner.training.devices.device import computes_in_bf16
from diloco.learner.training.devices.fitting_batch import GIB, BatchError, Fitting, Trial, candidates, fitting_batch
from diloco.learner.training.devices.memory import Memory, memory_of
from diloco.runtime.files import UnusableFileError, read_json, write_json_atomically
from diloco.spec.automatic import AUTO
from diloco.spec.training import BATCH_LIMIT

FILE: Final = "batch.json"
_MOST_BYTES: Final = 1 << 16
_ENDS: Final = 2
_PROOF: Final = 2
_NEAR_SHARE: Final = 0.05
"""Of the memory (ours)."""

_log = logging.getLogger(__name__)


class Circumstances(BaseModel):
    """What a batch size was found for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    """Digest of its layout."""
    sequence_length: int
    micro_batch_size: int | None
    activation_checkpointing: str
    precision: str
    device: str
    most: int
    """Sequences."""
    limit_bytes: int

    def same_as(self, other: "Circumstances") -> bool:
        """Whether what was found holds. How much of a shared device is free differs a little from start to start."""
        near = abs(self.limit_bytes - other.limit_bytes) <= _NEAR_SHARE * other.limit_bytes
        return near and self.model_copy(update={"limit_bytes": other.limit_bytes}) == other


class Record(BaseModel):
    """The file's content."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    found_for: Circumstances
    trying: int | None = Field(default=None, ge=1, le=BATCH_LIMIT)
    """Sequences that are on trial."""
    ended: int = Field(default=0, ge=0)
    """Processes that have ended without a word in this trial, if the one that wrote this has."""
    found: int | None = Field(default=None, ge=1, le=BATCH_LIMIT)


class _Place(NamedTuple):
    path: Path
    circumstances: Circumstances

    def read(self) -> Record | None:
        """What an earlier process left, if it was under the same circumstances."""
        if not self.path.exists():
            return None
        try:
            record = Record.model_validate(read_json(self.path, limit_bytes=_MOST_BYTES))
        except (UnusableFileError, ValidationError):
            _log.warning("ignoring %s: it is damaged; the batch size is found anew", self.path)
            return None
        return record if record.found_for.same_as(self.circumstances) else None

    def write(self, *, trying: int | None = None, ended: int = 0, found: int | None = None) -> None:
        record = Record(found_for=self.circumstances, trying=trying, ended=ended, found=found)
        try:
            write_json_atomically(self.path, record.model_dump())
        except OSError as error:  # a full disk: a restarted process finds it anew
            _log.warning("cannot write %s: %s", self.path, error.strerror or error)


class FoundBatch:
    """A batch size, and what becomes of it."""

    def __init__(self, size: int, place: _Place | None = None) -> None:
        """``place``: where it is noted, while it is on trial."""
        self.size = size
        self._place = place
        self._checkpoints = 0

    def checkpoint_begun(self) -> None:
        """Note that the learner has copied what a checkpoint holds, and is alive."""
        self._checkpoints += 1
        if self._place is not None and self._checkpoints == _PROOF:
            self._place.write(found=self.size)
            self._place = None

    def ended_well(self) -> None:
        """Note that the process ends as it should, whatever becomes of the size."""
        if self._place is not None:
            self._place.write(trying=self.size, found=self.size)


def found_batch(
    options: LearnerOptions, module: nn.Module, task: JobTask, layout_digest: str, device: torch.device
) -> FoundBatch:
    """Sequences in an inner step of this learner. ``module`` is on ``device``, and is left as it was.

    Raises:
        BatchError: the job says Auto, and the memory is too small for any, or cannot be measured here.
        ValueError: the job has no pool of that learner.
    """
    spec = options.job.spec
    if spec.pool_of(options.learner).batch_size != AUTO:
        return FoundBatch(batch_size_of(spec, options.learner))
    try:
        return _found(options, module, task, layout_digest, device)
    except OSError as error:
        raise BatchError(
            f"regions[].pools[].batchSize: Auto cannot measure the memory of {device} ({error}); use a number"
        ) from error


def _found(
    options: LearnerOptions, module: nn.Module, task: JobTask, layout_digest: str, device: torch.device
) -> FoundBatch:
    spec, memory = options.job.spec, memory_of(device)
    most = batch_size_of(spec, options.learner)
    circumstances = Circumstances(
        model=layout_digest,
        sequence_length=spec.training.sequence_length,
        micro_batch_size=spec.training.micro_batch_size,
        activation_checkpointing=spec.training.activation_checkpointing,
        precision="BF16" if computes_in_bf16(spec.training.precision, device) else "F32",
        device=str(device),
        most=most,
        limit_bytes=memory.limit_bytes,
    )
    place = _Place(options.directory / FILE, circumstances)
    before = place.read() or Record(found_for=circumstances)
    if before.found is not None and before.found <= most and (before.trying is None or before.ended < _ENDS - 1):
        _log.info("batchSize Auto: %d of at most %d sequences, as before", before.found, most)
        if before.trying is None:
            return FoundBatch(before.found)
        place.write(trying=before.found, ended=before.ended + 1, found=before.found)
        return FoundBatch(before.found, place)
    trial = Trial(module, task, spec.training, device, feedback=spec.sync.keeps_residuals)
    found = _search(place, trial, memory, before)
    size = found.batch_size
    place.write(trying=size, ended=before.ended + 1 if size == before.trying else 0, found=size)
    _log.info(
        "batchSize Auto: %d of at most %d sequences; they need %.3g of %.3g GiB",
        *(size, most, found.needed_bytes / GIB, memory.limit_bytes / GIB),
    )
    return FoundBatch(size, place)


def _search(place: _Place, trial: Trial, memory: Memory, before: Record) -> Fitting:
    sizes = candidates(place.circumstances.most)
    if before.trying is not None and before.ended >= _ENDS - 1:
        _log.warning("batchSize Auto: processes ended with %d sequences; smaller ones are tried", before.trying)
        sizes = tuple(size for size in sizes if size < before.trying) or sizes[:1]

    def step(size: int) -> None:
        place.write(trying=size, ended=before.ended + 1 if size == before.trying else 0)
        trial.step(size)

    try:
        return fitting_batch(sizes, memory, step, trial.reserved_bytes, trial.gradient_bytes)
    finally:
        trial.end()
