"""What holds for every push and pull on the server."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, TypeVar

from diloco.wire.channel import HEADER
from diloco.wire.convert import unpack
from diloco.wire.errors import InvalidMessageError
from diloco.wire.messages import PullRequest, PushHeader
from diloco.wire.server.bandwidth import LimitOf
from diloco.wire.server.calls import Context, first_message
from diloco.wire.server.traffic import Kind, Traffic, Way
from diloco.wire.tls.tls import Peer

K = TypeVar("K")
V = TypeVar("V")
Asked = TypeVar("Asked", PushHeader, PullRequest)

MOST_CALLS: Final = 64
"""Most calls of one transfer at once."""
_KEPT: Final = 256
"""Transfers that are over of which something is known for calls that come late (ours)."""


def keep_latest(entries: OrderedDict[K, V], key: K, value: V) -> None:
    """Add an entry, and drop the oldest beyond ``_KEPT``."""
    entries[key] = value
    while len(entries) > _KEPT:
        entries.popitem(last=False)


@dataclass(frozen=True, slots=True)
class TransferTerms:
    """What holds for all transfers."""

    stall_seconds: float
    """A call that makes no progress for so long is ended."""
    limit_of: LimitOf
    traffic: Traffic

    async def pull_request(self, context: Context, peer: Peer) -> PullRequest:
        """The first message of a pull.

        Raises:
            WireError: it does not come, cannot be read, or names a learner that the peer is not.
        """
        first = await first_message(context, self.stall_seconds, "request")
        if first is None:
            raise InvalidMessageError("a pull without a request")
        return self._checked(PullRequest, first, peer)

    def push_header(self, context: Context, peer: Peer) -> PushHeader:
        """The header of a push, which comes before its first message.

        Raises:
            WireError: it did not, cannot be read, or names a learner that the peer is not.
        """
        header = dict(context.invocation_metadata() or ()).get(HEADER)
        if not isinstance(header, bytes):
            raise InvalidMessageError("a push without a header")
        return self._checked(PushHeader, header, peer)

    def _checked(self, expected: type[Asked], first: bytes, peer: Peer) -> Asked:
        asked = unpack(expected, first)
        peer.must_be(asked.learner)
        self.control(asked.learner, Way.UP, first)
        return asked

    def control(self, learner: str, way: Way, message: bytes) -> None:
        """Count a message that is no part of a payload."""
        self.traffic.count(learner, way, Kind.CONTROL, len(message))
