"""Whatever happens, however a tape is cut, and wherever a process is killed: what is left replays to the same."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from diloco.core.engine.actions import Action
from diloco.core.engine.events import Event
from diloco.core.engine.options import RULES
from diloco.tape.keeper import TapeKeeper, TapeLimits
from diloco.tape.reader import TapeEntry, TapeHeader, TapeReader, engine_of
from diloco.tape.segments import find_tapes, segment_number
from diloco.tape.writer import TapeWriter
from tests.support.engine_moves import LEARNERS, Move, moves, play
from tests.support.engine_script import Script, options
from tests.support.examples import examples

OPTIONS = options(LEARNERS)


class Killed(BaseException):
    """The process is gone: it does nothing any more, not even in a ``finally``."""


class Disk:
    """Lets some operations on files happen, and none after them; a write that is cut off happens in part."""

    def __init__(self, operations: int) -> None:
        self.left = operations

    def take(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def write(self, descriptor: int, data: Any) -> int:
        if self.left == 0:
            _write(descriptor, bytes(data)[: len(data) // 2])
        self.take()
        return _write(descriptor, data)

    def wrap(self, function: Any) -> Any:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            self.take()
            return function(*arguments, **options)

        return wrapped

    @contextmanager
    def used(self) -> Iterator[None]:
        """Every change of the tape's files goes through this."""
        with (
            patch("os.write", self.write),
            patch("os.fsync", self.wrap(os.fsync)),
            patch.object(Path, "unlink", self.wrap(Path.unlink)),
            patch.object(Path, "replace", self.wrap(Path.replace)),
        ):
            yield


_write = os.write


class Taped(Script):
    """A script whose events and actions go to a tape, which is tidied after every event."""

    def __init__(self, directory: Path, epoch: int, limits: TapeLimits) -> None:
        super().__init__(OPTIONS, epoch=epoch, begun=False)
        self.told: list[Event] = []
        self._keeper = TapeKeeper(directory, limits)
        header = TapeHeader({}, "", epoch, "", record=False, engine={}, started_at=0.0, rules=RULES, tensors=())
        self.tape = TapeWriter(directory, header, limits, self.engine.image)

    def do(self, event: Event) -> list[Action]:
        actions = super().do(event)
        self.told.append(event)
        self.tape.append(self.now, event, actions)
        self.tape.flush()
        self._keeper.tidy(self.tape.current, 0)
        return actions


def run(directory: Path, epoch: int, limits: TapeLimits, chosen: list[Move], disk: Disk) -> list[Event]:
    """One process, until it has made its moves or is killed; returns the events that it had."""
    script = None
    try:
        with disk.used():
            script = Taped(directory, epoch, limits)
            script.start(*range(LEARNERS))
            play(script, chosen)
    except Killed:
        pass
    if script is None:
        return []
    if script.tape._descriptor is not None:
        os.close(script.tape._descriptor)
    return script.told


@given(
    st.lists(st.tuples(moves(), st.integers(0, 200)), min_size=1, max_size=3),
    st.integers(1, 20_000),
    st.none() | st.integers(20_000, 60_000),
)
@settings(max_examples=examples(60))
def test_what_is_left_replays_to_the_same(
    processes: list[tuple[list[Move], int]], segment_bytes: int, kept_bytes: int | None
) -> None:
    limits = TapeLimits(segment_bytes, kept_bytes)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        told = {
            epoch: run(directory, epoch, limits, chosen, Disk(operations))
            for epoch, (chosen, operations) in enumerate(processes, 1)
        }
        told[len(told) + 1] = run(directory, len(told) + 1, limits, [Move("step", 0, 0)] * 5, Disk(10**9))
        check(directory, told, everything=kept_bytes is None)


def check(directory: Path, told: dict[int, list[Event]], *, everything: bool) -> None:
    """Replay every tape; only the front may be missing, and the last line of a process that was killed."""
    tapes = find_tapes(directory)
    newest = max(told)
    assert tapes[-1].epoch == newest
    for index, tape in enumerate(tapes):
        reader = TapeReader(tape)
        engine = engine_of(reader.header, OPTIONS)
        events = []
        for entry in reader:
            if isinstance(entry, TapeEntry):
                assert engine.step(entry.event, entry.now) == list(entry.actions)
                events.append(entry.event)
        if index or everything:
            assert segment_number(tape.segments[0]) == 0
            assert reader.header.previous in ("", tapes[index - 1].last)
            # Killed while it wrote its last line, or before.
            assert events in (told[tape.epoch], told[tape.epoch][:-1])
        elif events:
            assert events in (told[tape.epoch][-len(events) :], told[tape.epoch][-len(events) - 1 : -1])
    assert [tape.epoch for tape in tapes] == [
        epoch for epoch in sorted(told) if epoch >= tapes[0].epoch and told[epoch]
    ]
