"""The conditions of a simulated run: speeds of learners and links, and which faults happen when."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from diloco.simulate.checks import ScenarioError, above_zero, at_least
from diloco.simulate.failures import Failures
from diloco.spec.words import shortlist


@dataclass(frozen=True, slots=True)
class Link:
    """A learner's connection to the syncer. Each direction carries one fragment at a time."""

    latency_seconds: float = 0.005
    bytes_per_second: float = 1e9
    jitter_seconds: float = 0.0
    """Standard deviation of what a message takes longer than the latency."""

    def __post_init__(self) -> None:
        at_least(0, "link.jitter_seconds", self.jitter_seconds)
        at_least(0, "link.latency_seconds", self.latency_seconds)
        above_zero("link.bytes_per_second", self.bytes_per_second)


@dataclass(frozen=True, slots=True)
class Profile:
    """How one learner behaves."""

    step_seconds: float = 0.5
    """Mean time from one inner step to the next."""
    jitter: float = 0.05
    """Standard deviation of that duration, as a share of it."""
    start_seconds: float = 0.0
    link: Link = Link()
    lines: tuple[str, ...] = ()
    """Names of the shared lines that its connection passes."""
    notice_seconds: float = 0.0
    """From the notice of a preemption to its end."""
    between_steps: float = 0.0
    """Share of ``step_seconds`` in which it computes no step."""
    building_seconds: float = 0.0
    """From a process's join until it can train, if it has the model by then."""

    def __post_init__(self) -> None:
        above_zero("step_seconds", self.step_seconds)
        at_least(0, "jitter", self.jitter)
        at_least(0, "between_steps", self.between_steps)
        at_least(0, "building_seconds", self.building_seconds)
        at_least(0, "start_seconds", self.start_seconds)
        at_least(0, "notice_seconds", self.notice_seconds)


@dataclass(frozen=True, slots=True)
class Kill:
    """A learner's process ends without notice, and is restarted from its own checkpoint after a while."""

    learner: str
    at_seconds: float
    restart_after_seconds: float | None = 5.0


@dataclass(frozen=True, slots=True)
class Cut:
    """A learner's link breaks, both ends notice, and nothing gets through for a while. Its process keeps running."""

    learner: str
    at_seconds: float
    seconds: float


Fault = Kill | Cut


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything about a simulated run that is not in the job."""

    profiles: Mapping[str, Profile] = field(default_factory=dict)
    """By learner id; other learners have ``default``."""
    default: Profile = Profile()
    faults: tuple[Fault, ...] = ()
    failures: Mapping[str, Failures] = field(default_factory=dict)
    """By learner id: what makes it stand still at times drawn from ``seed``. Others never do."""
    lines: Mapping[str, float] = field(default_factory=dict)
    """Bytes a second, each way, of the lines that learners share, by name."""
    merge_seconds: float = 0.005
    """What every merge takes. One is made at a time."""
    merge_bytes_per_second: float = math.inf
    """Rate at which a merge reads its members' outer gradients, as f32, besides."""
    reconnect_seconds: float = 1.0
    """How long a learner waits before it tries a broken link again."""
    deadline_seconds: float = 1e5
    """Virtual time after which an unfinished run is given up."""
    seed: int = 0

    def __post_init__(self) -> None:
        at_least(0, "merge_seconds", self.merge_seconds)
        above_zero("merge_bytes_per_second", self.merge_bytes_per_second)
        for name, rate in self.lines.items():
            above_zero(f"lines[{name}]", rate)
        above_zero("reconnect_seconds", self.reconnect_seconds)

    def check_learners(self, learners: Iterable[str]) -> None:
        """Raise ScenarioError if a profile or a fault names a learner that the job does not have."""
        known = dict.fromkeys(learners)
        named = [*self.profiles, *self.failures, *(fault.learner for fault in self.faults)]
        for learner in named:
            if learner not in known:
                raise ScenarioError(f"the scenario names learner {learner!r}; the job has {shortlist([*known])}")

    def profile(self, learner: str) -> Profile:
        """The profile of ``learner``."""
        return self.profiles.get(learner, self.default)
