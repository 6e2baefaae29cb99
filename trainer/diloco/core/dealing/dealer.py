"""Which learner trains on which sequences, so that each is merged at most once an epoch, and what became of them.

The job has one order for all epochs: position p is a sequence of epoch p // N. The dealer deals positions in this
order, and takes back what a learner that is gone did not push. A learner counts the sequences that it takes; its count
only grows, and pieces map counts to positions. An outer gradient covers a range of counts: it may be merged only if all
of them are the learner's still. The smallest positions are dealt first, so those taken back come before new ones.

No decision of the engine depends on this, so neither tape nor replay has it. No clock, no files: before positions are
dealt, the caller records durably that they may be (``next_mark``, ``recorded``), and whose they are no longer
(``overdue``, ``revoke``). What a syncer had recorded when it crashed is not dealt again: what no learner then claims to
hold is lost.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Self

from diloco.core.dealing.agreement import Data, Known
from diloco.core.dealing.pieces import Piece, extend, parts_of
from diloco.core.dealing.ranges import Ranges
from diloco.spec.status.syncer import DataStatus, EpochStatus

MOST_CLAIMS = 1024
"""Pieces that a process may join with (ours)."""
_SHOWN_EPOCHS = 32
"""Epochs that are counted one by one; those before are one sum (ours)."""


Revoked = Mapping[str, tuple[str, int]]
"""By learner: a process, and the count below which nothing is its own any more unless it was accepted before."""


@dataclass(slots=True)
class _Holder:
    """What a learner was dealt."""

    instance: str
    """Its process."""
    pieces: list[Piece] = field(default_factory=list)
    """By count."""
    end: int = 0
    """Count with which the next piece begins. A piece that begins later than the one before ended: the process drops
    what it had left."""
    accepted: int = 0
    """Outer gradients of it were accepted that cover counts up to here."""
    merged: Ranges = field(default_factory=Ranges)
    """Counts that merged outer gradients of it cover."""
    present: bool = True
    """It has a session."""

    def parts(self, first: int, end: int) -> list[Piece]:
        """Its pieces from count ``first`` to ``end``."""
        return parts_of(self.pieces, first, end)

    def add(self, start: int, stop: int) -> Piece:
        """Deal it the positions ``start`` .. ``stop - 1``."""
        piece = Piece(self.end, start, stop - start)
        extend(self.pieces, piece)
        self.end = piece.end
        return piece


def known_from(plain: Any) -> Known:
    """``Known`` from plain JSON.

    Raises:
        TypeError, ValueError: it is none.
    """
    (sequences, digest), by, fixed = plain
    return Known(Data(int(sequences), str(digest)), str(by), fixed is True)


class Dealer:
    """The positions of one job. Plain values: ``state`` and ``restored``."""

    def __init__(self, sequences: int = 0, known: Known | None = None) -> None:
        """``sequences``: N, sequences in an epoch; 0: no learner has said yet. ``known``: the same and more of it."""
        self.known = known or Known(Data(sequences))
        self._mark = 0
        """Positions from here on were never recorded, so never dealt."""
        self._left = Ranges()
        """Positions below that an earlier syncer had not dealt when it stopped."""
        self._pool = Ranges()
        """Recorded positions that no learner has."""
        self._unknown = Ranges()
        """Positions that an earlier syncer may have dealt without this one's knowing to whom."""
        self.revoked: dict[str, tuple[str, int]] = {}
        """Of processes that may come back. It is on disk, as a syncer may begin again before it took them."""
        self._lapsed: set[str] = set()
        """Learners that are away for so long that others may take what they have."""
        self._merged = Ranges()
        self._twice = 0
        self._skipped: dict[int, int] = {}
        """By fragment: sequences that merged outer gradients of it cover without having learnt from them."""
        self._closed = 0
        """Epochs of which only ``_closed_merged`` is known."""
        self._closed_merged = 0
        self._holders: dict[str, _Holder] = {}

    @property
    def sequences(self) -> int:
        """N; 0: not known."""
        return self.known.data.sequences

    @property
    def twice(self) -> int:
        """Positions that were merged from two learners' outer gradients."""
        return self._twice

    def next_mark(self, count: int) -> int | None:
        """What to record, with nothing left below it, before ``count`` positions are dealt; None: nothing."""
        pooled = sum(stop - start for start, stop in self._pool.pairs)
        return None if pooled >= count else self._mark + count

    def recorded(self, mark: int) -> None:
        """Note that ``mark`` is on disk: positions below may be dealt from now on."""
        for start, stop in (*self._left.pairs, (self._mark, mark)):
            self._pool.add(start, stop)
        self._left, self._mark = Ranges(), max(self._mark, mark)

    @property
    def mark(self) -> int:
        """Positions from here on were never recorded."""
        return self._mark

    def undealt(self) -> tuple[int, list[tuple[int, int]], Revoked, Known]:
        """What to record when no more is dealt: the mark and what is left below it, so that nothing is lost."""
        return self._mark, self._undealt().pairs, self.revoked, self.known

    def joined(self, learner: str, instance: str, count: int, claims: Sequence[Piece]) -> tuple[Piece, ...]:
        """A process was admitted; returns the pieces that it lacks of what it was dealt.

        ``count``: its first step is not before it. ``claims``: the pieces that the process says it has, by count.
        """
        holder = self._holders.setdefault(learner, _Holder(""))
        if holder.instance != instance:
            self._take_back(holder)
            holder.instance, holder.end = instance, max(holder.accepted, claims[0].first if claims else count)
            process, end = self.revoked.get(learner, ("", 0))
            if process == instance:
                holder.end = max(holder.end, end)
        holder.present = True
        self._lapsed.discard(learner)
        if not claims:
            return tuple(holder.parts(holder.accepted, holder.end))
        told = claims[-1].end
        for claim in claims:
            part = claim.within(holder.end, told)
            if part.length > 0:
                if self._unknown.count(part.start, part.stop) < part.length:
                    break
                self._unknown.remove(part.start, part.stop)
                holder.end = part.first
                holder.add(part.start, part.stop)
        rest = holder.parts(told, holder.end)
        if not rest and not any(piece.first <= told <= piece.end for piece in holder.pieces):
            holder.end = max(holder.end, told + 1)  # it drops what it has
        return tuple(rest)

    def absent(self, learner: str, *, for_good: bool) -> None:
        """Its session is over. ``for_good``: so is its process, which has said so."""
        if (holder := self._holders.get(learner)) is not None:
            holder.present = False
            if for_good:
                self._take_back(holder)

    @property
    def away(self) -> tuple[str, ...]:
        """Learners without a session."""
        return tuple(learner for learner, holder in self._holders.items() if not holder.present)

    def lapse(self, learner: str) -> None:
        """It has been away for long: others may take what it has, once nothing else of that epoch is left to deal."""
        self._lapsed.add(learner)

    def overdue(self) -> Revoked:
        """What lapsed learners have of epochs of which nothing else is left to deal, to record for ``revoke``."""
        if not (self._lapsed and self._pool.pairs):
            return {}
        begun = self._pool.pairs[0][0] // self.sequences * self.sequences
        holders = {learner: self._holders[learner] for learner in self._lapsed}
        return {
            learner: (holder.instance, holder.end)
            for learner, holder in holders.items()
            if any(part.start < begun for part in holder.parts(holder.accepted, holder.end))
        }

    def revoke(self, overdue: Revoked) -> None:
        """Note that these are on disk: others may be dealt them, unless their learner is back."""
        for learner in self._lapsed.intersection(overdue):
            self.revoked[learner] = overdue[learner]
            self._take_back(self._holders[learner])
            self._lapsed.remove(learner)

    def left(self, learner: str, position: int) -> int:
        """Sequences that a learner has from count ``position`` on."""
        holder = self._holders[learner]
        return sum(part.length for part in holder.parts(position, holder.end))

    def trim(self, learner: str, count: int) -> None:
        """Forget what a learner had before ``count``: no outer gradient will cover it."""
        holder = self._holders[learner]
        holder.pieces = holder.parts(count, holder.end)

    def end(self, learner: str) -> int:
        """The count after the last that ``learner`` was dealt."""
        return self._holders[learner].end

    def deal(self, learner: str, count: int) -> tuple[Piece, ...]:
        """Deal ``count`` positions to a learner that has joined, or as many as are recorded."""
        holder = self._holders[learner]
        return tuple(holder.add(*taken) for taken in self._pool.take(count))

    def accept(self, learner: str, first: int, end: int, keep: int) -> bool:
        """Whether an outer gradient that covers the counts ``first`` .. ``end - 1`` may be merged: they are its own.

        If so they are not dealt again. ``keep``: most sequences that one outer gradient covers.
        """
        holder = self._holders[learner]
        if not 0 < end - first == sum(part.length for part in holder.parts(first, end)):
            return False
        holder.accepted = max(holder.accepted, end)
        holder.pieces = holder.parts(holder.accepted - 2 * keep, holder.end)
        holder.merged.remove(0, holder.accepted - 2 * keep)
        return True

    def merge(self, learner: str, first: int, end: int) -> None:
        """An outer gradient that was accepted is merged."""
        holder = self._holders[learner]
        floor = self._closed * self.sequences
        for part in holder.parts(first, end):
            if part.start >= floor:
                new = holder.merged.add(part.first, part.end)
                self._twice += new - self._merged.add(part.start, part.stop)

    def skip(self, fragment: int, count: int) -> None:
        """The steps of so many sequences were skipped, of those that a merged outer gradient covers."""
        if count > 0:
            self._skipped[fragment] = self._skipped.get(fragment, 0) + count

    def counts(self) -> tuple[EpochStatus, ...]:
        """By epoch, the oldest first; epochs long past are one sum."""
        if not self.sequences:
            return ()
        undealt = self._undealt()
        waiting = self._waiting()
        epochs = -(-self._mark // self.sequences)
        first = max(self._closed, epochs - _SHOWN_EPOCHS)
        found = []
        for low, high in ((0, first), *((epoch, epoch + 1) for epoch in range(first, epochs))):
            start, stop = low * self.sequences, min(high * self.sequences, self._mark)
            dealt = stop - start - undealt.count(start, stop)
            if dealt <= 0:
                continue
            merged = self._merged.count(start, stop) + (self._closed_merged if low == 0 else 0)
            held = waiting.count(start, stop)
            lost = max(0, dealt - merged - held)
            found.append(EpochStatus(first=low, last=high - 1, dealt=dealt, merged=merged, lost=lost, waiting=held))
        return tuple(found)

    def status(self) -> DataStatus:
        """What people are shown."""
        skipped = max(self._skipped.values(), default=0)
        return DataStatus(sequences=self.sequences, twice=self._twice, skipped=skipped, epochs=self.counts())

    def state(self) -> dict[str, Any]:
        """Everything as plain JSON, for a checkpoint."""
        return {
            "known": self.known,
            "mark": self._mark,
            "merged": list(self._merged.pairs),
            "twice": self._twice,
            "skipped": list(self._skipped.items()),
            "closed": self._closed,
            "closed_merged": self._closed_merged,
            "holders": {
                learner: {one.name: getattr(holder, one.name) for one in fields(holder)}
                | {"pieces": [list(piece) for piece in holder.pieces], "merged": list(holder.merged.pairs)}
                for learner, holder in self._holders.items()
            },
        }

    @classmethod
    def restored(
        cls,
        state: dict[str, Any],
        mark: int = 0,
        left: Iterable[Iterable[int]] = (),
        revoked: Revoked = MappingProxyType({}),
        known: Known | None = None,
    ) -> Self:
        """What goes on from ``state``; the rest: what was recorded since, if anything was."""
        then = known_from(state["known"])
        if known is None or known.data == then.data:
            then = then if known is None or then.fixed else known
        elif then.fixed:  # the record is of data that was dropped before
            mark, left, revoked = 0, (), {}
        else:
            state, then = Dealer().state(), known
        dealer = cls(known=then)
        dealer._mark, dealer._left, dealer.revoked = max(state["mark"], mark), Ranges(left), dict(revoked)
        dealer._merged, dealer._twice = Ranges(state["merged"]), state["twice"]
        dealer._skipped = dict(state["skipped"])
        dealer._closed, dealer._closed_merged = state["closed"], state["closed_merged"]
        for learner, plain in state["holders"].items():
            pieces, merged = [Piece(*piece) for piece in plain["pieces"]], Ranges(plain["merged"])
            holder = _Holder(**plain | {"pieces": pieces, "merged": merged, "present": False})
            process, end = revoked.get(learner, ("", 0))
            if process == holder.instance:
                holder.pieces = holder.parts(0, holder.accepted) + holder.parts(max(end, holder.accepted), holder.end)
                holder.end = max(holder.end, end)
            for part in holder.parts(holder.accepted, holder.end):
                dealer._left.remove(part.start, part.stop)
            dealer._holders[learner] = holder
        dealer._unknown.add(dealer._closed * dealer.sequences, dealer._mark)
        held = (piece for holder in dealer._holders.values() for piece in holder.pieces)
        for start, stop in (*dealer._left.pairs, *dealer._merged.pairs, *((p.start, p.stop) for p in held)):
            dealer._unknown.remove(start, stop)
        return dealer

    def _take_back(self, holder: _Holder) -> None:
        for part in holder.parts(holder.accepted, holder.end):
            self._pool.add(part.start, part.stop)
        holder.pieces = holder.parts(0, holder.accepted)

    def _undealt(self) -> Ranges:
        return Ranges((*self._left.pairs, *self._pool.pairs))

    def _waiting(self) -> Ranges:
        found: list[tuple[int, int]] = []
        for holder in self._holders.values():
            merged = holder.merged.pairs[-1][1] if holder.present and holder.merged.pairs else 0
            parts = holder.parts(merged if holder.present else holder.accepted, holder.end)
            found += [(part.start, part.stop) for part in parts]
        return Ranges(sorted(found))

    def close(self) -> None:
        """Keep only the sum of epochs long past of which nothing is left. Cheap while there are none."""
        if not self.sequences or self._mark // self.sequences - _SHOWN_EPOCHS <= self._closed:
            return
        held = (piece.start for holder in self._holders.values() for piece in holder.pieces)
        lowest = min((*held, *(start for start, _ in self._undealt().pairs), self._mark))
        closed = min(lowest // self.sequences, self._mark // self.sequences - _SHOWN_EPOCHS)
        if closed > self._closed:
            self._closed_merged += self._merged.count(0, closed * self.sequences)
            self._merged.remove(0, closed * self.sequences)
            self._closed = closed
