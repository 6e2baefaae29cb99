"""Merged fragments on their way from the syncer to the inner loop.

Workers pull them into buffers of their own; the inner loop swaps them in between two steps. A newer version replaces
one that the loop has not taken yet, so the loop never sees a fragment that is not whole, and what waits is at most
one copy of the model on the host, however slow the loop or fast the syncer.

There are two ways to a fragment. An *order* is for a version that is there: the syncer has said so. A *post* is for a
version that is still to be made, of what this learner has just brought its part to: the pull waits at the syncer. It
only saves a round trip, so nothing is ever lost with it: whatever happens to a post, the notice of its version comes,
becomes an order, and waits just for as long as a post of that version is out.
"""

import threading
from dataclasses import dataclass, field

from torch import Tensor

from diloco.learner.mailboxes.holdings import Membership
from diloco.learner.mailboxes.wakeup import Wakeup
from diloco.wire.posting import Posting


@dataclass(frozen=True, slots=True)
class PullOrder:
    """A fragment to pull."""

    membership: Membership
    fragment: int
    minimum_version: int
    whole: bool = False
    """Not as an update of what is held: one has just come out wrong."""

    def covers(self, other: "PullOrder") -> bool:
        """Whether what this brings is what the other asks for."""
        newer = self.minimum_version >= other.minimum_version
        return self.membership == other.membership and newer and self.whole >= other.whole


@dataclass(frozen=True, slots=True)
class Post:
    """A pull that is posted, and the handle by which it is withdrawn."""

    order: PullOrder
    posting: Posting = field(default_factory=Posting)


@dataclass(frozen=True, slots=True)
class MergedFragment:
    """A fragment that is whole and waits for the inner loop."""

    membership: Membership
    fragment: int
    version: int
    values: Tensor
    """f32, flat, on the host; nobody writes to it any more."""


class PullQueue:
    """At most one order, one post, one pull of either kind under way and one waiting fragment for each fragment."""

    def __init__(self, wakeup: Wakeup) -> None:
        self._wakeup = wakeup
        self._condition = threading.Condition()
        self._orders: dict[int, PullOrder] = {}
        self._busy: set[int] = set()
        self._posts: dict[int, Post] = {}
        self._posted: dict[int, Post] = {}
        self._may_post: Membership | None = None
        self._epoch: str | None = None
        self._waiting: dict[int, MergedFragment] = {}
        self._closed = False

    def session_begins(self, membership: Membership, *, posted_pulls: bool) -> None:
        """An admission; ``posted_pulls``: this syncer lets pulls wait."""
        with self._condition:
            self._epoch = membership.epoch
            self._may_post = membership if posted_pulls else None

    def want(self, order: PullOrder) -> None:
        """Have a fragment pulled. The link calls it for what is news only."""
        with self._condition:
            before = self._orders.get(order.fragment)
            if before is not None and before.covers(order):
                return
            self._orders.pop(order.fragment, None)
            self._orders[order.fragment] = order
            late = self._posts.get(order.fragment)
            if late is not None and late.order.minimum_version <= order.minimum_version:
                del self._posts[order.fragment]  # what it would wait for is there
            self._condition.notify_all()

    def post(self, order: PullOrder) -> None:
        """Have a pull posted for a version that will be made. Does nothing where that cannot be, or is done already."""
        with self._condition:
            known = (self._posts.get(order.fragment), self._posted.get(order.fragment))
            if order.membership != self._may_post or any(post and post.order.covers(order) for post in known):
                return
            self._posts[order.fragment] = Post(order)
            self._condition.notify_all()

    def session_over(self) -> None:
        """The next admission says anew what is to be pulled."""
        with self._condition:
            self._orders.clear()
            self._posts.clear()
            self._may_post = None
            out = tuple(self._posted.values())
        for post in out:
            post.posting.withdraw()

    def next_order(self) -> PullOrder | None:
        """What a worker shall pull; it then calls ``done``. Waits; None: closed."""
        with self._condition:
            while not self._closed:
                # The newest first: what a link that is too thin leaves over is then the oldest, of which a newer
                # version is about to be made.
                for fragment, order in reversed(self._orders.items()):
                    post = self._posted.get(fragment)
                    comes_by_post = post is not None and not order.whole and _is_for(post, order)
                    if fragment not in self._busy and not comes_by_post:
                        del self._orders[fragment]
                        self._busy.add(fragment)
                        return order
                self._condition.wait()
            return None

    def done(self, order: PullOrder) -> None:
        """The worker's pull has ended, well or not."""
        with self._condition:
            self._busy.discard(order.fragment)
            self._condition.notify_all()

    def next_post(self) -> Post | None:
        """What a waiter shall post; it then calls ``post_ended``. Waits; None: closed."""
        with self._condition:
            while not self._closed:
                for fragment, post in self._posts.items():
                    if fragment not in self._posted:
                        del self._posts[fragment]
                        self._posted[fragment] = post
                        return post
                self._condition.wait()
            return None

    def post_ended(self, post: Post) -> None:
        """The waiter's pull has ended, well or not."""
        with self._condition:
            del self._posted[post.order.fragment]
            self._condition.notify_all()

    def landed(self, arrival: MergedFragment) -> None:
        """A fragment is whole. The newest of the present epoch stays: an order and a post may both bring one."""
        with self._condition:
            if self._epoch is not None and arrival.membership.epoch != self._epoch:
                return
            waiting = self._waiting.get(arrival.fragment)
            same = waiting is not None and waiting.membership.epoch == arrival.membership.epoch
            if waiting is not None and same and waiting.version >= arrival.version:
                return
            self._waiting[arrival.fragment] = arrival
        self._wakeup.notify()

    def waiting_version(self, membership: Membership, fragment: int) -> int | None:
        """Version of the fragment that waits for the loop, if one of this epoch does."""
        with self._condition:
            arrival = self._waiting.get(fragment)
            same = arrival is not None and arrival.membership.epoch == membership.epoch
            return arrival.version if arrival is not None and same else None

    def take(self) -> list[MergedFragment]:
        """Everything that waits, for the inner loop."""
        if not self._waiting:  # without the lock: one that lands now is taken after the next step
            return []
        with self._condition:
            pull_queue = list(self._waiting.values())
            self._waiting.clear()
            return pull_queue

    def close(self) -> None:
        """End the workers."""
        with self._condition:
            self._closed = True
            out = tuple(self._posted.values())
            self._condition.notify_all()
        for post in out:
            post.posting.withdraw()


def _is_for(post: Post, order: PullOrder) -> bool:
    """Whether the version that the order asks for, being there, is what the post is answered with."""
    same = post.order.membership == order.membership
    return same and post.order.minimum_version <= order.minimum_version
