"""An inner loop of which a test controls every step, message and second."""

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

from torch import Tensor

from diloco.learner.activity import Activity
from diloco.learner.exchange.holdings import Holdings, MergedFragment
from diloco.learner.exchange.link import Position, Shared
from diloco.learner.exchange.orders import Ending, Membership, Orders, Wakeup
from diloco.learner.exchange.requests import GradientRequest, OuterGradient, Requests
from diloco.learner.inner_loop import InnerLoop, LoopSettings, LoopWiring
from diloco.learner.training.fragment_trainer import LateResult, StepResult
from diloco.simulate.training.counted import CountedTrainer
from tests.support.hand_clock import HandClock

NOW = Membership("1", 7)
FRAGMENTS = 3
STEP_TOKENS = 16
MOST_SAID = 1000
"""In a test: a loop that goes on without an end fails it."""


class ScriptedBell(Wakeup):
    """A wait lets the next event of a script happen; without one the test fails."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Callable[[], object]] = []
        self.waits: list[float] = []
        """For how long, at most."""

    def wait(self, since: int, timeout_seconds: float) -> None:
        assert since == self.notices, "it would not wait: it has rung"
        self.waits.append(timeout_seconds)
        self.events.pop(0)()


class Said:
    """Messages put for the syncer, in order: name and arguments. Putting takes no time unless ``takes`` is set."""

    def __init__(self, clock: HandClock) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.offered: list[OuterGradient] = []
        self.post_seconds = 0.0
        self._clock = clock

    def answer(self, gradient: OuterGradient) -> None:
        self.offered.append(gradient)

    def __getattr__(self, name: str) -> Callable[..., None]:
        def put(*arguments: object, **named: object) -> None:
            assert len(self.calls) < MOST_SAID
            self.calls.append((name, *arguments, *named.values()))
            self._clock.now += self.post_seconds if name == "post" else 0.0

        return put

    def take(self) -> list[tuple[object, ...]]:
        """The messages put since the last call."""
        taken, self.calls = self.calls, []
        return taken

    def of(self, *names: str) -> list[tuple[object, ...]]:
        """The messages of these kinds."""
        return [call for call in self.calls if call[0] in names]


class LoopBench(CountedTrainer):
    """An inner loop around this trainer, which only counts."""

    def __init__(self, clock: HandClock, *, loaded: bool = True, steps_before: int = 0, **settings: Any) -> None:
        super().__init__(FRAGMENTS, batch_size=2, sequence_length=STEP_TOKENS // 2)
        self.make(steps_before)
        self.clock = clock
        self.wakeup = ScriptedBell()
        self.said = Said(clock)
        self.membership: Membership | None = NOW
        self.known: Position | None = None
        self.forgotten = 0
        self.checkpoints: list[int] = []
        """Steps after which one was taken."""
        self.took_up: list[tuple[int, ...]] = []
        """The versions that were held when it went on with the checkpoint."""
        self.before_step: Callable[[], None] = lambda: None
        """What happens meanwhile."""
        self.metrics: dict[str, float] = {}
        self.steps_to_make: list[tuple[float, bool]] = []
        self.dealt = True
        """The next batch has been."""
        self.jumps = 0
        """How often what it has is replaced."""
        self.shared = Shared(
            Orders(self.wakeup),
            Requests(self.wakeup, FRAGMENTS, 1),
            Holdings(self.wakeup, FRAGMENTS),
            cast("Any", self.said),
            cast("Any", SimpleNamespace(forget=self._forget)),
        )
        self.shared.holdings.admitted(NOW, range(FRAGMENTS))
        wiring = LoopWiring(
            self.shared, self.wakeup, lambda: self.membership, self._known_position, self._checkpoint, self._take_up
        )
        self.activity = Activity(clock)
        plain = {"staleness_bound_steps": 100, "checkpoint_every_steps": 100}
        self.loop = InnerLoop(cast("Any", self), wiring, LoopSettings(**plain | settings), self.activity)
        if loaded:
            for fragment in range(FRAGMENTS):
                self.receive(fragment, 0)

    def _take_up(self) -> None:
        self.took_up.append(self.versions)

    def receive(self, fragment: int, version: int) -> None:
        """A fragment lands."""
        self.shared.holdings.arrived(MergedFragment(NOW.epoch, fragment, version, cast("Any", None)))

    def later(self, *arrivals: tuple[int, int], seconds: float = 0.0) -> Callable[[], None]:
        """An event: time passes, and these versions of fragments land."""

        def happens() -> None:
            self.clock.now += seconds
            for fragment, version in arrivals:
                self.receive(fragment, version)

        return happens

    def request(self, fragment: int, version: int, membership: Membership = NOW) -> tuple[GradientRequest, int | None]:
        """Request an outer gradient. Returns the request, and how many steps its staged answer covers."""
        request = GradientRequest(membership, fragment, version, 1)
        capture = self.shared.requests.put(request)
        return request, None if capture is None else capture.steps

    def passes(self, seconds: float) -> None:
        """An event: this much time passes."""
        self.clock.now += seconds

    def run(self, *steps: tuple[float, bool], late: bool = False) -> Ending:
        """Make these steps (seconds, and whether each is skipped), then stop. ``late``: with ``begin``."""
        self.steps_to_make = list(steps)
        return self.loop.run(self.begin if late else self.step)

    def has_data(self) -> bool:
        return self.dealt

    def jump(self) -> bool:
        self.jumps -= 1
        return self.jumps >= 0

    def make(self, steps: int) -> None:
        """Count steps that the loop does not make."""
        for _ in range(steps):
            super().step(0.0)

    def step(self, progress: float) -> StepResult:
        self.before_step()
        seconds, skipped = self.steps_to_make.pop(0)
        self.clock.now += seconds
        if not self.steps_to_make:
            self.shared.orders.stop("the steps are made")
        if skipped:
            return StepResult(math.nan, 0, seconds, 1.0, 0.1, skipped=True)
        super().step(progress)
        return StepResult(2.0, STEP_TOKENS, seconds, 1.0, 0.1, skipped=False)

    def begin(self, progress: float) -> LateResult:
        """The same as ``step``, with numbers that are late."""
        before = self.steps, self.tokens
        self.make(1)
        received = list(self._since_steps)

        def settled() -> StepResult:
            after = [one for one, since in enumerate(self._since_steps) if since != received[one]]
            self.steps, self.tokens = before
            result = self.step(progress)
            for fragment in after:
                self._since_steps[fragment], self._since_tokens[fragment] = self.steps, self.tokens
            return result

        return settled

    def apply(self, fragment: int, version: int, values: Tensor) -> None:
        self.clock.now += 0.5
        super().apply(fragment, version, values)

    def evaluate(self, replaced: Mapping[int, Tensor] | None = None) -> float:
        del replaced
        self.clock.now += 3.0
        return 2.5

    def _known_position(self) -> Position | None:
        if not self.steps_to_make and self.shared.holdings.complete:  # the model is loaded
            self.shared.orders.stop("the steps are made")
        return self.known

    def _forget(self) -> None:
        self.forgotten += 1

    def _checkpoint(self) -> None:
        self.clock.now += 0.25
        self.checkpoints.append(self.steps)
