"""The syncer in virtual time: carries out the engine's actions on fragments in memory.

It makes no decisions, and has no sockets, disk or threads; a message is a callback that the learner's connection
delivers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from diloco.core.engine.actions import (
    Action,
    Admit,
    AskFragment,
    Broadcast,
    CancelTimer,
    Discard,
    Evaluate,
    Fence,
    Finish,
    Merge,
    Refuse,
    SetTimer,
)
from diloco.core.engine.engine import Engine, EngineOptions, Progress
from diloco.core.engine.events import Event, FragmentArrived, LearnerJoined, LearnerLeft, Merged, TimerFired
from diloco.core.value import value
from diloco.simulate.network.clock import VirtualClock
from diloco.simulate.network.link import Connection
from diloco.simulate.training.work import GlobalModel, Payload
from diloco.spec.status.engine import EngineStatus

if TYPE_CHECKING:
    from torch import Tensor


@value
class FragmentNews:
    """A new version can be pulled. A learner whose outer gradient is in it, and that has posted a pull, gets none."""

    fragment: int
    version: int
    merged: bool
    """Whether the receiver's outer gradient is in it."""


STARTED: Final = "started"
"""Change of a process: it runs."""


class Observer(Protocol):
    """Is told what happens in a run."""

    def begins(self, engine: Engine) -> None:
        """The run begins; the engine may be read at any time."""

    def passed(self, event: Event, actions: Sequence[Action], now: float) -> None:
        """The engine has received an event and ordered these actions."""

    def process(self, learner: str, now: float, change: str) -> None:
        """A learner's process runs (``STARTED``), or has ended (any other text, which says why)."""


Order = Admit | Refuse | Fence | AskFragment | FragmentNews | Evaluate | Finish


class LearnerLine:
    """The syncer's end of a learner's connection."""

    def __init__(self, connection: Connection, receive: Callable[[Order, float], None]) -> None:
        self._connection = connection
        self._receive = receive

    def tell(self, order: Order, progress: float) -> None:
        """Send ``order`` and the job's progress, merged tokens over the budget."""
        self._connection.send_back(partial(self._receive, order, progress))


@value
class PostedPull:
    """A pull that waits for the version that it is for."""

    arrives_at: float
    """When the syncer has it."""
    serve: Callable[[], None]
    connection: Connection


@value
class Pulled:
    """What a learner receives."""

    version: int
    values: "Tensor"
    """f32; never written to again."""
    size_bytes: int
    """Of the transfer."""
    progress: float
    """Of the job: merged tokens over the budget."""


@dataclass
class Counts:
    """Counts over a run."""

    merges: int = 0
    members: int = 0
    """Outer gradients merged."""
    discarded: int = 0
    """Outer gradients that arrived and were dropped."""

    @property
    def members_per_merge(self) -> float:
        """Mean number of learners in a merge."""
        return self.members / self.merges if self.merges else 0.0


