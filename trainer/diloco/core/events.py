"""What the engine is told. Plain values, so that a tape of them replays to the same decisions.

Times never stand in an event: the shell passes ``now`` (seconds of its own monotonic or virtual clock) beside it.
A learner is named by its id ``region/pool/index``; ``incarnation`` is the number the engine gave that process when it
joined, and an event of another incarnation than the current one is stale and changes nothing.
"""

from dataclasses import dataclass

from diloco.core.spent import NOTHING_TOLD, TimeSpent


@dataclass(frozen=True, slots=True)
class LearnerJoined:
    """A learner process opened its session."""

    learner: str
    instance: str
    """Random name of the process, made by itself: tells a reconnecting process from a second one with its id."""
    versions: tuple[int, ...]
    """Version it holds of each fragment, from this syncer epoch; empty if it holds none."""
    steps: int
    """Inner steps it has made in its life (from its own checkpoint)."""
    data_position: int
    """Sequences it has taken from its shard."""


@dataclass(frozen=True, slots=True)
class LearnerReady:
    """It has loaded every fragment and begins to train."""

    learner: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class StepReported:
    """It finished inner step ``step``; sent after every step."""

    learner: str
    incarnation: int
    step: int
    tokens: int
    """Tokens of this learner's life, this step's included."""
    step_seconds: float
    """Duration of the step's computation and of whatever slows this learner, without waits for synchronization."""
    blocked_seconds: float
    """Time since the last report in which the inner loop waited for synchronization."""
    loss: float
    data_position: int
    spent: TimeSpent = NOTHING_TOLD
    """Where the time of its process went so far."""


@dataclass(frozen=True, slots=True)
class LearnerAlive:
    """It said something that is not a step: keeps its lease, is no participation."""

    learner: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class FragmentArrived:
    """The whole payload of an outer gradient is here and its checksum holds."""

    learner: str
    incarnation: int
    fragment: int
    version: int
    """The version the asked-for merge makes (base + 1 where the learner is up to date)."""
    attempt: int
    base_version: int
    """Version of the fragment that the learner last received: what the outer gradient is measured from."""
    steps: int
    """c_steps: inner steps since it received the fragment."""
    tokens: int
    """c_tokens: tokens in those steps."""
    payload_bytes: int
    digest: str
    """xxh3-128 of the payload, hexadecimal; the shell finds the payload by (learner, fragment, version, attempt)."""


@dataclass(frozen=True, slots=True)
class FragmentLate:
    """An outer gradient began to come after its round was over: it was refused before it came whole."""

    learner: str
    incarnation: int
    fragment: int
    version: int
    attempt: int


@dataclass(frozen=True, slots=True)
class FragmentDeclined:
    """Asked for a fragment, the learner has nothing to bring (no step since it received it)."""

    learner: str
    incarnation: int
    fragment: int
    version: int
    attempt: int


@dataclass(frozen=True, slots=True)
class FragmentApplied:
    """The learner's inner loop now trains on this version of the fragment."""

    learner: str
    incarnation: int
    fragment: int
    version: int
    step: int = 0
    """Inner step of its life after which it was swapped in; its report may come later. 0: not told."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A member whose outer gradient was too large to be believed, or not finite: it is not in the merge."""

    learner: str
    reason: str


@dataclass(frozen=True, slots=True)
class Merged:
    """A merge that the engine ordered is done and its result is the syncer's current fragment."""

    fragment: int
    version: int
    digest: str
    """xxh3-128 of the new fragment's f32 bytes, hexadecimal."""
    seconds: float
    """How long it took."""
    failed: bool = False
    """The members' outer gradients could not be merged: the version has the values of the one before."""
    left_out: tuple[LeftOut, ...] = ()
    """Members that the merge was made without, by learner."""


@dataclass(frozen=True, slots=True)
class LearnerLeft:
    """The session ended. ``clean``: the learner said it leaves; otherwise its connection broke."""

    learner: str
    incarnation: int
    clean: bool


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer that the engine set is due."""

    name: str


@dataclass(frozen=True, slots=True)
class SnapshotAsked:
    """The shell wants a checkpoint (period, SIGTERM, a user)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A learner evaluated the global model."""

    learner: str
    incarnation: int
    evaluation: int
    """Number of the evaluation, from the order."""
    loss: float
    """Mean cross-entropy in nats a token."""
    exact: bool
    """The model was the one with exactly the ordered versions (always so for the final one)."""


@dataclass(frozen=True, slots=True)
class LearnersPlanned:
    """Pools were scaled while the job runs: from now on these learners are wanted, and no others."""

    learners: tuple[str, ...]


Event = (
    LearnerJoined
    | LearnerReady
    | StepReported
    | LearnerAlive
    | FragmentArrived
    | FragmentLate
    | FragmentDeclined
    | FragmentApplied
    | Merged
    | LearnerLeft
    | TimerFired
    | SnapshotAsked
    | Evaluated
    | LearnersPlanned
)
