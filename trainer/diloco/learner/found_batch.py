"""The batch size of a learner: as the job says, or what fits its memory (`pools[].batchSize: Auto`).

What was found is kept in the learner's directory, so that a restarted process takes the same and starts sooner. It also
says which size is being tried: a process that is killed while it tries one does not try it again.
"""

import logging
from pathlib import Path
from typing import Final, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from diloco.learner.data import batch_size_of
from diloco.learner.options import LearnerOptions
from diloco.learner.training.fitting_batch import GIB, Fitting, Trial, candidates, fitting_batch
from diloco.learner.training.memory import Memory, memory_of
from diloco.runtime.files import UnusableFileError, read_json, write_json_atomically
from diloco.spec.automatic import AUTO

FILE: Final = "batch.json"
_MOST_BYTES: Final = 1 << 16
_NEAR_SHARE: Final = 0.05
"""Of the memory (ours)."""

_log = logging.getLogger(__name__)


class Circumstances(BaseModel):
    """What a batch size was found for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    """Digest of its layout."""
    sequence_length: int
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
    trying: int | None = Field(default=None, ge=1)
    """Sequences of the trial that has begun."""
    found: int | None = Field(default=None, ge=1)


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

    def write(self, *, trying: int | None = None, found: int | None = None) -> None:
        record = Record(found_for=self.circumstances, trying=trying, found=found)
        try:
            write_json_atomically(self.path, record.model_dump())
        except OSError as error:  # a full disk: a restarted process finds it anew
            _log.warning("cannot write %s: %s", self.path, error.strerror or error)


def batch_size(options: LearnerOptions, module: nn.Module, layout_digest: str, device: torch.device) -> int:
    """Sequences in an inner step of this learner. ``module`` is on ``device``, and is left as it was.

    Raises:
        BatchError: the job says Auto, and the memory is too small for any.
        ValueError: the job has no pool of that learner.
    """
    spec = options.job.spec
    most = batch_size_of(spec, options.learner)
    if spec.pool_of(options.learner).batch_size != AUTO:
        return most
    memory = memory_of(device)
    circumstances = Circumstances(
        model=layout_digest,
        sequence_length=spec.training.sequence_length,
        precision=spec.training.precision,
        device=str(device),
        most=most,
        limit_bytes=memory.limit_bytes,
    )
    place = _Place(options.directory / FILE, circumstances)
    before = place.read()
    if before is not None and before.found is not None and before.found <= most:
        _log.info("batchSize Auto: %d of at most %d sequences, as before", before.found, most)
        return before.found
    found = _search(place, Trial(module, spec.training, device), memory, None if before is None else before.trying)
    place.write(found=found.batch_size)
    _log.info(
        "batchSize Auto: %d of at most %d sequences; they need %.3g of %.3g GiB",
        *(found.batch_size, most, found.needed_bytes / GIB, memory.limit_bytes / GIB),
    )
    return found.batch_size


def _search(place: _Place, trial: Trial, memory: Memory, ended_in: int | None) -> Fitting:
    sizes = candidates(place.circumstances.most)
    if ended_in is not None:
        _log.warning("batchSize Auto: a process ended while it tried %d sequences; smaller ones are tried", ended_in)
        sizes = tuple(size for size in sizes if size < ended_in) or sizes[:1]

    def step(size: int) -> None:
        place.write(trying=size)
        trial.step(size)

    try:
        return fitting_batch(sizes, memory, step, trial.reserved_bytes, trial.gradient_bytes)
    finally:
        trial.end()
