"""Events reach the engine in order, their actions the executor in order, and timers are those the engine last set."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diloco.core.actions import Action, CancelTimer, Note, SetTimer
from diloco.core.events import Event, LearnerAlive, SnapshotAsked, TimerFired
from diloco.syncer.engine_loop import EngineLoop
from diloco.tape.limits import TapeLimits
from diloco.tape.reader import TapeEntry, TapeHeader, TapeReader
from diloco.tape.segments import find_tapes
from diloco.tape.writer import TapeWriter

HEADER = TapeHeader(job={}, layout="", epoch=1, base_checkpoint="", record=False, engine={}, started_at=0.0)


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
        """Wait until it is told ``Note("last", ...)``."""
        async with asyncio.timeout(30):
            await self.idle.wait()

    def before(self, event: Event) -> bool:
        return not isinstance(event, self.dropped)

    def carry_out(self, action: Action, now: float) -> None:
        del now
        self.done.append(action)
        # The header is a line too.
        self.on_tape_then.append((self.directory / "000001.jsonl").read_bytes().count(b"\n") - 1)
        if isinstance(action, Note) and action.subject == "last":
            self.idle.set()
        if isinstance(action, Note) and action.subject == "bad":
            raise RuntimeError("a fault")


def entries(directory: Path) -> list[TapeEntry]:
    (files,) = find_tapes(directory)
    return [entry for entry in TapeReader(files) if isinstance(entry, TapeEntry)]


LAST = SnapshotAsked("last")


def echo(event: Event) -> list[Action]:
    match event:
        case SnapshotAsked(reason):
            return [Note(reason, "")]
        case LearnerAlive(learner):
            return [Note("alive", learner), Note("again", learner)]
    return []


@contextmanager
def looping(
    directory: Path, script: Callable[[Event], list[Action]] = echo, *, start: bool = True
) -> Iterator[tuple[ScriptedEngine, EngineLoop, Executor]]:
    tape = TapeWriter(directory, HEADER, TapeLimits())
    engine, executor = ScriptedEngine(script), Executor(directory)
    engine_loop = EngineLoop(engine, tape, asyncio.get_running_loop().time)  # type: ignore[arg-type]
    if start:
        engine_loop.start(executor)
    yield engine, engine_loop, executor
    engine_loop.stop()
    tape.close()


def run(directory: Path, script: Callable[[Event], list[Action]], *events: Event) -> tuple[Executor, EngineLoop]:
    """Drive a scripted engine until it says ``Note("last", ...)`` or fails."""

    async def main() -> tuple[Executor, EngineLoop]:
        with looping(directory, script) as (_, engine_loop, executor):
            for event in events:
                engine_loop.post(event)
            idle = asyncio.ensure_future(executor.ends())
            ends: set[asyncio.Future[Any]] = {idle, engine_loop.failed}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            idle.cancel()
            return executor, engine_loop

    return asyncio.run(main())


def test_order_is_kept_and_decisions_are_on_the_tape_before_they_are_done(tmp_path: Path) -> None:
    executor, engine_loop = run(tmp_path, echo, *(LearnerAlive(f"a/b/{i}", 1) for i in range(600)), LAST)
    alive = [action.reason for action in executor.done if isinstance(action, Note) and action.subject == "alive"]
    assert alive == [f"a/b/{i}" for i in range(600)]
    assert all(written >= index // 2 + 1 for index, written in enumerate(executor.on_tape_then))
    assert engine_loop.events == 601


def test_a_timer_fires_once_under_its_name(tmp_path: Path) -> None:
    def script(event: Event) -> list[Action]:
        if isinstance(event, TimerFired):
            return [Note("last", event.name)]
        return [SetTimer("one", 0.0), SetTimer("never", 1e9)]

    executor, _ = run(tmp_path, script, LAST)
    assert executor.done == [Note("last", "one")]


def test_a_timer_that_is_replaced_or_cancelled_does_not_fire_even_when_due(tmp_path: Path) -> None:
    fired: list[str] = []

    def script(event: Event) -> list[Action]:
        match event:
            case TimerFired(name):
                fired.append(name)
                return [Note("last", "")] if name == "end" else []
            case SnapshotAsked("set"):
                return [SetTimer("replaced", 0.0), SetTimer("cancelled", 0.0)]
        return [SetTimer("replaced", 1e9), CancelTimer("cancelled"), SetTimer("end", 0.0)]

    run(tmp_path, script, SnapshotAsked("set"), SnapshotAsked("change"))
    assert fired == ["end"]


def test_a_fired_timer_that_is_replaced_or_cancelled_is_ignored(tmp_path: Path) -> None:
    async def main() -> list[Event]:
        with looping(tmp_path) as (engine, engine_loop, executor):
            answers: dict[Event, list[Action]] = {
                SnapshotAsked("set"): [SetTimer("replaced", 0.0), SetTimer("cancelled", 0.0)],
                SnapshotAsked("change"): [SetTimer("replaced", 1e9), CancelTimer("cancelled"), SetTimer("end", 0.0)],
                TimerFired("end"): [Note("last", "")],
            }
            engine.script = lambda event: answers.get(event, [])
            engine_loop.post(SnapshotAsked("set"))
            # After the timers are set, and before what the next turn of the loop finds due: they come after it.
            asyncio.get_running_loop().call_soon(
                lambda: asyncio.get_running_loop().call_soon(engine_loop.post, SnapshotAsked("change"))
            )
            await executor.ends()
            return engine.told

    assert asyncio.run(main()) == [SnapshotAsked("set"), SnapshotAsked("change"), TimerFired("end")]


def test_a_timer_that_is_overdue_fires_at_once(tmp_path: Path) -> None:
    def script(event: Event) -> list[Action]:
        return [Note("last", "")] if isinstance(event, TimerFired) else [SetTimer("one", 0.0)]

    async def main() -> list[str]:
        with looping(tmp_path, script) as (_, engine_loop, executor):
            later: list[str] = []
            engine_loop.post(SnapshotAsked("set"))
            asyncio.get_running_loop().call_later(0.5, later.append, "half a second")
            await executor.ends()
            return later

    assert asyncio.run(main()) == []


def test_timers_that_are_replaced_do_not_pile_up(tmp_path: Path) -> None:
    def script(event: Event) -> list[Action]:
        return [Note("last", "")] if event == LAST else [SetTimer("lease", 1e9)]

    def waiting() -> int:
        found = (one for one in gc.get_objects() if type(one) is asyncio.TimerHandle)
        return sum(not one.cancelled() for one in found)

    async def main() -> int:
        with looping(tmp_path, script) as (_, engine_loop, executor):
            gc.collect()
            before = waiting()
            for _ in range(100):
                engine_loop.post(SnapshotAsked("again"))
            engine_loop.post(LAST)
            await executor.ends()
            return waiting() - before

    assert asyncio.run(main()) == 1


def test_others_get_a_turn_after_256_events(tmp_path: Path) -> None:
    async def main() -> tuple[int, int]:
        with looping(tmp_path) as (engine, engine_loop, executor):
            for _ in range(257):
                engine_loop.post(SnapshotAsked("one"))
            await asyncio.sleep(0)
            first = len(engine.told)
            engine_loop.post(LAST)
            await executor.ends()
            return first, len(engine.told)

    assert asyncio.run(main()) == (256, 258)


def test_events_before_the_start_wait_for_it_and_later_ones_do_not(tmp_path: Path) -> None:
    async def main() -> list[Event]:
        with looping(tmp_path, start=False) as (engine, engine_loop, executor):
            engine_loop.post(SnapshotAsked("early"))
            await asyncio.sleep(0)
            assert engine.told == []
            engine_loop.start(executor)
            await asyncio.sleep(0)
            assert engine.told == [SnapshotAsked("early")]
            engine_loop.post(LAST)
            await asyncio.sleep(0)
            return engine.told

    assert asyncio.run(main()) == [SnapshotAsked("early"), LAST]


def test_after_the_stop_no_event_is_processed_and_no_timer_fires(tmp_path: Path) -> None:
    async def main() -> list[Event]:
        with looping(tmp_path) as (engine, engine_loop, _):
            engine.script = lambda _: [SetTimer("due", 0.0)]
            engine_loop.post(SnapshotAsked("set"))
            await asyncio.sleep(0)
            engine_loop.post(LAST)
            engine_loop.stop()
            engine_loop.post(LAST)
            for _ in range(10):
                await asyncio.sleep(0)
            return engine.told

    assert asyncio.run(main()) == [SnapshotAsked("set")]


def test_an_event_that_the_executor_drops_is_neither_told_nor_on_the_tape(tmp_path: Path) -> None:
    async def main() -> list[Event]:
        with looping(tmp_path) as (engine, engine_loop, executor):
            executor.dropped = LearnerAlive
            engine_loop.post(LearnerAlive("a/b/0", 1))
            engine_loop.post(LAST)
            await executor.ends()
            return engine.told

    assert asyncio.run(main()) == [LAST]
    assert [type(entry.event).__name__ for entry in entries(tmp_path)] == ["SnapshotAsked"]


def test_a_fault_ends_it_and_is_there_for_whoever_waits(tmp_path: Path) -> None:
    executor, engine_loop = run(tmp_path, echo, SnapshotAsked("bad"), LAST)
    assert isinstance(engine_loop.failed.exception(), RuntimeError)
    assert executor.done == [Note("bad", "")]


def test_after_a_fault_nothing_goes_on_and_the_first_one_stays(tmp_path: Path) -> None:
    async def main() -> tuple[list[Event], BaseException | None]:
        with looping(tmp_path) as (engine, engine_loop, _):
            engine_loop.post(SnapshotAsked("bad"))
            await asyncio.sleep(0)
            engine_loop.fail(OSError("a later one"))
            engine_loop.post(LAST)
            for _ in range(10):
                await asyncio.sleep(0)
            return engine.told, engine_loop.failed.exception()

    told, fault = asyncio.run(main())
    assert told == [SnapshotAsked("bad")]
    assert isinstance(fault, RuntimeError)
