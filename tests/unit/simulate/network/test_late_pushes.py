"""An outer gradient that comes too late is withdrawn, so a thin link does not carry the rest of it."""

from collections import Counter
from collections.abc import Sequence

import pytest

from diloco.core.engine.actions import Action
from diloco.core.engine.engine import Engine
from diloco.core.engine.events import Event, FragmentArrived, FragmentLate
from diloco.simulate import Link, Profile, Scenario
from diloco.simulate.training.counted import counted_work, layout_of_sizes
from diloco.simulate.world import Simulation
from tests.support.small_job import named_job, small_job

SLOW = "west/a/0"
SECONDS = 600.0
BYTES_PER_SECOND = 4000.0
NUMEL = 10_000
PUSH_BYTES = 2 * NUMEL
"""It takes 5 s, and the other learner 3 s from one turn of a fragment to the next."""


class Heard:
    """Counts the events of the learner with the thin link."""

    def __init__(self) -> None:
        self.counts: Counter[type[Event]] = Counter()

    def begins(self, engine: Engine) -> None:
        pass

    def passed(self, event: Event, actions: Sequence[Action], now: float) -> None:
        del actions, now
        if isinstance(event, FragmentArrived | FragmentLate) and event.learner == SLOW:
            self.counts[type(event)] += 1

    def process(self, learner: str, now: float, change: str) -> None:
        pass


@pytest.mark.parametrize("shared", [False, True])
def test_what_comes_too_late_is_not_sent_to_its_end(shared: bool) -> None:
    regions = [{"name": name, "pools": [{"name": "a", "learners": 1}]} for name in ("east", "west")]
    training = {"tokens": 10**9, "sequenceLength": 16, "batchSize": 4}
    sync = {"fragments": 6, "interval": 6, "quorum": 1, "compression": "BF16"}
    job = named_job("late", small_job(regions=regions, training=training, sync=sync))
    layout, heard = layout_of_sizes([NUMEL] * 6), Heard()
    thin = Link(0.0, 1e9 if shared else BYTES_PER_SECOND)
    scenario = Scenario(
        {SLOW: Profile(link=thin, lines=("thin",) if shared else ())},
        lines={"thin": BYTES_PER_SECOND} if shared else {},
    )
    simulation = Simulation(job, scenario, layout, counted_work(job.spec, layout), heard)
    simulation.advance(SECONDS)
    late, sent = heard.counts[FragmentLate], simulation.traffic.up["west"]
    assert late > 10
    # Only what arrives between the closing of a round and the end of its merge.
    assert simulation.course().counts.discarded < 0.1 * late
    assert heard.counts[FragmentArrived] * PUSH_BYTES <= sent <= SECONDS * BYTES_PER_SECOND + PUSH_BYTES
