"""A simulated learner that has nothing to say is silent for as long as a real one."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from diloco.core.engine.actions import Action
from diloco.core.engine.engine import Engine
from diloco.core.engine.events import Event, LearnerAlive
from diloco.simulate import Profile, Scenario
from diloco.simulate.training.counted import counted_work, layout_of_sizes
from diloco.simulate.world import Simulation
from tests.support.small_job import named_job, small_job


class Told:
    """Notes when a learner says that it is alive."""

    def __init__(self) -> None:
        self.at_seconds: list[float] = []

    def begins(self, engine: Engine) -> None:
        """Nothing is read."""

    def passed(self, event: Event, actions: Sequence[Action], now: float) -> None:
        """Note it."""
        del actions
        if isinstance(event, LearnerAlive):
            self.at_seconds.append(now)

    def process(self, learner: str, now: float, change: str) -> None:
        """No process ends."""


@pytest.mark.parametrize(("lease_seconds", "silent_seconds"), [(8, 2.0), (20, 5.0), (3600, 5.0)])
def test_it_says_that_it_is_alive_within_the_lease(lease_seconds: int, silent_seconds: float) -> None:
    spec = small_job(learners=1, sync={"fragments": 6, "interval": 6, "leaseSeconds": lease_seconds})
    job = named_job("lease", spec)
    assert job.spec.sync.alive_seconds == silent_seconds
    layout, told = layout_of_sizes([10] * 6), Told()
    Simulation(job, Scenario(default=Profile(100.0)), layout, counted_work(job.spec, layout), told).advance(60.0)
    assert len(told.at_seconds) >= 60 / silent_seconds - 1
    assert all(after - before == pytest.approx(silent_seconds) for before, after in pairwise(told.at_seconds))
