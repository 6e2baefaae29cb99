"""The body of ``/status``: what a person, the live view and the operator are told of a job.

The model is the contract with whoever reads it. It must not know how the figures come about.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict

Phase = Literal["Waiting", "Training", "Evaluating", "Complete", "Failed"]


class _Status(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class LearnerStatus(_Status):
    """One learner."""

    id: str
    """region/pool/index."""
    state: str
    """Absent, Loading, Training, Stalled or GivenUp."""
    incarnation: int
    """Number of its latest admission; 0: never."""
    steps: int
    """Inner steps of its life."""
    tokens: int
    """Tokens of its life."""
    merged_tokens: float
    """Of these, tokens that reached the global model."""
    tokens_per_second: float
    """Over the last half minute."""
    step_seconds: float | None
    """Moving average."""
    blocked_fraction: float
    """Share of the time it was there in which its inner loop waited for synchronization."""
    versions_behind: int
    """Merges, over all fragments, that it has not applied yet."""
    restarts: int
    """Times a new process took its place."""
    loss: float | None
    """Of its latest inner step, in nats a token."""
    last_heard_seconds: float | None
    """Since it last said something; None if it never did."""
    time_seconds: dict[str, float] = {}
    """What became of the time it has been given, by class (``core.time_class``); empty from older syncers."""
    left_out: int = 0
    """Merges made without its outer gradient because that was not to be believed, since the syncer started."""
    left_out_reason: str = ""
    """Of the latest of them."""
    left_out_now: str = ""
    """Why it is being left out of merges again and again, in words that stay for as long as it is; empty: it is not, or
    an older syncer does not say."""


class EvaluationStatus(_Status):
    """One evaluation of the global model."""

    tokens: int
    """Merged tokens at that time."""
    loss: float | None
    """Nats a token, on held-out data; None where it was not a number: the model has diverged."""
    seconds: float
    """Since the first learner joined."""
    final: bool
    """Of the exported model."""
    doubted: bool = False
    """It is not to be believed beside what the other learners report, and none of them has confirmed it."""


class CheckpointStatus(_Status):
    """Checkpoints."""

    newest: str
    """Name of the newest one; empty: none yet."""
    age_seconds: float | None
    """Since it was written, by this process; None if it has written none."""
    failures: int
    """Writes that failed in this process's life."""
    problem: str
    """Why the latest write failed; empty if it did not."""


class LinkStatus(_Status):
    """How much of a link the exchange of fragments takes, as measured lately."""

    name: str
    """The pool that is behind it, or the one learner whose link differs from its pool's."""
    learners: int
    """Behind it."""
    up: float
    """Share of what it can carry, if fragments go as they are due; above 1: more than it can."""
    down: float


class LinksStatus(_Status):
    """Whether overlap, interval and links go together, as measured; what is told has stood for a while."""

    kind: str
    """Fits, LinkTooThin, MergesTooSlow, RoundTooLong, StalenessBoundTooLow or OverlapTooShort."""
    reason: str
    """In words that stay the same for as long as the kind does."""
    since_seconds: float
    """Since this is told."""
    remedies: tuple[str, ...]
    """What would do, each alone."""
    used: tuple[LinkStatus, ...]
    """By link; links that limit nothing have a share near 0."""


class SyncerStatus(_Status):
    """The job, seen from its syncer."""

    job: str
    epoch: int
    """Life of the syncer process, counted from 1."""
    phase: Phase
    phase_reason: str
    syncer_step: int
    """Merges done."""
    merged_tokens: float
    budget_tokens: int
    tokens_per_second: float
    """Merged tokens, over the last half minute."""
    seconds_left: float | None
    """At that rate; None while there is none."""
    train_loss: float | None
    """Mean of the latest losses of the learners that train."""
    eval_loss: float | None
    """Of the latest evaluation that is to be believed."""
    evaluations: tuple[EvaluationStatus, ...]
    goodput: float | None
    """Learner-seconds of inner steps whose tokens were merged over learner-seconds the job was given."""
    bytes_pushed: int
    """Received from learners over the job's life."""
    bytes_pulled: int
    """Sent to learners over the job's life."""
    elapsed_seconds: float
    """Since the first learner joined, without the times the syncer was away."""
    rounds_in_flight: int
    checkpoint: CheckpointStatus
    tape_problem: str
    """Why the tape is incomplete or waits for the disk; empty if it does not."""
    learners: tuple[LearnerStatus, ...]
    """Those that are planned or in."""
    inner_steps: int = 0
    """Of all learners there ever were, those that a scaled pool no longer has included."""
    trained_tokens: int = 0
    """In these steps."""
    time_seconds: dict[str, float] = {}
    """What became of the learner-seconds the job was given, by class; empty from older syncers."""
    model_exported: bool = False
    """The job is over and its model is on the syncer's disk as ``model.safetensors``."""
    quorum: int = 0
    """Learners that must have brought a fragment before it is merged, at present; 0: an older syncer does not say."""
    quorum_wanted: int = 0
    """``sync.quorum``: more than that where learners were given up and so many are not left."""
    links: LinksStatus | None = None
    """None until the links of a training job have been measured for a while."""
