"""Merged fragments on their way from the syncer to the inner loop.

Workers pull them into buffers of their own; the inner loop swaps them in between two steps. A newer version replaces
one that the loop has not taken yet, so the loop only ever gets complete fragments, and at most one copy of the model
waits on the host, however slow the loop or fast the syncer.

A fragment is pulled in one of two ways. An *order* is for a version that the syncer has announced. A *post* is for a
version that is still to be made, from a merge to which this learner has just pushed: the pull waits at the syncer,
which saves a round trip. A failed post loses nothing: the notice of its version becomes an order, which only waits
while a post of that version is out.
"""

import threading
from dataclasses import dataclass, field

from torch import Tensor

from diloco.learner.mailboxes.holdings import Membership
from diloco.learner.mailboxes.wakeup import Wakeup
from diloco.wire.client.transfer_handle import TransferHandle


@dataclass(frozen=True, slots=True)
class PullOrder:
    """A fragment to pull."""

    membership: Membership
    fragment: int
    minimum_version: int
    whole: bool = False
    """Pull the whole fragment, because an update has just given the wrong result."""
    load: bool = False
    """The learner cannot train before it has this fragment."""
    handle: TransferHandle = field(default_factory=TransferHandle, compare=False)
    """With which its pull is withdrawn."""

    def covers(self, other: "PullOrder") -> bool:
        """Whether fulfilling this order fulfills the other one too."""
        newer = self.minimum_version >= other.minimum_version
        return self.membership == other.membership and newer and self.whole >= other.whole


@dataclass(frozen=True, slots=True)
class MergedFragment:
    """A complete fragment that waits for the inner loop."""

    membership: Membership
    fragment: int
    version: int
    values: Tensor
    """f32, flat, on the host; never written to again."""


class PullQueue:
    """For each fragment at most one order, one post, one pull of either kind in a session and one complete version."""

    def __init__(self, wakeup: Wakeup) -> None:
        self._wakeup = wakeup
        self._lock = threading.Lock()
        # What is put or ended gives work to one thread of a kind at most; waking all of them costs a step's time.
        self._work = threading.Condition(self._lock)
        self._posting = threading.Condition(self._lock)
        self._orders: dict[int, PullOrder] = {}
        self._pulled: set[PullOrder] = set()
        """Under way."""
        self._posts: dict[int, PullOrder] = {}
        self._posted: dict[int, PullOrder] = {}
        self._membership: Membership | None = None
        self._epoch: str | None = None
        self._waiting: dict[int, MergedFragment] = {}
        self._taken: dict[int, tuple[str, int]] = {}
        """Epoch and version of what the loop took last: it may still be copying it into the model."""
        self._closed = False

    def session_begins(self, membership: Membership) -> None:
        """Begin an admission."""
        with self._lock:
            self._epoch = membership.epoch
            self._membership = membership
            self._taken.clear()  # what is to be loaded is loaded again

    def want(self, order: PullOrder) -> None:
        """Have a fragment pulled. The link calls it only for versions that are new.

        An order of an earlier admission does nothing: it could take the place of one to load.
        """
        with self._lock:
            if order.membership != self._membership:
                return
            before = self._orders.get(order.fragment)
            if before is not None and before.covers(order):
                return
            self._orders.pop(order.fragment, None)
            self._orders[order.fragment] = order
            late = self._posts.get(order.fragment)
            if late is not None and late.minimum_version <= order.minimum_version:
                del self._posts[order.fragment]  # the version it would wait for already exists
            self._work.notify()

    def post(self, order: PullOrder) -> None:
        """Have a pull posted for a version that will be made. Does nothing if that is impossible or already done."""
        with self._lock:
            known = (self._posts.get(order.fragment), self._posted.get(order.fragment))
            if order.membership != self._membership or any(post and post.covers(order) for post in known):
                return
            self._posts[order.fragment] = order
            self._posting.notify()

    def session_over(self) -> None:
        """Drop orders and posts, and withdraw the pulls under way: the next admission says what is to be pulled.

        A pull may be on a connection that died with the session, and would keep a worker until its deadline.
        """
        with self._lock:
            self._orders.clear()
            self._posts.clear()
            self._membership = None
        self._withdraw()

    def next_order(self) -> PullOrder | None:
        """The next order for a worker, which calls ``done`` afterwards. Waits; None: closed."""
        with self._lock:
            while not self._closed:
                for fragment, order in self._in_turn():
                    post = self._posted.get(fragment)
                    comes_by_post = post is not None and not order.whole and order.covers(post)
                    places = ((pulled.membership, pulled.fragment) for pulled in self._pulled)
                    if not comes_by_post and (order.membership, fragment) not in places:
                        del self._orders[fragment]
                        self._pulled.add(order)
                        return order
                self._work.wait()
            return None

    def _in_turn(self) -> list[tuple[int, PullOrder]]:
        # First what is to be loaded, in the order in which it was ordered: on a thin link, others merge fragments while
        # this learner loads, and if their news went first some fragments might never get their turn.
        loads = [(fragment, order) for fragment, order in self._orders.items() if order.load]
        # Then the newest: on a link that is too thin, the orders left over are the oldest, of which a newer version is
        # about to be made.
        return loads + [(fragment, order) for fragment, order in reversed(self._orders.items()) if not order.load]

    def done(self, order: PullOrder) -> None:
        """Note that the worker's pull has ended, successfully or not."""
        with self._lock:
            self._pulled.discard(order)
            self._work.notify()

    def next_post(self) -> PullOrder | None:
        """The next post for a posting thread, which calls ``post_ended`` afterwards. Waits; None: closed."""
        with self._lock:
            while not self._closed:
                for fragment, post in self._posts.items():
                    if fragment not in self._posted:
                        del self._posts[fragment]
                        self._posted[fragment] = post
                        return post
                self._posting.wait()
            return None

    def post_ended(self, post: PullOrder) -> None:
        """Note that a posted pull has ended, successfully or not."""
        with self._lock:
            del self._posted[post.fragment]
            self._posting.notify()
            self._work.notify()

    def arrived(self, arrival: MergedFragment) -> None:
        """Add a complete fragment. Only the newest of this epoch is kept: an order and a post may both bring one."""
        with self._lock:
            if self._epoch is not None and arrival.membership.epoch != self._epoch:
                return
            waiting = self._waiting.get(arrival.fragment)
            same = waiting is not None and waiting.membership.epoch == arrival.membership.epoch
            if waiting is not None and same and waiting.version >= arrival.version:
                return
            self._waiting[arrival.fragment] = arrival
        self._wakeup.notify()

    def waiting_version(self, membership: Membership, fragment: int) -> int | None:
        """Version of the fragment that waits for the loop or is being swapped in; None if none of this epoch is."""
        with self._lock:
            arrival = self._waiting.get(fragment)
            if arrival is not None and arrival.membership.epoch == membership.epoch:
                return arrival.version
            epoch, version = self._taken.get(fragment, ("", 0))
            return version if epoch == membership.epoch else None

    def take(self) -> list[MergedFragment]:
        """Take everything that waits, for the inner loop."""
        if not self._waiting:  # without the lock: a fragment that is added now is taken after the next step
            return []
        with self._lock:
            taken = list(self._waiting.values())
            self._waiting.clear()
            self._taken |= {one.fragment: (one.membership.epoch, one.version) for one in taken}
            return taken

    def close(self) -> None:
        """End the workers."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
            self._posting.notify_all()
        self._withdraw()

    def _withdraw(self) -> None:
        with self._lock:
            under_way = (*self._pulled, *self._posted.values())
        for order in under_way:
            order.handle.withdraw()