class SimulatedSyncer:
    """Engine, global model, and the received payloads."""

    def __init__(
        self,
        options: EngineOptions,
        model: GlobalModel,
        clock: VirtualClock,
        merge_seconds: Callable[[Merge], float],
        observer: Observer | None = None,
    ) -> None:
        """``merge_seconds``: how long a merge takes."""
        self._clock = clock
        self._merge_seconds = merge_seconds
        self._merges_until = 0.0
        """When the merges that were ordered so far are made, one after the other."""
        self._engine = Engine(options, epoch=1)
        self._observer = observer
        if observer is not None:
            observer.begins(self._engine)
        self._model = model
        self._payloads: dict[tuple[str, int, int, int, int], Payload] = {}
        """By learner, incarnation, fragment, version and attempt, as in the real syncer's inbox."""
        self._posted: dict[tuple[int, int], dict[str, PostedPull]] = {}
        """By fragment and version, then by learner."""
        self._timers: dict[str, int] = {}
        self._timers_set = 0
        self._joining: dict[tuple[str, str], LearnerLine] = {}
        self._lines: dict[tuple[str, int], LearnerLine] = {}
        self._progress = 0.0
        self.counts = Counts()
        self.finish: Finish | None = None

    @property
    def progress(self) -> Progress:
        """How far the job is."""
        return self._engine.progress

    def view(self) -> EngineStatus:
        """The engine's current state."""
        return self._engine.view(self._clock.now)

    def join(self, event: LearnerJoined, line: LearnerLine) -> None:
        """A learner has opened a session."""
        self._joining[event.learner, event.instance] = line
        self.feed(event)

    def over(self, line: LearnerLine, *, clean: bool = False) -> None:
        """A session's connection has broken, or the learner has left (``clean``)."""
        for (learner, incarnation), held in list(self._lines.items()):
            if held is line:
                del self._lines[learner, incarnation]
                self.feed(LearnerLeft(learner, incarnation, clean=clean))

    def push(self, event: FragmentArrived, payload: Payload) -> None:
        """A complete outer gradient has arrived."""
        self._payloads[event.learner, event.incarnation, event.fragment, event.version, event.attempt] = payload
        self.feed(event)

    def pull(self, fragment: int, held_version: int | None) -> Pulled:
        """The current version of a fragment."""
        size_bytes = self._model.pull_bytes(fragment, held_version)
        return Pulled(self._engine.versions[fragment], self._model.values(fragment), size_bytes, self._progress)

    def post(self, learner: str, fragment: int, version: int, posted: PostedPull) -> None:
        """Serve a pull as soon as it is here and the fragment is at ``version``."""
        if self._engine.versions[fragment] >= version:
            self._clock.at(posted.arrives_at, posted.serve, posted.connection)
        else:
            self._posted.setdefault((fragment, version), {})[learner] = posted

    def feed(self, event: Event) -> None:
        """Pass an event to the engine and carry out its actions."""
        actions = self._engine.step(event, self._clock.now)
        if self._observer is not None:
            self._observer.passed(event, actions, self._clock.now)
        for action in actions:
            self._act(action)

    def _act(self, action: Action) -> None:  # noqa: C901 - a table of actions
        match action:
            case Admit():
                line = self._joining.pop((action.learner, action.instance))
                self._lines[action.learner, action.incarnation] = line
                line.tell(action, self._progress)
            case Refuse():
                self._joining.pop((action.learner, action.instance)).tell(action, self._progress)
            case Fence():
                self._tell(action.learner, action.incarnation, action)
                self._lines.pop((action.learner, action.incarnation), None)
            case AskFragment() | Evaluate():
                self._tell(action.learner, action.incarnation, action)
            case Merge():
                seconds = self._merge_seconds(action)
                self._merges_until = max(self._merges_until, self._clock.now) + seconds
                self._clock.at(self._merges_until, lambda: self._merge(action, seconds))
            case Discard():
                self.counts.discarded += 1
                key = (action.learner, action.incarnation, action.fragment, action.version, action.attempt)
                self._payloads.pop(key, None)
            case Broadcast():
                self._announce(action)
            case SetTimer():
                self._set_timer(action)
            case CancelTimer():
                self._timers.pop(action.name, None)
            case Finish():
                self.finish = action
                self._clock.stop()
                for line in self._lines.values():
                    line.tell(action, self._progress)
            case _:  # Checkpoint: nothing outlives this process; Note: nothing is to be done
                pass

    def _announce(self, action: Broadcast) -> None:
        """Serve the pulls that wait for a version, and tell the other learners, or that it is without their work."""
        posted = self._posted.pop((action.fragment, action.version), {})
        news = [FragmentNews(action.fragment, action.version, merged) for merged in (False, True)]
        for learner, incarnation, merged in action.learners:
            pull = posted.get(learner)
            if pull is None or not pull.connection.open or not merged:
                self._tell(learner, incarnation, news[merged])
            if pull is None or not pull.connection.open:
                continue
            if pull.arrives_at <= self._clock.now:
                pull.serve()
            else:
                self._clock.at(pull.arrives_at, pull.serve, pull.connection)

    def _tell(self, learner: str, incarnation: int, order: Order) -> None:
        line = self._lines.get((learner, incarnation))
        if line is not None:
            line.tell(order, self._progress)

    def _set_timer(self, action: SetTimer) -> None:
        self._timers_set += 1
        ticket = self._timers_set
        self._timers[action.name] = ticket

        def fire() -> None:
            if self._timers.get(action.name) == ticket:
                del self._timers[action.name]
                self.feed(TimerFired(action.name))

        self._clock.at(action.at, fire)

    def _merge(self, order: Merge, seconds: float) -> None:
        payloads = {
            member.learner: self._payloads.pop(
                (member.learner, member.incarnation, order.fragment, order.version, member.attempt)
            )
            for member in order.members
        }
        made = self._model.merge(order, payloads)
        self.counts.merges += 1
        self.counts.members += len(order.members)
        self.feed(
            Merged(
                order.fragment,
                order.version,
                made.digest,
                seconds,
                failed=made.failed,
                left_out=made.left_out,
                cosines=made.cosines,
            )
        )
        progress = self._engine.progress
        self._progress = progress.merged_tokens / progress.budget_tokens
