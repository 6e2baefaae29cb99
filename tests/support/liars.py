"""Jobs in virtual time in which learners say anything: what it costs the others, beside the real syncer's checks.

A liar does not train. It answers every request at once, and it knows the rules: it stays below whatever is refused.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf

from diloco.core.engine.actions import Admit, AskFragment, Evaluate, Fence, Merge
from diloco.core.engine.engine import Engine
from diloco.core.engine.events import (
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
    StepReported,
)
from diloco.core.engine.options import EngineOptions, pool_terms
from diloco.core.engine.state import EngineState
from diloco.simulate.learner import Disk, SimulatedLearner
from diloco.simulate.network.clock import VirtualClock
from diloco.simulate.network.session import Environment, Identity
from diloco.simulate.scenario import Profile
from diloco.simulate.syncer import FragmentNews, Order, SimulatedSyncer, Tell
from diloco.simulate.training.counted import counted_work, layout_of_sizes
from diloco.simulate.training.work import Payload
from diloco.spec import JobSpec
from diloco.syncer.peers.admission import Admission
from diloco.syncer.peers.claims import ClaimError, ClaimLimits, Claims
from diloco.wire.messages import PushHeader
from tests.support.small_job import named_job, small_job

TOKENS_PER_STEP = 64
STEP_SECONDS = 0.5
FRAGMENTS, INTERVAL = 4, 8


@dataclass(frozen=True, slots=True)
class Lies:
    """What a learner says. The defaults are the truth about one that is as fast as the others."""

    times: float = 1.0
    """Steps that it claims for each that it had time for."""
    every_seconds: float = STEP_SECONDS
    """Between two reports."""
    bursts: int = 1
    """It reports nothing new but at one in so many reports."""
    step_seconds: float = STEP_SECONDS
    """How long it says that a step takes."""
    tokens: float = 1.0
    """Share of its steps' tokens that it reports."""
    pushes: str = "claimed"
    """Steps in a push: as ``claimed``, up to the ``bound``, or ``one``."""
    applies: str = "at once"
    """When it says that it trains on what was merged: ``at once``, ``never``, or with a step far ahead, ``later``."""
    declines: int = 0
    """It declines one in so many requests; 0: none."""
    ignores: int = 0
    """It leaves requests unanswered for one in so many versions of a fragment; 0: for none."""
    rejoins_every_seconds: float = inf
    another_process: bool = False
    """Whether it joins as another process each time."""


class CheckedSyncer(SimulatedSyncer):
    """The simulator's syncer behind the checks that the real one makes of ids, steps and tokens."""

    def __init__(self, spec: JobSpec, clock: VirtualClock) -> None:
        self._spec = spec
        layout = layout_of_sizes([1000] * FRAGMENTS)
        self.options = EngineOptions.from_job(named_job("liars", spec), layout)
        self.work = counted_work(spec, layout)
        super().__init__(self.options, self.work.model, clock, merge_seconds=lambda _: 0.01)
        self._guard()
        self._ordered: dict[int, Merge] = {}
        """Merges of this process that were not made yet, by identity: an earlier one may have ordered an equal one."""
        self.weights: dict[str, float] = {}
        """By learner: its weights, added up over all merges."""

    @property
    def state(self) -> EngineState:
        """Of the engine."""
        return self._engine._state

    def _guard(self) -> None:
        limits = ClaimLimits.of(self._spec, self._spec.pools, lambda: self._engine.progress)
        self.claims = Claims(limits, lambda: None, lambda: self._clock.now)
        self.admission = Admission(self._spec.learner_ids)

    def restart(self) -> None:
        """Its next process takes up the job from a checkpoint of this moment; learners must join again."""
        saved = json.loads(json.dumps(self._engine.snapshot(self._clock.now)))
        self._engine = Engine(self.options, epoch=self.state.epoch + 1, saved=saved)
        self._timers.clear()
        self._told.clear()
        self._ordered.clear()
        self._guard()

    def join(self, event: LearnerJoined, tell: Tell) -> None:
        if self.admission.problem_with(event.learner) is None:
            super().join(event, tell)

    def feed(self, event: Event) -> None:
        if isinstance(event, StepReported) and self.state.current(event.learner, event.incarnation) is None:
            return
        if isinstance(event, StepReported):
            event = self.claims.reported(event)
        if isinstance(event, LearnersPlanned):
            self.admission.planned(event.learners)
        super().feed(event)

    def _merge(self, order: Merge, seconds: float) -> None:
        if self._ordered.pop(id(order), None) is not None:  # not of an earlier process
            super()._merge(order, seconds)

    def push(self, event: FragmentArrived, payload: Payload) -> None:
        mine = (event.learner, event.incarnation, event.fragment, event.version, event.attempt, event.base_version)
        self.claims.check_work(PushHeader(*mine, event.steps, event.tokens, "None", event.payload_bytes, "1"))
        super().push(event, payload)

    def _act(self, action: object) -> None:
        if isinstance(action, Admit):
            self.claims.admitted(action)
            self.admission.admitted(action.learner)
        if isinstance(action, Merge):
            self._ordered[id(action)] = action
            for member in action.members:
                self.weights[member.learner] = self.weights.get(member.learner, 0.0) + member.weight
        super()._act(action)  # type: ignore[arg-type]


