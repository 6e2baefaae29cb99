"""Deals sequences to learners (`diloco.core.dealing`), so far ahead that none waits for data.

What may have been dealt is on disk first, in blocks. While the disk takes nothing, nothing more is dealt: learners go
on with what they have, and then wait.
"""

import asyncio
import errno
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

from diloco.core.dealing.agreement import Agreement, Data, Known, difference
from diloco.core.dealing.dealer import MOST_CLAIMS, Dealer, Revoked, known_from
from diloco.core.dealing.pieces import Piece
from diloco.core.engine.actions import Merge
from diloco.core.engine.events import Merged
from diloco.runtime.files import UnusableFileError, read_json, write_atomically
from diloco.spec import JobSpec
from diloco.spec.placement import Pool
from diloco.syncer.disk.directory import overwrite
from diloco.syncer.peers.claims import tokens_per_step
from diloco.wire.errors import RefusedError, UnavailableError
from diloco.wire.messages import Dealt, Join, PushHeader, PushKey

_BLOCK: Final = 2
"""Positions that are recorded at once, as a multiple of those that all learners take in an interval (ours)."""
_AHEAD: Final = 2
"""All learners together are dealt an epoch divided by this ahead, at most (ours)."""
_LAPSE_TICKS: Final = 60
"""Seconds without a session after which others may take what a learner has (ours). Nobody waits for it meanwhile."""
_FILE_BYTES: Final = 4096
"""Of the record, so that a later one fits into its place."""
_log = logging.getLogger(__name__)

