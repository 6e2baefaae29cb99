"""What a client knows from its session and its earlier transfers: the next transfer of a payload goes on there."""

from dataclasses import dataclass

from diloco.wire.channel import DEFAULT_CONNECTIONS
from diloco.wire.messages import PullHeader, PullRequest, PushHeader
from diloco.wire.part_messages import PartsReceiver


@dataclass(frozen=True, slots=True)
class HalfPulled:
    """What a pull left that did not end well."""

    request: PullRequest
    header: PullHeader
    receiver: PartsReceiver


class Earlier:
    """What a client's session said about transfers, and what earlier ones left, by fragment.

    Used for one fragment and direction by one transfer at a time.
    """

    def __init__(self) -> None:
        self.connections = DEFAULT_CONNECTIONS
        """Most connections that a transfer is spread over."""
        self.bytes_per_second = 0
        """Limit of the learner's region; 0: none."""
        self.pushed: dict[int, PushHeader] = {}
        """Headers of pushes that did not end well; the syncer knows how much of them has arrived."""
        self.pulled: dict[int, HalfPulled] = {}
        """Pulls that did not end well: at most one buffer for each fragment."""
        self.pulled_bytes: dict[int, int] = {}
        """Payload of the last pull, which says how many connections the next one is worth."""