@dataclass
class Liar:
    """A process that trains on nothing."""

    syncer: CheckedSyncer
    clock: VirtualClock
    learner: str
    lies: Lies
    steps: float = 0.0
    told: int = 0
    tokens: int = 0
    incarnation: int = 0
    refused: list[str] = field(default_factory=list)
    _versions: list[int] = field(default_factory=lambda: [0] * FRAGMENTS)
    _received_at: list[int] = field(default_factory=lambda: [0] * FRAGMENTS)
    _joins: int = 0
    _reports: int = 0
    _asked: int = 0

    def join(self) -> None:
        """Open a session, and another one later."""
        self._joins += 1
        instance = f"liar {self._joins if self.lies.another_process else 0}"
        versions = tuple(self._versions) if self.incarnation and not self.lies.another_process else ()
        self.syncer.join(LearnerJoined(self.learner, instance, versions, self.told, self.told * 4), self._obey)
        if self.lies.rejoins_every_seconds < inf:
            self.clock.after(self.lies.rejoins_every_seconds, self._rejoin)
        if self._joins == 1:
            self._report()

    def _rejoin(self) -> None:
        self._say(LearnerLeft(self.learner, self.incarnation, clean=False))
        self.join()

    def _say(self, event: Event) -> None:
        try:
            if isinstance(event, FragmentArrived):
                self.syncer.push(event, Payload(event.payload_bytes, "", None))
            else:
                self.syncer.feed(event)
        except ClaimError as error:
            self.refused.append(str(error))
            self.syncer.feed(LearnerLeft(self.learner, self.incarnation, clean=False))
            self.join()

    def _report(self) -> None:
        self.clock.after(self.lies.every_seconds, self._report)
        if self.syncer.state.current(self.learner, self.incarnation) is None:
            return
        self._reports += 1
        self.steps += self.lies.times * self.lies.every_seconds / STEP_SECONDS
        if self._reports % self.lies.bursts:
            self._say(LearnerAlive(self.learner, self.incarnation))
            return
        more = int(self.steps) - self.told
        self.told += more
        self.tokens += int(more * TOKENS_PER_STEP * self.lies.tokens)
        seconds = self.lies.step_seconds
        self._say(StepReported(self.learner, self.incarnation, self.told, self.tokens, seconds, 2.0, self.told * 4))

    def _obey(self, order: Order, progress: float) -> None:
        del progress
        match order:
            case Admit():
                self.incarnation = order.incarnation
                self.told = max(self.told, order.steps)
                self.steps = max(self.steps, self.told)
                for fragment in order.load:
                    self._receive(fragment, order.versions[fragment])
                self.clock.after(0.0, lambda: self._say(LearnerReady(self.learner, order.incarnation)))
            case AskFragment():
                self.clock.after(0.0, lambda: self._answer(order))
            case FragmentNews():
                self.clock.after(0.0, lambda: self._receive(order.fragment, order.version))
            case Evaluate():
                self._say(Evaluated(self.learner, self.incarnation, order.evaluation, 2.0, exact=True))
            case Fence():
                self.clock.after(1.0, self.join)
            case _:
                pass

    def _receive(self, fragment: int, version: int) -> None:
        self._versions[fragment], self._received_at[fragment] = version, self.told
        if self.lies.applies != "never":
            ahead = 1000 if self.lies.applies == "later" else 0
            self._say(FragmentApplied(self.learner, self.incarnation, fragment, version, self.told + ahead))

    def _answer(self, order: AskFragment) -> None:
        if self.lies.ignores and order.version % self.lies.ignores == 0:
            return
        self._asked += 1
        mine = (self.learner, order.incarnation, order.fragment, order.version, order.attempt)
        if self.lies.declines and self._asked % self.lies.declines == 0:
            self._say(FragmentDeclined(*mine))
            return
        bound = self.syncer.options.max_staleness_steps
        claimed = min(bound, max(1, self.told - self._received_at[order.fragment]))
        steps = {"claimed": claimed, "bound": bound, "one": 1}[self.lies.pushes]
        base, tokens = self._versions[order.fragment], steps * TOKENS_PER_STEP
        self._say(FragmentArrived(*mine, min(base, order.version - 1), steps, tokens, 4000, "0" * 32))


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended."""

    seconds: float
    merged: dict[str, float]
    """By learner: its tokens that count as merged."""
    merged_tokens: float
    """Of the job."""
    weights: dict[str, float]
    """By learner: its share of all weights."""
    trained: dict[str, int]
    """By honest learner: its tokens."""
    credited: float
    """The least share of an honest learner's tokens that count."""
    liars: tuple[str, ...]
    refused: list[str]

    @property
    def share_of_others(self) -> float:
        """What part of the honest learners' tokens is merged."""
        return sum(self.merged[name] for name in self.trained) / sum(self.trained.values())

    @property
    def weight(self) -> float:
        """The liars' share of all weights."""
        return sum(self.weights.get(one, 0.0) for one in self.liars)