Pairs = Sequence[tuple[int, int]]
Deal = Callable[[Dealt], None]
"""Sends a message to a learner."""
End = Callable[[str], None]
"""Ends a learner's session, with a reason."""
Record = Callable[[int, Pairs, Revoked, Known], None]
"""Writes to disk the mark, what is left below it, whose it is no longer, and the data that is dealt; raises OSError."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """How much is dealt ahead."""

    batch_size: Callable[[str], int]
    """Sequences in a step of a learner, at most, by its id."""
    bound_steps: int
    interval: int
    sequence_length: int
    """Tokens in a sequence."""

    def keep(self, learner: str) -> int:
        """Most sequences that a learner takes without receiving a fragment."""
        return self.bound_steps * self.batch_size(learner)

    def chunk(self, learner: str) -> int:
        """Sequences of an interval."""
        return self.interval * self.batch_size(learner)


@dataclass(slots=True)
class _Present:
    send: Deal
    end: End
    position: int
    short: bool = False
    """It got less than it should have."""


class Dealing:
    """Owned by the event loop."""

    def __init__(self, dealer: Dealer, ahead: Ahead, record: Record, planned: Iterable[str] = ()) -> None:
        """``record`` is called in another thread. ``planned``: the learners that are planned."""
        self.dealer = dealer
        self._agreement = Agreement(planned)
        self._on_disk = dealer.known
        self._ahead = ahead
        self._record = record
        self._present: dict[str, _Present] = {}
        self._accepted: dict[tuple[int, int], dict[PushKey, tuple[int, int]]] = {}
        """By fragment and version: what each outer gradient for it covers."""
        self._away_ticks = dict.fromkeys(dealer.away, 0)
        self._recording: asyncio.Task[None] | None = None
        self._stopped = False
        self._failed = False

    @classmethod
    def of(
        cls, spec: JobSpec, pools: Mapping[str, Pool], path: Path, state: dict[str, Any], *, anew: bool = False
    ) -> Self:
        """For a job: what was dealt by ``state``, of the checkpoint, and by the file at ``path``.

        ``anew``: the file, if there is one, is of another training.

        Raises:
            UnusableFileError: the file is damaged.
        """
        if anew:
            path.unlink(missing_ok=True)
        per_step, length = tokens_per_step(spec.training, pools), spec.training.sequence_length
        ahead = Ahead(lambda one: per_step(one) // length, spec.sync.staleness_bound_steps, spec.sync.interval, length)
        return cls(Dealer.restored(state, *read_record(path)), ahead, partial(_write, path), spec.learner_ids)

    def plan(self, learners: Iterable[str]) -> None:
        """Note that the manifest has changed."""
        self._agreement.plan(learners)

    def check(self, join: Join) -> None:
        """Check that a process has the same data as the job's learners.

        Raises:
            RefusedError: it has other data.
            UnavailableError: it has, but the other learners' may still turn out to be wrong.
        """
        if len(join.dealt) % 3 or len(join.dealt) > 3 * MOST_CLAIMS:
            raise RefusedError(f"{join.learner} says what it was dealt in {len(join.dealt)} numbers")
        found = self._agreement.objection(join.learner, _data(join), self.dealer.known) if join.sequences else None
        if found is not None:
            _log.warning("%s: %s", join.learner, found.text)
            raise UnavailableError(found.text) if found.may_change else RefusedError(found.text)

    def admitted(self, join: Join, position: int, send: Deal, end: End) -> None:
        """A process was admitted, and goes on from ``position`` at the earliest."""
        learner, data = join.learner, _data(join)
        if not join.sequences:
            self._present.pop(learner, None)
            return
        found = self._agreement.objection(learner, data, self.dealer.known)
        if found is not None:  # another has joined meanwhile
            end(found.text)
            return
        self._knows(self._agreement.begins(self.dealer.known, learner, data))
        self._away_ticks.pop(learner, None)
        numbers = iter(join.dealt)
        claims = [Piece(*three) for three in zip(numbers, numbers, numbers, strict=True)]
        self._present[learner] = _Present(send, end, max(position, join.data_position))
        self._send(learner, self.dealer.joined(learner, join.instance, position, claims))
        self._deal(learner)

    def reported(self, learner: str, position: int) -> int:
        """A learner has taken ``position`` sequences, as it says; returns what is believed of it: what it was dealt."""
        present = self._present.get(learner)
        if present is None:
            return position
        position = min(position, self.dealer.end(learner))
        present.position = max(position, present.position)
        self.dealer.trim(learner, present.position - 2 * self._ahead.keep(learner))
        self._deal(learner)
        return position

    def over(self, learner: str, *, for_good: bool) -> None:
        """A session is over."""
        self._agreement.over(learner)
        if self._present.pop(learner, None) is not None:
            self.dealer.absent(learner, for_good=for_good)
            self._away_ticks[learner] = 0

    def accept(self, header: PushHeader) -> bool:
        """Whether an outer gradient that has arrived may be merged: the learner was dealt what it was trained on."""
        learner = header.learner
        if learner not in self._present:
            return True
        first, end = header.data_from, header.data_to
        if not self.dealer.accept(learner, first, end, self._ahead.keep(learner)):
            return False
        self._accepted.setdefault((header.fragment, header.version), {})[header.key] = first, end
        return True

    def merged(self, order: Merge, made: Merged) -> None:
        """A merge is in the model."""
        accepted = self._accepted.pop((order.fragment, order.version), {})
        left_out = {one.learner for one in made.left_out}
        counted: list[str] = []
        for one in order.members if not made.failed else ():
            key = PushKey(one.learner, one.incarnation, order.fragment, order.version, one.attempt)
            if key in accepted and one.learner not in left_out:
                first, end = accepted[key]
                self.dealer.merge(one.learner, first, end)
                self.dealer.skip(order.fragment, end - first - one.tokens // self._ahead.sequence_length)
                counted.append(one.learner)
        self.dealer.known = self._agreement.merged(self.dealer.known, counted)
        self.dealer.close()

    def tick(self) -> None:
        """Deal again what could not be dealt, and note who has been away for long. Call it once a second."""
        self._deal_rest()
        self._agreement.tick()
        overdue = self.dealer.overdue()
        if (overdue or self._on_disk != self.dealer.known) and not self._stopped:
            self._write_down(self.dealer.mark, overdue)
        for learner in self._away_ticks:
            self._away_ticks[learner] += 1
        for learner in [one for one, ticks in self._away_ticks.items() if ticks >= _LAPSE_TICKS]:
            del self._away_ticks[learner]
            self.dealer.lapse(learner)

    def _deal_rest(self) -> None:
        for learner in [one for one, present in self._present.items() if present.short]:
            self._deal(learner)

    async def stop(self) -> None:
        """Deal no more."""
        self._stopped = True
        if self._recording is not None:
            await asyncio.wait([self._recording])

    def released(self) -> None:
        """After the last checkpoint: what was not dealt is the next syncer's."""
        try:
            self._record(*self.dealer.undealt())
        except OSError as error:
            _log.warning("sequences that were not dealt are lost: %s", error.strerror or error)

    def _deal(self, learner: str) -> None:
        present, chunk = self._present[learner], self._ahead.chunk(learner)
        # More of an epoch, and a job that ends has trained on parts of several.
        share = max(chunk, self.dealer.sequences // (_AHEAD * len(self._present)))
        ahead = min(self._ahead.keep(learner), share) + chunk
        left = self.dealer.left(learner, present.position)
        present.short = False
        if self._stopped or left >= ahead:
            return
        wanted = ahead + chunk - left
        if self._recording is None and self.dealer.next_mark(wanted) is not None:
            mark = self.dealer.next_mark(_BLOCK * max(wanted, sum(self._ahead.chunk(one) for one in self._present)))
            assert mark is not None
            self._write_down(mark)
        pieces = self.dealer.deal(learner, wanted)
        present.short = sum(piece.length for piece in pieces) < wanted
        self._send(learner, pieces)

    def _write_down(self, mark: int, overdue: Revoked = MappingProxyType({})) -> None:
        """Begin to, unless something else is being written."""
        if self._recording is None:
            self._recording = asyncio.get_running_loop().create_task(self._recorded(mark, overdue))

    async def _recorded(self, mark: int, overdue: Revoked) -> None:
        dealer, known, revoked = self.dealer, self.dealer.known, {**self.dealer.revoked, **overdue}
        record = partial(self._record, mark, (), revoked, known)
        try:
            await asyncio.get_running_loop().run_in_executor(None, record)
        except OSError as error:
            if not self._failed:
                _log.warning("no more sequences are dealt until the disk takes it: %s", error.strerror or error)
            self._failed, self._recording = True, None
            return
        self._failed, self._recording, self._on_disk = False, None, known
        dealer.recorded(mark)
        dealer.revoke(overdue)
        self._deal_rest()

    def _knows(self, known: Known) -> None:
        """Deal this data. Who has other data is put out, and what was dealt of that is void."""
        before, others = self.dealer.known.data, self._present
        if known.data != before:
            self.dealer, self._present, self._accepted, self._away_ticks = Dealer(known=known), {}, {}, {}
            for learner, other in others.items():
                self._agreement.over(learner)
                other.end(difference(before, known))
        if known.fixed and not self.dealer.known.fixed:
            _log.info("the job's data is that of %s: %s", known.by, known.data)
        self.dealer.known = known

    def _send(self, learner: str, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            self._present[learner].send(Dealt(*piece))


def _data(join: Join) -> Data:
    return Data(join.sequences, join.data_digest)


def read_record(path: Path) -> tuple[int, Pairs, Revoked, Known | None]:
    """What a ``Record`` has written. Without a file: (0, (), {}, None).

    Raises:
        UnusableFileError: the file is damaged.
    """
    if not path.exists():
        return 0, (), {}, None
    plain = read_json(path)
    try:
        revoked = {learner: (str(process), int(end)) for learner, (process, end) in plain["revoked"].items()}
        left = [(int(start), int(stop)) for start, stop in plain["left"]]
        return int(plain["mark"]), left, revoked, known_from(plain["known"])
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UnusableFileError(f"{path}: does not say which sequences may have been dealt") from None


def _write(path: Path, mark: int, left: Pairs, revoked: Revoked, known: Known) -> None:
    """Write it for ``read_record``. A full disk takes no new file, but another record in place of the one there."""
    text = json.dumps({"mark": mark, "left": left, "revoked": revoked, "known": known}).ljust(_FILE_BYTES)
    try:
        write_atomically(path, text)
    except OSError as error:
        there = path.stat().st_size if path.exists() else 0
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or len(text) > there:
            raise
        overwrite(path, text.ljust(there).encode())
