"""Drives the engine in virtual time: a test decides what happens when, and checks the actions."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from diloco.core.account.time_spent import TimeSpent
from diloco.core.engine.actions import Action, Admit, AskFragment, CancelTimer, Evaluate, Merge, SetTimer
from diloco.core.engine.engine import Engine
from diloco.core.engine.events import (
    Cosine,
    Evaluated,
    Event,
    FragmentApplied,
    FragmentArrived,
    FragmentDeclined,
    LearnerAlive,
    LearnerJoined,
    LearnerLeft,
    LearnerReady,
    LearnersPlanned,
    LeftOut,
    Merged,
    StepReported,
    TimerFired,
)
from diloco.core.engine.options import EngineOptions
from diloco.core.engine.rounds.schedule import Schedule
from diloco.core.engine.state import EngineState
from diloco.spec.status.engine import EngineStatus, LearnerStatus

A = TypeVar("A", bound=Action)

POOL = "here/pool"
TOKENS_PER_STEP = 100
BEGIN = 1000.0
"""When a script's clock starts."""


def options(learners: int = 3, fragments: int = 4, **changes: Any) -> EngineOptions:
    """Options with P = H, so that every inner step makes one syncer step due."""
    chosen: dict[str, Any] = {
        "schedule": Schedule(fragments, changes.pop("interval", fragments), changes.pop("overlap", 2)),
        "overlap_limit": changes.pop("overlap_limit", None),
        "learners": tuple(f"{POOL}/{index}" for index in range(learners)),
        "pools": (POOL,),
        "shares": (1 / fragments,) * fragments,
        "quorum": 1,
        "grace_safety": 0.5,
        "grace_maximum_seconds": None,
        "token_weights": True,
        "max_version_lag": 1,
        "max_staleness_steps": 4 * fragments + 2,
        "lease_seconds": 10.0,
        "startup_seconds": 60.0,
        "budget_tokens": 10**9,
        "evaluate_every_tokens": 10**9,
        "max_restarts": None,
        "minimum_learners": 0,
    }
    chosen["overlap_limit"] = chosen["overlap_limit"] or chosen["schedule"].overlap
    return EngineOptions(**(chosen | changes))


def name(index: int) -> str:
    return f"{POOL}/{index}"


