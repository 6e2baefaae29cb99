"""The engine's events. Plain values, so that a tape of them replays to the same decisions.

Events contain no times: the caller passes ``now`` (seconds of its own monotonic or virtual clock) with each. A learner
is named by its id ``region/pool/index``; ``incarnation`` is the number that the engine gave that process when it
joined. An event of another incarnation than the current one is stale and changes nothing.
"""

from diloco.core.account.time_spent import NO_TIME, TimeSpent
from diloco.core.value import value


@value
class LearnerJoined:
    """A learner process opened its session."""

    learner: str
    instance: str
    """Name that the process gave itself (`process_name`): distinguishes a reconnecting process from a second one with
    its id."""
    versions: tuple[int, ...]
    """Version it holds of each fragment, from this syncer epoch; empty if it holds none."""
    steps: int
    """Inner steps it has made over all its processes (from its own checkpoint)."""
    data_position: int
    """Sequences it has taken."""


@value
class OfSession:
    """What belongs to a learner's session."""

    learner: str
    incarnation: int


@value
class LearnerReady(OfSession):
    """The learner has loaded every fragment and begins to train."""


@value
class StepReported(OfSession):
    """The engine's event for a step report: the message ``wire.messages.StepReport`` after the syncer has checked it.

    It adds the learner that sent it; counts are over all its processes. A report may stand for several steps, because
    the newest one replaces those that wait for the connection.
    """

    step: int
    tokens: int
    step_seconds: float
    """Duration of the step's computation and of whatever slows this learner, without waits for synchronization."""
    loss: float
    data_position: int
    spent: TimeSpent = NO_TIME


@value
class LearnerAlive(OfSession):
    """The learner sent something other than a step report: this renews its lease but is not participation."""


@value
class Attempt(OfSession):
    """One request to a learner for its outer gradient of a fragment; a repeated request has another number."""

    fragment: int
    version: int
    """The version that the requested merge makes (base + 1 if the learner is up to date)."""
    attempt: int

    @property
    def key(self) -> tuple[int, int, int]:
        """Tells it from all others to the same learner for the same fragment."""
        return self.incarnation, self.version, self.attempt


@value
class FragmentArrived(Attempt):
    """The whole payload of an outer gradient was received and its checksum is correct."""

    base_version: int
    """Version of the fragment that the learner last received, from which the outer gradient is measured."""
    steps: int
    """c_steps: inner steps since it received the fragment."""
    tokens: int
    """c_tokens: tokens in those steps."""
    payload_bytes: int
    digest: str
    """xxh3-128 of the payload, hexadecimal; the shell finds the payload by (learner, fragment, version, attempt)."""


@value
class FragmentLate(Attempt):
    """An outer gradient began to arrive after its round was over: it was refused before it was complete."""


@value
class FragmentDeclined(Attempt):
    """The learner has nothing to send for a requested fragment (no step since it received it)."""

    broken: bool = False
    """It has made steps, but its outer gradient is not finite and cannot be encoded: it has diverged."""


@value
class FragmentApplied(OfSession):
    """The learner's inner loop now trains on this version of the fragment."""

    fragment: int
    version: int
    step: int = 0
    """The learner's inner step after which it was swapped in; its report may come later. 0: not reported."""


@value
class LeftOut:
    """A member whose outer gradient was too large to be credible, or not finite: it is not in the merge."""

    learner: str
    reason: str
    broken: bool = False
    """Its values are not finite, or beyond every bound: it is wrong whatever the others sent."""


@value
class Cosine:
    """The cosine between a member's part of a merge and the sum of the others': below 0, it points against them."""

    learner: str
    cosine: float


@value
class Merged:
    """A merge that the engine ordered is done and its result is the syncer's current fragment."""

    fragment: int
    version: int
    digest: str
    """xxh3-128 of the new fragment's f32 bytes, hexadecimal."""
    seconds: float
    failed: bool = False
    """The members' outer gradients could not be merged: the version has the values of the one before."""
    left_out: tuple[LeftOut, ...] = ()
    cosines: tuple[Cosine, ...] = ()
    """Of the members that are in it, if there are several."""


@value
class LearnerLeft(OfSession):
    """The session ended. ``clean``: the learner said that it leaves; otherwise its connection broke."""

    clean: bool


@value
class TimerFired:
    """A timer that the engine set is due."""

    name: str


@value
class SnapshotAsked:
    """The syncer wants a checkpoint (period, SIGTERM, a user)."""

    reason: str


@value
class Evaluated(OfSession):
    """A learner evaluated the global model."""

    evaluation: int
    loss: float
    """Mean loss, in the task's unit."""
    exact: bool
    """Whether the model had exactly the ordered versions (always so for the final one)."""


@value
class PoolMinimum:
    """An elastic pool and the fewest learners that it may have."""

    pool: str
    """``region/pool``."""
    learners: int


@value
class PoolTerms:
    """What the manifest says about the speed of a pool's learners."""

    pool: str
    """``region/pool``."""
    batch: int = 1
    """Sequences in an inner step of a learner, at most."""
    speed: float | None = None
    """Tokens a second of a learner, relative to other pools; None: not said, which counts as 1."""


@value
class LearnersPlanned:
    """Pools were scaled, added or removed while the job runs: from now on exactly these learners are planned."""

    learners: tuple[str, ...]
    pools: tuple[str, ...]
    """``region/pool`` of every pool that there is now."""
    minimums: tuple[PoolMinimum, ...] = ()
    terms: tuple[PoolTerms, ...] = ()
    """Of a pool without terms a step has one sequence at most, and no speed is said."""


@value
class BudgetChanged:
    """``training.tokens`` was changed while the job runs."""

    tokens: int
    evaluate_every_tokens: int


@value
class LearnerReadmitted:
    """A person lets a learner that was given up back in."""

    learner: str
    incarnation: int
    """With which it was given up, so that the same order has no effect on a later giving up."""


@value
class LearnerFailed:
    """The container of a learner that has no session fails again and again, more often than the job allows."""

    learner: str
    incarnation: int
    """Of its latest admission, so that one that has joined since is not meant; 0: it has never joined."""


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
    | BudgetChanged
    | LearnerReadmitted
    | LearnerFailed
)
