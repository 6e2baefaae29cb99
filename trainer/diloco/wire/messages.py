"""The messages between learners and the syncer as typed values, mirroring ``proto/diloco/wire/v1/sync.proto``.

All code outside the wire package uses these; only ``convert`` knows protobuf. Integers are 0 to 2**63 - 1, times are
finite seconds, fragments are indices of the job's layout.
"""

from dataclasses import dataclass
from typing import NamedTuple

from diloco.core.account.time_spent import NO_TIME, TimeSpent

PROTOCOL = 1
"""Version of the protocol that this package speaks."""


# From a learner -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Join:
    """First message of a session."""

    job: str
    """metadata.name of the manifest."""
    learner: str
    """Its id, ``region/pool/index``."""
    instance: str
    """Made by the process at its start, random, with its pod if it has one (``core.process_name``): distinguishes a
    reconnecting process from a second one with its id."""
    layout_digest: str
    epoch: str = ""
    """Syncer epoch that ``versions`` belong to; empty: none."""
    versions: tuple[int, ...] = ()
    """Version held of each fragment; empty: none."""
    steps: int = 0
    """Inner steps so far, over all processes of this learner."""
    data_position: int = 0
    """Sequences it has taken."""
    training: str = ""
    """Id of the training that ``steps`` and ``data_position`` are from, if a checkpoint has them; empty: from the
    process itself, or the checkpoint names none."""
    protocol: int = PROTOCOL
    sequences: int = 0
    """Training sequences in its data; 0: it does not take its data as it is dealt."""
    data_digest: str = ""
    """Of what its sequences are cut from; empty: it has none."""
    dealt: tuple[int, ...] = ()
    """What it was dealt and may still push, as first count, position and length of each piece, by count."""
    computes: str = ""
    """What its steps are computed in and on, for people; empty: a loop of the user's own decides."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The learner has loaded the fragments that ``Welcome`` names, and begins to train."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class StepReport:
    """The message about a learner's latest inner step; a newer one replaces one that has not been sent yet.

    The syncer makes the engine's event ``StepReported`` from it.
    """

    incarnation: int
    step: int
    tokens: int
    """Over all processes of this learner, including this step's."""
    step_seconds: float
    loss: float
    """In the task's unit; not a number if the model has diverged."""
    data_position: int
    spent: TimeSpent = NO_TIME
    """How the process has spent its time since it started."""
    receiving_seconds: float = 0.0
    """Time since the process started in which any pull received bytes. 0: not reported."""
    received_bytes: int = 0
    """Bytes received by pulls."""
    gradient_norm: float = 0.0
    """Global norm of the gradient before clipping."""
    learning_rate: float = 0.0
    """Of this step: AdamW's, or that of the first group of a loop's optimizer."""


@dataclass(frozen=True, slots=True)
class Alive:
    """Sent when there is nothing else to send, to renew the learner's lease."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class Declined:
    """The learner has no outer gradient to send for a requested fragment."""

    incarnation: int
    fragment: int
    version: int
    attempt: int
    broken: bool = False
    """It has one that is not finite, and cannot be encoded."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The learner's inner loop trains on this version of the fragment from now on."""

    incarnation: int
    fragment: int
    version: int
    step: int = 0
    """The learner's inner step after which it was swapped in; 0: not reported."""


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """The result of an evaluation of the global model."""

    incarnation: int
    evaluation: int
    loss: float
    """Mean loss, in the task's unit; not a number if the model has diverged."""
    exact: bool
    """Whether the model had exactly the versions that were asked for."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The learner stops on purpose and ends its session."""

    incarnation: int
    reason: str


LearnerMessage = Join | Ready | StepReport | Alive | Declined | Applied | EvaluationReport | Leave


