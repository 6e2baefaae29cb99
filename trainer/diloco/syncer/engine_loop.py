"""Passes events to the engine one at a time, in the order they came, and its actions to an executor.

Everything runs on the event loop without waiting: a posted event is processed soon after, in a batch with others. What
the engine decided is on the tape before any of it is carried out. Timers are kept here, because the engine has no
clock.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from diloco.core.engine.actions import Action, CancelTimer, SetTimer
from diloco.core.engine.engine import Engine
from diloco.core.engine.events import Event, TimerFired
from diloco.tape.writer import TapeWriter

_BATCH_EVENTS = 256
"""After this many events, other tasks on the event loop get a turn."""


class Executor(Protocol):
    """Carries actions out."""

    def commit(self, event: Event) -> bool:
        """Called before the engine receives ``event``, for state that must change with it. False: drop the event."""
        ...

    def carry_out(self, action: Action, now: float) -> None:
        """Do what the engine ordered, or start it. Called in the order of the actions, never for timers."""
        ...


class _Timer:
    handle: asyncio.TimerHandle

    def __init__(self, name: str) -> None:
        self.name = name


class EngineLoop:
    """Passes events to an engine and its actions to an executor. Owned by the event loop."""

    def __init__(self, engine: Engine, tape: TapeWriter, clock: Callable[[], float]) -> None:
        """Drive ``engine``; ``clock`` returns seconds and never goes back."""
        self.engine = engine
        self._tape = tape
        self._clock = clock
        self._executor: Executor | None = None
        self._queue: deque[Event | _Timer] = deque()
        self._timers: dict[str, _Timer] = {}
        self._drain_due = False
        self._stopped = False
        self.events = 0
        """Number of processed events, without timers."""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets an exception when the engine or the executor fails: the state can no longer be relied on."""

    def start(self, executor: Executor) -> None:
        """Start processing events."""
        self._executor = executor
        self._schedule()

    def now(self) -> float:
        """The engine's clock, in seconds."""
        return self._clock()

    def post(self, event: Event) -> None:
        """Process an event soon."""
        self._queue.append(event)
        self._schedule()

    def stop(self) -> None:
        """Process no more events."""
        self._stopped = True

    def fail(self, error: BaseException) -> None:
        """Report an error after which the state cannot be relied on."""
        self.stop()
        if not self.failed.done():
            self.failed.set_exception(error)

    @property
    def broken(self) -> bool:
        """Whether the engine or the executor has failed."""
        return self.failed.done() and not self.failed.cancelled()

    def _schedule(self) -> None:
        if not self._drain_due and self._executor is not None:
            self._drain_due = True
            asyncio.get_running_loop().call_soon(self._drain)

    def _drain(self) -> None:
        self._drain_due = False
        if self._stopped:
            return
        try:
            self._take_batch()
        except Exception as error:  # noqa: BLE001  # any error must end the process
            self.fail(error)
            return
        if self._queue:
            self._schedule()

    def _take_batch(self) -> None:
        assert self._executor is not None
        ordered: list[tuple[Action, float]] = []
        for _ in range(_BATCH_EVENTS):
            if not self._queue:
                break
            event = self._next_event()
            if event is None or not self._executor.commit(event):
                continue
            now = self._clock()
            actions = self.engine.step(event, now)
            self._tape.append(now, event, actions)
            self.events += not isinstance(event, TimerFired)
            for action in actions:
                if isinstance(action, SetTimer):
                    self._set_timer(action)
                elif isinstance(action, CancelTimer):
                    self._cancel_timer(action.name)
                else:
                    ordered.append((action, now))
        self._tape.flush()
        for action, now in ordered:
            self._executor.carry_out(action, now)

    def _next_event(self) -> Event | None:
        queued = self._queue.popleft()
        if not isinstance(queued, _Timer):
            return queued
        # A timer that was replaced or cancelled after it fired, but before its event was processed, must be ignored.
        return TimerFired(queued.name) if self._timers.get(queued.name) is queued else None

    def _set_timer(self, action: SetTimer) -> None:
        self._cancel_timer(action.name)
        loop = asyncio.get_running_loop()
        delay = max(0.0, action.at - self._clock())
        timer = _Timer(action.name)
        timer.handle = loop.call_later(delay, self._fired, timer)
        self._timers[action.name] = timer

    def _cancel_timer(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.handle.cancel()

    def _fired(self, timer: _Timer) -> None:
        self._queue.append(timer)
        self._schedule()
