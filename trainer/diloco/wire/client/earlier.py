"""What a client knows from its session and its earlier transfers: the next transfer of a payload goes on there."""

from dataclasses import dataclass

from diloco.wire.channel import DEFAULT_CONNECTIONS
from diloco.wire.messages import PullHeader, PullRequest, PushHeader
from diloco.wire.part_messages import PartsReceiver
from diloco.wire.parts import LARGEST_PART_BYTES


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

    def push_is_short(self, header: PushHeader) -> bool:
        """Whether a push is one part, and begins anew."""
        one = header.payload_bytes <= LARGEST_PART_BYTES
        return one and not self.bytes_per_second and header.fragment not in self.pushed

    def pull_is_short(self, fragment: int) -> bool:
        """Whether a pull is one part, as the last time, and begins anew."""
        one = self.pulled_bytes.get(fragment, LARGEST_PART_BYTES + 1) <= LARGEST_PART_BYTES
        return one and not self.bytes_per_second and fragment not in self.pulled
