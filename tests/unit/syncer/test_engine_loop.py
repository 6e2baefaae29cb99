"""Events reach the engine in order, their actions the executor in order, and timers are those the engine last set."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diloco.core.engine.actions import Action, CancelTimer, Checkpoint, Note, NoteKind, SetTimer
from diloco.core.engine.events import Event, LearnerAlive, SnapshotAsked, TimerFired
from diloco.syncer.engine_loop import EngineLoop
from diloco.tape.keeper import TapeLimits
from diloco.tape.reader import TapeEntry, TapeReader
from diloco.tape.segments import find_tapes
from diloco.tape.writer import TapeWriter
from tests.support.tape_headers import tape_header


class ScriptedEngine:
    """Answers each event as the test says."""

    def __init__(self, script: Callable[[Event], list[Action]]) -> None:
        self.script = script
        self.told: list[Event] = []

    def step(self, event: Event, now: float) -> list[Action]:
        del now
        self.told.append(event)
        return self.script(event)


class Executor:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.done: list[Action] = []
        self.on_tape_then: list[int] = []
        self.dropped: type[Any] = type(None)
        self.idle = asyncio.Event()

    async def ends(self) -> None:
        """Wait until it is told ``Checkpoint("last")``."""
        async with asyncio.timeout(30):
            await self.idle.wait()

    def commit(self, event: Event) -> bool:
        return not isinstance(event, self.dropped)

    def carry_out(self, action: Action, now: float) -> None:
        del now
        self.done.append(action)
        # The header is a line too.
        self.on_tape_then.append((self.directory / "000001.jsonl").read_bytes().count(b"\n") - 1)
        if action == Checkpoint("last"):
            self.idle.set()
        if action == Checkpoint("bad"):
            raise RuntimeError("a fault")


def entries(directory: Path) -> list[TapeEntry]:
    (files,) = find_tapes(directory)
    return [entry for entry in TapeReader(files) if isinstance(entry, TapeEntry)]


LAST = SnapshotAsked("last")


def echo(event: Event) -> list[Action]:
    match event:
        case SnapshotAsked(reason):
            return [Checkpoint(reason)]
        case LearnerAlive(learner):
            return [Note(NoteKind.LEARNER_TRAINS, learner), Note(NoteKind.REPEATED, learner)]
    return []


class Loop(EngineLoop):
    """Drives a scripted engine and an executor that does nothing."""

    def __init__(self, directory: Path) -> None:
        self.tape = TapeWriter(directory, tape_header(), TapeLimits())
        self.scripted, self.executor = ScriptedEngine(echo), Executor(directory)
        super().__init__(self.scripted, self.tape, asyncio.get_running_loop().time)  # type: ignore[arg-type]

    @property
    def told(self) -> list[Event]:
        return self.scripted.told

    def post_all(self, *events: Event) -> None:
        for event in events:
            self.post(event)


@pytest.fixture
def idle(tmp_path: Path, runner: asyncio.Runner) -> Iterator[Loop]:
    """One that is not started."""

    async def made() -> Loop:
        return Loop(tmp_path)

    loop = runner.run(made())
    yield loop
    loop.stop()
    loop.tape.close()


@pytest.fixture
def loop(idle: Loop, runner: asyncio.Runner) -> Loop:
    async def start() -> None:
        idle.start(idle.executor)

    runner.run(start())
    return idle


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_order_is_kept_and_decisions_are_on_the_tape_before_they_are_done(loop: Loop) -> None:
    loop.post_all(*(LearnerAlive(f"a/b/{i}", 1) for i in range(600)), LAST)
    await loop.executor.ends()
    told = [action.reason for action in loop.executor.done if isinstance(action, Note)]
    assert told[::2] == told[1::2] == [f"a/b/{i}" for i in range(600)]
    assert all(written >= index // 2 + 1 for index, written in enumerate(loop.executor.on_tape_then))
    assert loop.events == 601


async def test_a_timer_fires_once_under_its_name(loop: Loop) -> None:
    def script(event: Event) -> list[Action]:
        if isinstance(event, TimerFired):
            return [Note(NoteKind.REPEATED, event.name), Checkpoint("last")]
        return [SetTimer("one", 0.0), SetTimer("never", 1e9)]

    loop.scripted.script = script
    loop.post(LAST)
    await loop.executor.ends()
    assert loop.executor.done == [Note(NoteKind.REPEATED, "one"), Checkpoint("last")]


SET, CHANGE, END = SnapshotAsked("set"), SnapshotAsked("change"), TimerFired("end")
TIMERS: dict[Event, list[Action]] = {
    SET: [SetTimer("replaced", 0.0), SetTimer("cancelled", 0.0)],
    CHANGE: [SetTimer("replaced", 1e9), CancelTimer("cancelled"), SetTimer("end", 0.0)],
    END: [Checkpoint("last")],
}


async def test_a_timer_that_is_replaced_or_cancelled_does_not_fire_even_when_due(loop: Loop) -> None:
    loop.scripted.script = lambda event: TIMERS.get(event, [])
    loop.post_all(SET, CHANGE)
    await loop.executor.ends()
    assert loop.told == [SET, CHANGE, END]


async def test_a_fired_timer_that_is_replaced_or_cancelled_is_ignored(loop: Loop) -> None:
    loop.scripted.script = lambda event: TIMERS.get(event, [])
    loop.post(SET)
    # After the timers are set, and before what the next turn of the loop finds due: they come after it.
    call_soon = asyncio.get_running_loop().call_soon
    call_soon(call_soon, loop.post, CHANGE)
    await loop.executor.ends()
    assert loop.told == [SET, CHANGE, END]


async def test_a_timer_that_is_overdue_fires_at_once(loop: Loop) -> None:
    loop.scripted.script = lambda event: (
        [Checkpoint("last")] if isinstance(event, TimerFired) else [SetTimer("one", 0.0)]
    )
    later: list[str] = []
    loop.post(SET)
    asyncio.get_running_loop().call_later(0.5, later.append, "half a second")
    await loop.executor.ends()
    assert later == []


async def test_timers_that_are_replaced_do_not_pile_up(loop: Loop) -> None:
    def waiting() -> int:
        found = (one for one in gc.get_objects() if type(one) is asyncio.TimerHandle)
        return sum(not one.cancelled() for one in found)

    loop.scripted.script = lambda event: [Checkpoint("last")] if event == LAST else [SetTimer("lease", 1e9)]
    gc.collect()
    before = waiting()
    loop.post_all(*[SnapshotAsked("again")] * 100, LAST)
    await loop.executor.ends()
    assert waiting() - before == 1


async def test_others_get_a_turn_after_256_events(loop: Loop) -> None:
    loop.post_all(*[SnapshotAsked("one")] * 257)
    await asyncio.sleep(0)
    assert len(loop.told) == 256
    loop.post(LAST)
    await loop.executor.ends()
    assert len(loop.told) == 258


async def test_events_before_the_start_wait_for_it_and_later_ones_do_not(idle: Loop) -> None:
    idle.post(SET)
    await asyncio.sleep(0)
    assert idle.told == []
    idle.start(idle.executor)
    await asyncio.sleep(0)
    assert idle.told == [SET]
    idle.post(LAST)
    await asyncio.sleep(0)
    assert idle.told == [SET, LAST]


async def test_after_the_stop_no_event_is_processed_and_no_timer_fires(loop: Loop) -> None:
    loop.scripted.script = lambda _: [SetTimer("due", 0.0)]
    loop.post(SET)
    await asyncio.sleep(0)
    loop.post(LAST)
    loop.stop()
    loop.post(LAST)
    await turns()
    assert loop.told == [SET]


async def test_an_event_that_the_executor_drops_is_neither_told_nor_on_the_tape(loop: Loop, tmp_path: Path) -> None:
    loop.executor.dropped = LearnerAlive
    loop.post_all(LearnerAlive("a/b/0", 1), LAST)
    await loop.executor.ends()
    assert loop.told == [LAST]
    assert [type(entry.event).__name__ for entry in entries(tmp_path)] == ["SnapshotAsked"]


async def test_after_a_fault_nothing_goes_on_and_the_first_one_stays(loop: Loop) -> None:
    loop.post(SnapshotAsked("bad"))
    await asyncio.sleep(0)
    loop.fail(OSError("a later one"))
    loop.post(LAST)
    await turns()
    assert loop.told == [SnapshotAsked("bad")]
    assert loop.executor.done == [Checkpoint("bad")]
    assert isinstance(loop.failed.exception(), RuntimeError)