class Script:
    """An engine, its clock, its timers and everything it ordered."""

    def __init__(
        self, chosen: EngineOptions, *, epoch: int = 1, saved: dict[str, Any] | None = None, begun: bool = True
    ) -> None:
        """``begun``: merging has begun, and counts, although nobody has joined."""
        self.engine = Engine(chosen, epoch, saved)
        if begun and saved is None:
            self.state.begun = self.state.confirmed = True
        self.options = chosen
        self.now = BEGIN
        self.timers: dict[str, float] = {}
        self.log: list[tuple[float, Action]] = []
        self.incarnations: dict[int, int] = {}
        self.steps: dict[int, int] = {}
        self.tokens: dict[int, int] = {}
        self.asks: dict[tuple[int, int], AskFragment] = {}
        self.spent: dict[int, TimeSpent] = {}
        self.pushed: dict[int, FragmentArrived] = {}
        """By learner: what it pushed last."""

    def do(self, event: Event) -> list[Action]:
        actions = self.engine.step(event, self.now)
        for action in actions:
            self.log.append((self.now, action))
            match action:
                case SetTimer():
                    self.timers[action.name] = action.at
                case CancelTimer():
                    self.timers.pop(action.name, None)
                case AskFragment():
                    self.asks[int(action.learner.rsplit("/", 1)[1]), action.fragment] = action
                case _:
                    pass
        return actions

    def wait(self, seconds: float) -> list[Action]:
        """Let time pass; timers fire when they are due."""
        end = self.now + seconds
        actions: list[Action] = []
        while self.timers and min(self.timers.values()) <= end:
            first = min(self.timers, key=lambda timer: self.timers[timer])
            self.now = max(self.now, self.timers.pop(first))
            actions += self.do(TimerFired(first))
        self.now = end
        return actions

    def join(self, index: int, instance: str = "", versions: tuple[int, ...] = (), **known: int) -> list[Action]:
        steps, position = known.get("steps", 0), known.get("data_position", 0)
        if instance:
            self.spent.pop(index, None)
        actions = self.do(LearnerJoined(name(index), instance or f"process-{index}", versions, steps, position))
        for admitted in of(actions, Admit):
            self.incarnations[index] = admitted.incarnation
            self.steps[index] = admitted.steps
            self.tokens.pop(index, None)
        return actions

    def start(self, *indices: int) -> None:
        """Learners join and begin to train."""
        for index in indices:
            self.begin(index)

    def begin(self, index: int, instance: str = "", versions: tuple[int, ...] = (), **known: int) -> list[Action]:
        """A learner joins and begins to train; returns what follows from that it trains."""
        self.join(index, instance, versions, **known)
        return self.ready(index)

    def rejoin(self, index: int, instance: str = "", versions: tuple[int, ...] = (), **known: int) -> list[Action]:
        """Its session ends, and it begins again."""
        self.leave(index)
        return self.begin(index, instance, versions, **known)

    def ready(self, index: int) -> list[Action]:
        return self.do(LearnerReady(name(index), self.incarnations[index]))

    def step(
        self,
        index: int,
        count: int = 1,
        seconds: float = 1.0,
        spent: TimeSpent | None = None,
        tokens: int | None = None,
    ) -> list[Action]:
        """A learner reports that it has made ``count`` more steps; unless told, it has spent its time on these."""
        self.steps[index] += count
        more = count * TOKENS_PER_STEP if tokens is None else tokens
        self.tokens[index] = self.tokens.get(index, TOKENS_PER_STEP * (self.steps[index] - count)) + more
        before = self.spent.get(index, TimeSpent())
        self.spent[index] = spent or replace(before, training=before.training + max(0, count) * seconds)
        step = self.steps[index]
        mine = (name(index), self.incarnations[index], step, self.tokens[index])
        return self.do(StepReported(*mine, seconds, 2.0, step, self.spent[index]))

    def push(self, index: int, fragment: int, **changes: Any) -> list[Action]:
        """A learner answers the latest request for a fragment."""
        ask = self.asks[index, fragment]
        steps = changes.pop("steps", 4)
        arrival: dict[str, Any] = {
            "learner": name(index),
            "incarnation": ask.incarnation,
            "fragment": fragment,
            "version": ask.version,
            "attempt": ask.attempt,
            "base_version": ask.version - 1,
            "steps": steps,
            "tokens": steps * TOKENS_PER_STEP,
            "payload_bytes": 64,
            "digest": f"{index:032x}",
        }
        self.pushed[index] = FragmentArrived(**(arrival | changes))
        return self.do(self.pushed[index])

    def decline(self, index: int, fragment: int) -> list[Action]:
        ask = self.asks[index, fragment]
        return self.do(FragmentDeclined(name(index), ask.incarnation, fragment, ask.version, ask.attempt))

    def merge_done(
        self,
        merge: Merge,
        *,
        applied: bool = True,
        left_out: tuple[LeftOut, ...] = (),
        cosines: tuple[Cosine, ...] = (),
    ) -> list[Action]:
        """A merge ends; its members train on the result at once, or not yet."""
        failed = bool(merge.members) and len(left_out) == len(merge.members)
        told = Merged(merge.fragment, merge.version, "0" * 32, 0.01, failed, left_out, cosines)
        actions = self.do(told)
        for member in merge.members if applied and actions else ():
            index = int(member.learner.rsplit("/", 1)[1])
            actions += self.applied(index, merge.fragment, merge.version)
        return actions

    def applied(self, index: int, fragment: int, version: int, step: int = 0) -> list[Action]:
        return self.do(FragmentApplied(name(index), self.incarnations[index], fragment, version, step))

    def evaluated(self, loss: float = 2.0, *, exact: bool = True) -> list[Action]:
        """The learner with the latest order to evaluate answers."""
        order = self.all(Evaluate)[-1]
        return self.do(Evaluated(order.learner, order.incarnation, order.evaluation, loss, exact))

    def alive(self, index: int) -> list[Action]:
        """A learner says that it is there, and nothing else."""
        return self.do(LearnerAlive(name(index), self.incarnations[index]))

    def plan(self, *indices: int) -> list[Action]:
        """These learners are planned from now on, and no others."""
        return self.do(LearnersPlanned(tuple(map(name, indices)), (POOL,)))

    def leave(self, index: int, *, clean: bool = False) -> list[Action]:
        return self.do(LearnerLeft(name(index), self.incarnations[index], clean))

    def restarted(self, chosen: EngineOptions | None = None) -> "Script":
        """The syncer's next process, which resumes from a checkpoint of this moment."""
        saved = json.loads(json.dumps(self.engine.snapshot(self.now)))
        return Script(chosen or self.options, epoch=2, saved=saved)

    @property
    def state(self) -> EngineState:
        return self.engine._state

    @property
    def view(self) -> EngineStatus:
        return self.engine.view(self.now)

    def learner(self, index: int) -> LearnerStatus:
        return next(one for one in self.view.learners if one.id == name(index))

    def all(self, kind: type[A], where: Callable[[A], bool] = lambda _: True) -> list[A]:
        """Every action of a kind so far."""
        return [action for _, action in self.log if isinstance(action, kind) and where(action)]


def started(learners: int = 3, **changes: Any) -> Script:
    """All learners train."""
    script = Script(options(learners, **changes))
    script.start(*range(learners))
    return script


def launched(learners: int, *ready: int, **changes: Any) -> Script:
    """All learners train, and these have made a step: by default the first fragment is requested."""
    script = started(learners, **changes)
    for index in ready:
        script.step(index)
    return script


def stepped(learners: int = 2, **changes: Any) -> Script:
    """All learners have made a step."""
    return launched(learners, *range(learners), **changes)


def training(learners: int, **changes: Any) -> Script:
    """All learners have made a step, and none evaluates: leases run."""
    script = started(learners, **changes)
    script.evaluated()
    for index in range(learners):
        script.step(index)
    return script


def merged_at_once(script: Script, actions: Sequence[Action]) -> int:
    """Answer every request and finish every merge; returns the number of merges."""
    merges = 0
    while asks := of(actions, AskFragment):
        following: list[Action] = []
        for ask in asks:
            following += script.push(int(ask.learner[-1]), ask.fragment)
        for merge in of(following, Merge):
            merges += 1
            following += script.merge_done(merge)
        actions = following
    return merges


def members(actions: Sequence[Action]) -> list[list[str]]:
    """The members of every merge that was ordered."""
    return [[member.learner for member in merge.members] for merge in of(actions, Merge)]


def of(actions: Sequence[Action], kind: type[A]) -> list[A]:
    return [action for action in actions if isinstance(action, kind)]


def only(actions: Sequence[Action], kind: type[A]) -> A:
    found = of(actions, kind)
    assert len(found) == 1, f"one {kind.__name__} expected in {actions}"
    return found[0]