def job(steps: int, *pools: int, quorum: int = 1, **of_pools: object) -> JobSpec:
    """A job of so many steps of every learner; by pool: its learners. The liar is the last one.

    ``of_pools``: other fields of pools, each with a value by pool.
    """
    fields = [{name: values[place] for name, values in of_pools.items()} for place in range(len(pools))]  # type: ignore[index]
    regions = [
        {
            "name": "here",
            "pools": [{"name": f"p{place}", "learners": count} | fields[place] for place, count in enumerate(pools)],
        }
    ]
    tokens = steps * TOKENS_PER_STEP * sum(pools)
    sync = {"fragments": FRAGMENTS, "interval": INTERVAL, "overlap": 2, "quorum": quorum}
    training = {"tokens": tokens, "sequenceLength": 16, "batchSize": 4, "evaluation": {"everyTokens": tokens}}
    return small_job(regions=regions, sync=sync, training=training)


@dataclass(frozen=True, slots=True)
class Course:
    """What else happens in a job, in seconds since its begin. The defaults: liars come once the others are measured."""

    liars: Sequence[str] | None = None
    """Ids that lie; None: the last planned one."""
    liars_at: float = 3 * STEP_SECONDS
    starts: Callable[[str], float] = lambda _: 0.0
    """When an honest learner starts, by its id."""
    times: Callable[[str], float] = lambda _: 1.0
    """How many times as fast as usual it is."""
    honest: Sequence[str] = ()
    """Honest learners that are not planned at the begin."""
    plans: tuple[tuple[float, tuple[str, ...]], ...] = ()
    """When which learners are planned."""
    restarts_at: float = inf
    """The syncer restarts, and the liars are back at once."""
    honest_are_away: float = 30.0
    """For so long after that restart."""


def play(spec: JobSpec, lies: Lies | None, course: Course = Course()) -> Ended:
    """Train a job to its end. ``lies``: what its liars say; None: they are not there."""
    clock = VirtualClock()
    syncer = CheckedSyncer(spec, clock)
    environment = Environment(spec, clock, syncer, 1.0, 0)
    names = (spec.learner_ids[-1],) if course.liars is None else tuple(course.liars)
    honest = [*(one for one in spec.learner_ids if one not in names), *course.honest]
    processes = []
    for learner in honest:
        trainer, encoder = syncer.work.new_trainer(learner), syncer.work.new_encoder({})
        profile = Profile(STEP_SECONDS / course.times(learner))
        process = SimulatedLearner(environment, Identity(learner, learner, profile), trainer, encoder, Disk())
        processes.append(process)
        clock.at(course.starts(learner), process.session.open)
    liars = [Liar(syncer, clock, one, lies) for one in names] if lies is not None else []
    for liar in liars:
        clock.at(course.liars_at, liar.join)
    for at, learners in course.plans:
        pools = tuple(sorted(spec.pools))
        clock.at(at, partial(syncer.feed, LearnersPlanned(learners, pools, terms=pool_terms(spec))))
    if course.restarts_at < inf:
        clock.at(course.restarts_at, syncer.restart)
        for process in processes:
            clock.at(course.restarts_at, partial(process.session.cut, course.honest_are_away))
        for liar in liars:
            clock.at(course.restarts_at + 0.1, liar.join)
    clock.run(1e5, inf)
    known = syncer.state.learners
    total = sum(syncer.weights.values())
    trained = [known[name] for name in honest if known[name].tokens]
    return Ended(
        clock.now,
        {name: one.merged_tokens for name, one in known.items()},
        syncer.state.merged_tokens,
        {name: weight / total for name, weight in syncer.weights.items()},
        {one.id: one.tokens for one in trained},
        min((one.credit.tokens / one.tokens for one in trained), default=1.0),
        names,
        [refused for liar in liars for refused in liar.refused],
    )
