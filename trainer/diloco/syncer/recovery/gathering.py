"""Decides which learner is asked for which version of which fragment, when a restarted syncer lacks some.

Pure: the shell says who has joined and what has come of an order. The newest version is wanted first. An older one, if
it is still newer than the checkpoint's, is taken only once nobody is waited for any more who may have the newest.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MOST_UNDER_WAY = 8
"""Fragments that are received at once: so many buffers are taken beside the model (ours)."""
MOST_OF_ONE = 2
"""Fragments that one learner sends at once (ours)."""
MOST_HOLDERS = 4
"""Learners remembered for each fragment and version (ours), however many join."""
MOST_RETURNS = 8
"""Sessions of one learner; further ones are told to come again later (ours)."""


@dataclass(frozen=True, slots=True)
class Order:
    """One learner is to send one version of one fragment."""

    learner: str
    fragment: int
    version: int
    attempt: int
    """Different for every order."""


@dataclass(slots=True)
class _Fragment:
    versions: tuple[int, ...]
    """Versions that can be proven, oldest first."""
    under_way: Order | None = None
    got: int | None = None


@dataclass(slots=True)
class _Holder:
    versions: dict[int, int] = field(default_factory=dict)
    """By fragment: the version that it holds, if that is wanted."""
    under_way: int = 0


class Gathering:
    """What is wanted, who holds it, and what has been received."""

    def __init__(self, wanted: Mapping[int, Iterable[int]], awaited: Iterable[str]) -> None:
        """Collect the ``wanted`` versions: by fragment, those that can be proven and are newer than the checkpoint's.

        Learners in ``awaited`` are waited for before older versions than the newest are taken.
        """
        self._fragments = {index: _Fragment(tuple(sorted(versions))) for index, versions in wanted.items() if versions}
        self._awaited = set(awaited)
        self._holders: dict[str, _Holder] = {}
        self._returns: dict[str, int] = {}
        self._excluded: set[str] = set()
        self._turned_away: set[str] = set()
        """Learners that hold what is wanted, as enough others do. They come again."""
        self._attempts = 0

    @property
    def waiting(self) -> bool:
        """Whether a learner that may hold the newest version of what is missing has not been heard of yet."""
        return bool(self._awaited) and not self.complete

    @property
    def complete(self) -> bool:
        """Whether the newest version of every fragment is there."""
        return all(one.got == one.versions[-1] for one in self._fragments.values())

    @property
    def over(self) -> bool:
        """Whether nothing more can come of those that have been heard of, and nobody is waited for."""
        return self.complete or not (self._awaited or self.under_way or any(self._candidates()))

    @property
    def under_way(self) -> tuple[Order, ...]:
        """Orders without an outcome."""
        return tuple(one.under_way for one in self._fragments.values() if one.under_way is not None)

    def has(self, fragment: int) -> bool:
        """Whether a version of a fragment is there."""
        one = self._fragments.get(fragment)
        return one is not None and one.got is not None

    def joined(self, learner: str, versions: Mapping[int, int]) -> bool:
        """Note what a learner holds, by fragment. Returns whether it may be asked for some of it."""
        self.left(learner)
        self._awaited.discard(learner)
        self._turned_away.discard(learner)
        if learner in self._excluded or self._returns.get(learner, 0) >= MOST_RETURNS:
            return False
        held = {index: version for index, version in versions.items() if self._is_wanted(index, version)}
        if not any(self._rivals(index, version) < MOST_HOLDERS for index, version in held.items()):
            if held:
                self._turned_away.add(learner)
            return False
        self._returns[learner] = self._returns.get(learner, 0) + 1
        self._holders[learner] = _Holder(held)
        return True

    def left(self, learner: str) -> None:
        """Note that a learner's session is over: what it was to send is asked of others."""
        for one in self._fragments.values():
            if one.under_way is not None and one.under_way.learner == learner:
                one.under_way = None
        if self._holders.pop(learner, None) is not None:
            self._awaited |= self._turned_away  # one of them may take its place
            self._turned_away.clear()

    def received(self, order: Order) -> None:
        """Note that what an order was for has come and has its proof, even if its learner has gone since."""
        self._end(order)
        one = self._fragments[order.fragment]
        if one.got is None:
            one.got = order.version
            if one.under_way is not None:
                self._end(one.under_way)

    def declined(self, order: Order) -> None:
        """Note that a learner no longer holds what it was to send."""
        if self._end(order) and order.learner in self._holders:
            self._holders[order.learner].versions.pop(order.fragment, None)

    def failed(self, order: Order) -> None:
        """Note that a learner sent something else, or nothing in time: it is asked for nothing more."""
        if self._end(order):
            self._excluded.add(order.learner)
            self.left(order.learner)

    def wait_no_more(self) -> None:
        """Take what those hold that have joined."""
        self._awaited.clear()

    def next_orders(self) -> list[Order]:
        """Orders to be given now. Their outcomes are to be noted."""
        orders: list[Order] = []
        room = MOST_UNDER_WAY - len(self.under_way)
        for index, version in self._candidates():
            if len(orders) == room:
                break
            free = [
                (holder.under_way, name)
                for name, holder in self._holders.items()
                if holder.versions.get(index) == version and holder.under_way < MOST_OF_ONE
            ]
            if free:
                self._attempts += 1
                order = Order(min(free)[1], index, version, self._attempts)
                self._fragments[index].under_way = order
                self._holders[order.learner].under_way += 1
                orders.append(order)
        return orders

    def _candidates(self) -> Iterable[tuple[int, int]]:
        """Fragments that could be ordered, each in the newest version that a learner with a session holds."""
        for index, one in self._fragments.items():
            if one.under_way is None and one.got is None:
                newest = max((holder.versions.get(index, -1) for holder in self._holders.values()), default=-1)
                if newest == one.versions[-1] or (newest >= 0 and not self._awaited):
                    yield index, newest

    def _is_wanted(self, index: int, version: int) -> bool:
        one = self._fragments.get(index)
        return one is not None and one.got is None and version in one.versions

    def _rivals(self, index: int, version: int) -> int:
        """How many learners hold this version of a fragment, or a newer one."""
        return sum(holder.versions.get(index, -1) >= version for holder in self._holders.values())

    def _end(self, order: Order) -> bool:
        """End an order; False if it was no longer under way."""
        one = self._fragments.get(order.fragment)
        if one is None or one.under_way != order:
            return False
        one.under_way = None
        holder = self._holders.get(order.learner)
        if holder is not None:
            holder.under_way -= 1
        return True
