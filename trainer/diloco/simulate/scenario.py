"""The conditions of a simulated run: speeds of learners and links, and which faults happen when.

Plain values and checks; random faults are drawn from a seed that is passed in.
"""

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field


class ScenarioError(ValueError):
    """An invalid scenario; the text names the part, its value and what is allowed."""


def _check(name: str, value: float, *, at_least: float) -> None:
    if not value >= at_least:
        raise ScenarioError(f"{name} is {value}: it must be at least {at_least:g}")


@dataclass(frozen=True, slots=True)
class Link:
    """A learner's connection to the syncer. Each direction carries one fragment at a time."""

    latency_seconds: float = 0.005
    bytes_per_second: float = 1e9

    def __post_init__(self) -> None:
        _check("link.latency_seconds", self.latency_seconds, at_least=0)
        if not self.bytes_per_second > 0:
            raise ScenarioError(f"link.bytes_per_second is {self.bytes_per_second}: it must be above 0")


@dataclass(frozen=True, slots=True)
class Profile:
    """How one learner behaves."""

    step_seconds: float = 0.5
    """Mean duration of an inner step."""
    jitter: float = 0.05
    """Standard deviation of that duration, as a share of it."""
    start_seconds: float = 0.0
    link: Link = Link()

    def __post_init__(self) -> None:
        if not self.step_seconds > 0:
            raise ScenarioError(f"step_seconds is {self.step_seconds}: it must be above 0")
        _check("jitter", self.jitter, at_least=0)
        _check("start_seconds", self.start_seconds, at_least=0)


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
    merge_seconds: float = 0.005
    reconnect_seconds: float = 1.0
    """How long a learner waits before it tries a broken link again."""
    deadline_seconds: float = 1e5
    """Virtual time after which an unfinished run is given up."""
    seed: int = 0

    def __post_init__(self) -> None:
        _check("merge_seconds", self.merge_seconds, at_least=0)
        if not self.reconnect_seconds > 0:
            raise ScenarioError(f"reconnect_seconds is {self.reconnect_seconds}: it must be above 0")

    def check_learners(self, learners: Iterable[str]) -> None:
        """Raise ScenarioError if a profile or a fault names a learner that the job does not have."""
        known = tuple(learners)
        named = [*self.profiles, *(fault.learner for fault in self.faults)]
        for learner in named:
            if learner not in known:
                raise ScenarioError(f"the scenario names learner {learner!r}; the job has {', '.join(known)}")

    def profile(self, learner: str) -> Profile:
        """The profile of ``learner``."""
        return self.profiles.get(learner, self.default)


def faults_every(
    seconds: float, make: Callable[[str, float], Fault], *, learners: tuple[str, ...], until_seconds: float, seed: int
) -> tuple[Fault, ...]:
    """One fault in every ``seconds`` of time, at a moment and of a learner drawn evenly from ``seed``.

    ``make`` is called with the learner and the moment, in seconds.
    """
    if not seconds > 0:
        raise ScenarioError(f"seconds between faults is {seconds}: it must be above 0")
    draw = random.Random(f"faults/{seed}")  # noqa: S311 - a scenario, no secret
    faults = []
    for stretch in range(int(until_seconds // seconds)):
        at_seconds = (stretch + draw.random()) * seconds
        faults.append(make(draw.choice(learners), at_seconds))
    return tuple(faults)
