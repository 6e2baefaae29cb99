"""Learners of unequal speed that all wait for one another, and capacity that is there only for a while."""

import random
import statistics
from typing import Final

from diloco.simulate.published.job import IDEAL, job_of
from diloco.simulate.scenario import Profile, Scenario
from diloco.simulate.training.counted import layout_of_sizes
from diloco.simulate.world import simulate_course

GAP, DEVIATION = 0.18, 0.1
"""The step of the older generation over that of the newer one, less 1; standard deviation of a learner's step."""
LEARNERS: Final = 8
SHARE: Final = 0.5
"""Part of the tokens that is trained while the added capacity is there: fitted to the four decoupled cells."""
_FRAGMENTS: Final = 24


def step_seconds(seed: int) -> tuple[float, ...]:
    """The mean step of each learner, half of them of each generation: a learner is as fast as it is for good."""
    draw = random.Random(f"generations/{seed}")  # noqa: S311 - a scenario, no secret
    means = [1.0 + GAP * (number < LEARNERS // 2) for number in range(LEARNERS)]
    return tuple(draw.gauss(mean, DEVIATION * mean) for mean in means)


def waiting_for_all(steps: tuple[float, ...]) -> float:
    """Share of time in which learners compute that make a step each time the slowest has made one."""
    return statistics.mean(steps) / max(steps)


def mixed(draws: int) -> float:
    """Goodput with K = M, the mean over drawn sets of learners."""
    return statistics.mean(waiting_for_all(step_seconds(seed)) for seed in range(draws))


def mixed_through_engine(seed: int, seconds: float) -> float:
    """The same of one set of learners, by the engine: lock-step, as no learner may be ahead (tau = 0)."""
    sync = {"fragments": _FRAGMENTS, "interval": _FRAGMENTS, "overlap": 0, "maxStalenessSteps": _FRAGMENTS}
    job = job_of(LEARNERS, {**sync, "quorum": LEARNERS})
    profiles = {
        learner: Profile(step, jitter=0.0, link=IDEAL)
        for learner, step in zip(job.spec.learner_ids, step_seconds(seed), strict=True)
    }
    course = simulate_course(job, Scenario(profiles), layout_of_sizes([1000] * _FRAGMENTS), seconds)
    assert course.view.goodput is not None
    return course.view.goodput


def scavenged(added: float) -> float:
    """Wall clock over that without the added capacity, which is as large as the usual one times ``added``."""
    return 1 - SHARE + SHARE / (1 + added)
