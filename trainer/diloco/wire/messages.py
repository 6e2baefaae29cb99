"""What learners and the syncer say to each other, as typed values; ``proto/diloco/wire/v1/sync.proto`` mirrored.

Everything beyond the wire package handles these; protobuf ends at ``convert``. Integers are 0 to 2**63 - 1, times are
finite seconds, fragments are indices of the job's layout. It must not know how messages travel.
"""

from dataclasses import dataclass

PROTOCOL = 1
"""Version of the protocol that this package speaks."""


# What a learner says ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Join:
    """First message of a session."""

    job: str
    """metadata.name of the manifest."""
    learner: str
    """Its id, ``region/pool/index``."""
    instance: str
    """Random, made by the process at its start: tells a reconnecting process from a second one with its id."""
    layout_digest: str
    epoch: str = ""
    """Syncer epoch that ``versions`` belong to; empty: none."""
    versions: tuple[int, ...] = ()
    """Version held of each fragment; empty: none."""
    steps: int = 0
    """Inner steps of its life."""
    data_position: int = 0
    """Sequences it has taken from its shard."""
    protocol: int = PROTOCOL


@dataclass(frozen=True, slots=True)
class Ready:
    """It has loaded what it was told to load and begins to train."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class StepReport:
    """It finished an inner step."""

    incarnation: int
    step: int
    tokens: int
    """Of its life, this step's included."""
    step_seconds: float
    blocked_seconds: float
    """Time since the last report in which the inner loop waited for synchronization."""
    loss: float
    """Nats a token; not a number where the model has diverged."""
    data_position: int
    training_seconds: float = 0.0
    """This and what follows: time since the process started, by kind (``core.spent.TimeSpent``). All 0: not told."""
    skipped_seconds: float = 0.0
    paused_seconds: float = 0.0
    copying_seconds: float = 0.0
    looking_seconds: float = 0.0
    evaluating_seconds: float = 0.0
    checkpointing_seconds: float = 0.0
    loading_seconds: float = 0.0
    receiving_seconds: float = 0.0
    """Since the process started, the time in which any pull brought bytes. 0: not told."""
    received_bytes: int = 0
    """By them."""


@dataclass(frozen=True, slots=True)
class Alive:
    """Nothing new; it is there."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class Declined:
    """Asked for a fragment, it has nothing to bring."""

    incarnation: int
    fragment: int
    version: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Applied:
    """Its inner loop trains on this version of the fragment from now on."""

    incarnation: int
    fragment: int
    version: int
    step: int = 0
    """Inner step of its life after which it was swapped in; 0: not told."""


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """It evaluated the global model."""

    incarnation: int
    evaluation: int
    loss: float
    """Mean cross-entropy, nats a token; not a number where the model has diverged."""
    exact: bool
    """The model had exactly the versions that were asked for."""


@dataclass(frozen=True, slots=True)
class Leave:
    """It stops, on purpose."""

    incarnation: int
    reason: str


LearnerMessage = Join | Ready | StepReport | Alive | Declined | Applied | EvaluationReport | Leave


# What the syncer says -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the job is."""

    tokens: int
    """Merged so far."""
    budget: int
    """Tokens the job trains for."""
    syncer_step: int
    """Merges made."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """Let in."""

    incarnation: int
    """Stands in everything this process sends from now on."""
    epoch: str
    load: tuple[int, ...]
    """Fragments to pull before training, in this order."""
    versions: tuple[int, ...]
    """Current version of every fragment."""
    steps: int
    data_position: int
    progress: Progress
    posted_pulls: bool = False
    """A pull may be posted before its version is made."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Not, or no longer, let in; the session ends with it."""

    refusal: str
    """Kind of refusal: a value of ``diloco.core.actions.Refusal``."""
    reason: str


@dataclass(frozen=True, slots=True)
class FragmentWanted:
    """Push your outer gradient of this fragment."""

    fragment: int
    version: int
    """The version that the merge will make."""
    attempt: int


@dataclass(frozen=True, slots=True)
class FragmentReady:
    """A new version of a fragment is there to be pulled."""

    fragment: int
    version: int
    merged: bool
    """The receiving learner's outer gradient is in it."""
    progress: Progress


@dataclass(frozen=True, slots=True)
class EvaluationWanted:
    """Evaluate the global model on held-out data."""

    evaluation: int
    versions: tuple[int, ...]
    final: bool
    """Exactly these versions: the exported model."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The job is over."""

    complete: bool
    reason: str


SyncerMessage = Welcome | Refused | FragmentWanted | FragmentReady | EvaluationWanted | Progress | Finished


# Bulk ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PushHeader:
    """Opens a push: whose outer gradient this is, of what, and how long."""

    learner: str
    incarnation: int
    fragment: int
    version: int
    """As in the ``FragmentWanted`` that it answers."""
    attempt: int
    base_version: int
    """Version that the outer gradient is measured from."""
    steps: int
    """Inner steps since the fragment was received."""
    tokens: int
    """Tokens in those steps."""
    codec: str
    payload_bytes: int
    epoch: str
    payload_digest: bytes = b""
    """XXH3-128 of the payload, 16 bytes; empty where the sender leaves it to the chunks' checksums. A handler is always
    given the digest of what was received."""


@dataclass(frozen=True, slots=True)
class PushReceipt:
    """Answers a push that came whole."""

    accepted: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PullRequest:
    """Asks for a fragment's current version."""

    learner: str
    incarnation: int
    fragment: int
    minimum_version: int
    """The version served must not be older."""
    epoch: str
    held_version: int | None = None
    """Version of the fragment that an update may be added to; None: send it whole."""
    posted: bool = False
    """Wait for ``minimum_version`` where it is the next one to be made."""


@dataclass(frozen=True, slots=True)
class PullHeader:
    """Opens a pull's answer."""

    fragment: int
    version: int
    payload_bytes: int
    payload_digest: bytes = b""
    """XXH3-128 of the payload, 16 bytes; empty where the sender leaves it to the chunks' checksums."""
    codec: str = ""
    """Of the update from ``base_version`` to ``version`` that the payload is; empty: it is the fragment whole, f32."""
    base_version: int = 0
    """Of an update: the version that the request says is held."""
    result_digest: bytes = b""
    """Of an update: XXH3-128 of the fragment in f32 that it makes, 16 bytes."""


Message = LearnerMessage | SyncerMessage | PushHeader | PushReceipt | PullRequest | PullHeader