# From the syncer ----------------------------------------------------------------------------------------------------


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
    """The process is admitted."""

    incarnation: int
    """Included in everything this process sends from now on."""
    epoch: str
    load: tuple[int, ...]
    """Fragments to pull before training, in this order."""
    versions: tuple[int, ...]
    """Current version of every fragment."""
    steps: int
    data_position: int
    progress: Progress
    connections: int = 1
    """Most connections that a transfer is spread over."""
    bytes_per_second: int = 0
    """Limit of the learner's region: a push then waits until the syncer says how many parts may come. 0: none."""
    reset: bool = False
    """It has diverged: besides the model, its inner optimizer and its error feedback start over."""
    training: str = ""
    """Id of the training, the same for as long as the syncer's directory is; empty: not said."""
    counted_in: tuple[int, ...] = ()
    """By fragment: the version that the learner's latest merged outer gradient is in; 0: none is."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The process is not, or no longer, admitted; the session ends with this."""

    refusal: str
    """Kind of refusal: a value of ``diloco.core.engine.actions.Refusal``."""
    reason: str


@dataclass(frozen=True, slots=True)
class FragmentWanted:
    """A request to push the outer gradient of this fragment."""

    fragment: int
    version: int
    """The version that the merge will make."""
    attempt: int


@dataclass(frozen=True, slots=True)
class FragmentReady:
    """A new version of a fragment can be pulled."""

    fragment: int
    version: int
    merged: bool
    """Whether the receiving learner's outer gradient is in it."""
    progress: Progress


@dataclass(frozen=True, slots=True)
class EvaluationWanted:
    """A request to evaluate the global model on held-out data."""

    evaluation: int
    versions: tuple[int, ...]
    final: bool
    """Whether it must be exactly these versions: the exported model."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The job is over."""

    complete: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Dealt:
    """The learner's sequences ``first`` .. ``first + length - 1`` are the positions from ``start`` on of the order.

    If ``first`` is not where the piece before ended, the learner drops what it has not taken of that, and what it has
    trained since it received each fragment.
    """

    first: int
    start: int
    length: int


SyncerMessage = Welcome | Refused | FragmentWanted | FragmentReady | EvaluationWanted | Progress | Finished | Dealt


# Bulk ---------------------------------------------------------------------------------------------------------------


class PushKey(NamedTuple):
    """Identifies an outer gradient in a request, a push and a merge."""

    learner: str
    incarnation: int
    fragment: int
    version: int
    attempt: int


@dataclass(frozen=True, slots=True)
class PushHeader:
    """Begins a push: says whose outer gradient it is, of which fragment, and how long."""

    learner: str
    incarnation: int
    fragment: int
    version: int
    """As in the ``FragmentWanted`` that it answers."""
    attempt: int
    base_version: int
    """Version from which the outer gradient is measured."""
    steps: int
    """Inner steps since the fragment was received."""
    tokens: int
    """Tokens in those steps."""
    codec: str
    payload_bytes: int
    epoch: str
    payload_digest: bytes = b""
    """Of the payload (``part_messages.payload_digest``), 16 bytes; empty if the sender relies on the parts' checksums.
    A handler always gets the digest of what was received."""
    part_bytes: int = 0
    """Size of the parts, which the wire package chooses."""
    data_from: int = 0
    """Sequences that the learner had taken when it received the fragment."""
    data_to: int = 0
    """Sequences that it has taken now."""

    @property
    def key(self) -> PushKey:
        """Which outer gradient it is."""
        return PushKey(self.learner, self.incarnation, self.fragment, self.version, self.attempt)


@dataclass(frozen=True, slots=True)
class PushReceipt:
    """Answers a push that was received whole."""

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
    """Wait for ``minimum_version`` if it is the next one to be made."""
    transfer: str = ""
    """Random, the same on all calls of a pull; empty if ``connections`` is 0."""
    connections: int = 0
    """On so many the learner asks; the payload is cut for them. 0: on one, for a payload of one part."""


@dataclass(frozen=True, slots=True)
class PullHeader:
    """Begins a pull's answer."""

    fragment: int
    version: int
    payload_bytes: int
    payload_digest: bytes = b""
    """As in a push's header."""
    codec: str = ""
    """Codec of an update from ``base_version`` to ``version``; empty: the payload is the whole fragment, f32."""
    base_version: int = 0
    """For an update: the version that the request says is held."""
    result_digest: bytes = b""
    """For an update: digest of the resulting fragment in f32, 16 bytes."""
    part_bytes: int = 0
    """Size of the parts, which the wire package chooses."""


Message = LearnerMessage | SyncerMessage | PushHeader | PushReceipt | PullRequest | PullHeader
