"""Deals sequences to learners (`diloco.core.dealing`), so far ahead that none waits for data.

What may have been dealt is on disk first, in blocks. While the disk takes nothing, nothing more is dealt: learners go
on with what they have, and then wait.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, Self

from diloco.core.dealing.dealer import Dealer, Piece
from diloco.core.engine.actions import Merge
from diloco.core.engine.events import Merged
from diloco.runtime.files import UnusableFileError, read_json, write_json_atomically
from diloco.spec import JobSpec
from diloco.spec.placement import Pool
from diloco.syncer.peers.claims import tokens_per_step
from diloco.wire.errors import RefusedError
from diloco.wire.messages import Dealt, Join, PushHeader, PushKey

_BLOCK: Final = 2
"""Positions that are recorded at once, as a multiple of those dealt at once (ours)."""
_log = logging.getLogger(__name__)

Pairs = Sequence[tuple[int, int]]
Record = Callable[[int, Pairs], None]
"""Writes the mark and what is left below it to disk; raises OSError."""


class Deal(Protocol):
    """Sends a message to a learner."""

    def __call__(self, message: Dealt) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Ahead:
    """How much is dealt ahead."""

    batch_size: Callable[[str], int]
    """Sequences in a step of a learner, at most, by its id."""
    bound_steps: int
    interval: int

    def keep(self, learner: str) -> int:
        """Most sequences that a learner takes without receiving a fragment."""
        return self.bound_steps * self.batch_size(learner)

    def chunk(self, learner: str) -> int:
        """Sequences of an interval."""
        return self.interval * self.batch_size(learner)


@dataclass(slots=True)
class _Present:
    send: Deal
    position: int


class Dealing:
    """Owned by the event loop."""

    def __init__(self, dealer: Dealer, ahead: Ahead, record: Record) -> None:
        """``record`` is called in another thread."""
        self.dealer = dealer
        self._ahead = ahead
        self._record = record
        self._present: dict[str, _Present] = {}
        self._accepted: dict[PushKey, tuple[int, int]] = {}
        self._recording: asyncio.Task[None] | None = None
        self._stopped = False
        self._failed = False

    @classmethod
    def of(cls, spec: JobSpec, pools: Mapping[str, Pool], path: Path, state: dict[str, Any]) -> Self:
        """For a job: what was dealt by ``state``, of the checkpoint, and by the file at ``path``.

        Raises:
            UnusableFileError: the file is damaged.
        """
        per_step, length = tokens_per_step(spec.training, pools), spec.training.sequence_length
        ahead = Ahead(lambda one: per_step(one) // length, spec.sync.staleness_bound_steps, spec.sync.interval)
        return cls(Dealer.restored(state, *read_record(path)), ahead, partial(_write, path))

    def check(self, join: Join) -> None:
        """Raise RefusedError if a process has other data than the job's learners."""
        known = self.dealer.sequences
        if join.sequences and known and join.sequences != known:
            raise RefusedError(
                f"data: has {join.sequences} training sequences, that of this job has {known}; use the same data for "
                "all learners, and another job for other data"
            )
        if len(join.dealt) % 3:
            raise RefusedError(f"{join.learner} says what it was dealt in {len(join.dealt)} numbers")

    def admitted(self, join: Join, position: int, send: Deal) -> None:
        """A process was admitted, and goes on from ``position`` at the earliest."""
        learner = join.learner
        if not join.sequences:
            self._present.pop(learner, None)
            return
        self.dealer.sequences = join.sequences
        numbers = iter(join.dealt)
        claims = [Piece(*three) for three in zip(numbers, numbers, numbers, strict=True)]
        self._present[learner] = _Present(send, max(position, join.data_position))
        self._send(learner, self.dealer.joined(learner, join.instance, position, claims))
        self._deal(learner)

    def reported(self, learner: str, position: int) -> None:
        """A learner has taken ``position`` sequences."""
        present = self._present.get(learner)
        if present is not None:
            present.position = min(max(position, present.position), self.dealer.end(learner))
            self._deal(learner)

    def over(self, learner: str, *, for_good: bool) -> None:
        """A session is over."""
        if self._present.pop(learner, None) is not None:
            self.dealer.absent(learner, for_good=for_good)

    def accept(self, header: PushHeader) -> bool:
        """Whether an outer gradient that has arrived may be merged: the learner was dealt what it was trained on."""
        learner = header.learner
        if learner not in self._present:
            return True
        first, end = header.data_from, header.data_to
        if not self.dealer.accept(learner, first, end, self._ahead.keep(learner)):
            return False
        self._accepted[header.key] = first, end
        return True

    def merged(self, order: Merge, made: Merged) -> None:
        """A merge is in the model."""
        left_out = {one.learner for one in made.left_out}
        for one in order.members if not made.failed else ():
            key = PushKey(one.learner, one.incarnation, order.fragment, order.version, one.attempt)
            if key in self._accepted and one.learner not in left_out:
                self.dealer.merge(one.learner, *self._accepted[key])
        for key in [k for k in self._accepted if k.fragment == order.fragment and k.version <= order.version]:
            del self._accepted[key]

    def tick(self) -> None:
        """Try again what the disk did not take."""
        for learner in self._present:
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
        ahead = self._ahead.keep(learner) + chunk
        left = self.dealer.end(learner) - present.position
        if self._stopped or left >= ahead:
            return
        wanted = ahead + chunk - left
        if self.dealer.next_mark(wanted) is not None and self._recording is None:
            mark = self.dealer.next_mark(_BLOCK * wanted)
            assert mark is not None
            self._recording = asyncio.get_running_loop().create_task(self._recorded(mark))
        self._send(learner, self.dealer.deal(learner, wanted))

    async def _recorded(self, mark: int) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(None, partial(self._record, mark, ()))
        except OSError as error:
            if not self._failed:
                _log.warning("no more sequences are dealt until the disk takes it: %s", error.strerror or error)
            self._failed, self._recording = True, None
            return
        self._failed, self._recording = False, None
        self.dealer.recorded(mark)
        self.tick()

    def _send(self, learner: str, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            self._present[learner].send(Dealt(*piece))


def read_record(path: Path) -> tuple[int, Pairs]:
    """The mark and what was left below it. Without a file: (0, ()).

    Raises:
        UnusableFileError: the file is damaged.
    """
    if not path.exists():
        return 0, ()
    plain = read_json(path)
    try:
        return int(plain["mark"]), [(int(start), int(stop)) for start, stop in plain["left"]]
    except (KeyError, TypeError, ValueError):
        raise UnusableFileError(f"{path}: does not say which sequences may have been dealt") from None


def _write(path: Path, mark: int, left: Pairs) -> None:
    """Write it for ``read_record``."""
    write_json_atomically(path, {"mark": mark, "left": left})
