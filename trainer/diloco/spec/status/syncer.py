"""The body of the syncer's ``/status``, a public contract: the names of phases and states, and the model.

The engine fills in what it knows (`EngineStatus`), the syncer adds what it measures and stores. The live view, the
command line and users read it with the same model. The operator reads it with a model of its own
(``diloco_operator.decide.observed``), which takes fewer fields and has a default for nearly all of them, because
trainers of other versions answer it. A test compares the two.
"""

from pathlib import Path
from typing import Final

from pydantic import Field, ValidationError

from diloco.runtime.files import UnusableFileError, read_json
from diloco.spec.status.engine import EngineStatus, StatusPart

FILE: Final = "status.json"
"""In the syncer's directory: the status at the latest row of the curves, and at the process's end."""


class CheckpointStatus(StatusPart):
    """Checkpoints."""

    newest: str = ""
    """Name of the newest one; empty: none yet."""
    age_seconds: float | None = None
    """Time since it was written; of one that an earlier process wrote, since this one began. None: there is none."""
    failures: int = 0
    """Writes that failed in this process."""
    problem: str = ""
    """Why the latest write failed; empty if it did not."""


class BackupStatus(StatusPart):
    """Backups (``syncer.backup``)."""

    newest: str = ""
    """Name of the newest one that this process has completed; empty: none yet."""
    step: int = 0
    """Merges in it."""
    age_seconds: float | None = None
    """Time since then; None: none yet."""
    uploaded_bytes: int = 0
    """By this process, failed uploads included."""
    uploading: bool = False
    failures: int = 0
    """Uploads that failed in this process."""
    problem: str = ""
    """Why the latest upload failed or is stuck; empty if neither."""


class TrackerStatus(StatusPart):
    """One of ``training.tracking``."""

    name: str
    """tensorboard, wandb or mlflow."""
    tokens: int
    """Merged tokens up to which it has the curves."""
    problem: str = ""
    """Why it takes none now; empty if it does."""


class LinkStatus(StatusPart):
    """How much of a link's capacity the exchange of fragments takes, as measured recently."""

    name: str
    """The pool behind it, or the one learner whose link differs from its pool's."""
    learners: int
    """Number of learners behind it."""
    up: float
    """Share of its capacity used if fragments are sent as they are due; above 1: more than it can carry."""
    down: float


class MeasuredLinkStatus(StatusPart):
    """What was measured of the link between a region and the syncer since the syncer started."""

    region: str
    up_bytes_per_second: float | None = None
    """Outer gradients of all its learners, while any are on their way; a link that was never full carries more. None:
    nothing was measured."""


class LinksStatus(StatusPart):
    """Whether overlap, interval and links fit together, as measured; reported only once it has lasted a while."""

    kind: str
    """Fits, LinkTooThin, MergesTooSlow, RoundTooLong, StalenessBoundTooLow or OverlapTooShort."""
    reason: str
    """Stays the same for as long as the kind does."""
    since_seconds: float
    """How long this has been reported."""
    remedies: tuple[str, ...]
    """Changes that would help, each on its own."""
    used: tuple[LinkStatus, ...]
    """By link; links that limit nothing have a share near 0."""


class BytesByKind(StatusPart):
    """Bytes in one direction, without what TLS, HTTP/2 and TCP add."""

    bulk: int = Field(default=0, ge=0)
    """Fragments: their parts, each counted once."""
    control: int = Field(default=0, ge=0)
    """Sessions, requests, receipts, headers and acknowledgements."""
    again: int = Field(default=0, ge=0)
    """Parts that had passed before, and all of a transfer without parts that broke off."""

    @property
    def total(self) -> int:
        """All kinds together."""
        return self.bulk + self.control + self.again


class RegionBytes(StatusPart):
    """Bytes between the learners of a region and the syncer, over the whole job."""

    region: str
    up: BytesByKind = BytesByKind()
    """Learners to syncer."""
    down: BytesByKind = BytesByKind()


class EpochStatus(StatusPart):
    """Sequences of an epoch of the data, or of several."""

    first: int
    last: int
    dealt: int
    merged: int
    """In an outer gradient of at least one fragment that was merged."""
    lost: int
    """Dealt, and never to be merged."""
    waiting: int
    """A learner has them, and may still push them."""


class DataStatus(StatusPart):
    """What became of the data's sequences."""

    sequences: int = 0
    """In an epoch; 0: no learner has said yet."""
    twice: int = 0
    """Merged from the outer gradients of two learners."""
    skipped: int = 0
    """Counted as merged, but their steps were skipped: the loss was not finite. Of the fragment with most of them."""
    epochs: tuple[EpochStatus, ...] = ()


class StoredStatus(StatusPart):
    """What the syncer has on disk or measures, beside the engine's view."""

    parameters: int = 0
    """Of the model."""
    checkpoint: CheckpointStatus = CheckpointStatus()
    tape_problem: str = ""
    """Why the tape is incomplete or waits for the disk; empty if neither."""
    model_exported: bool = False
    """The job is over and its model is on the syncer's disk as ``model.safetensors``. With backups the syncer says so
    once the model is uploaded too, or after ten minutes of trying."""
    links: LinksStatus | None = None
    """None until the links of a training job have been measured for a while."""
    measured_links: tuple[MeasuredLinkStatus, ...] = ()
    """By region, of those with learners."""
    bytes_by_region: tuple[RegionBytes, ...] = ()
    """By region, in the order of the manifest."""
    backup: BackupStatus | None = None
    """None: there are no backups."""
    outer_optimizer: str = ""
    """Learning rate and momentum of the outer optimizer, and why these."""
    computing: str = ""
    """What learners with a session, or those that had one last, compute in and on, in words; with how many of them if
    they differ. Empty: not known."""
    data: DataStatus = DataStatus()
    trackers: tuple[TrackerStatus, ...] = ()
    """In the order of the manifest."""


class SyncerStatus(EngineStatus, StoredStatus):
    """The status of a job, as its syncer sees it."""

    job: str
    epoch: int
    """Number of the syncer process, counted from 1."""
    version: str = ""
    """Of the syncer's program, with its commit if that is known."""
    tokens_per_second: float
    """Merged tokens, over the last half minute."""
    seconds_left: float | None = None
    """Time to the end at that rate; None in the first half minute of merging, and while the rate is 0."""


def read_status(path: Path) -> SyncerStatus:
    """The status that a syncer has left in a file.

    Raises:
        UnusableFileError: there is none, it cannot be read, or it is not a status.
    """
    try:
        return SyncerStatus.model_validate(read_json(path))
    except ValidationError as error:
        raise UnusableFileError(f"{path}: is not a status of a syncer of this version") from error
