"""Events that the engine processes in a processor second, function calls for one, and the price of a simulated day.

A counted run in virtual time records a course of events: steps, requests, outer gradients, merges, joins, lost
sessions; a quarter of the learners is far away and has leads. An engine of its own then processes the same events, so
that nothing but the engine is measured. Calls (of Python functions and builtins) do not depend on the machine. A day is
extrapolated from the whole simulation of the same course.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any
from unittest.mock import patch

from diloco.core.engine.actions import Action
from diloco.core.engine.engine import Engine
from diloco.core.engine.events import Event
from diloco.core.engine.options import EngineOptions
from diloco.simulate import Cut, Kill, Link, Profile, Scenario, syncer
from diloco.simulate.scenario import Fault
from diloco.simulate.training.counted import layout_of_sizes
from diloco.simulate.world import simulate_course
from diloco.spec import DiLoCoJob
from support.faults import faults_every
from support.job import alone, manifest
from support.report import Ratio, Ratios, command, write_report

FRAGMENTS = INTERVAL = 24
LEARNERS = (8, 64, 256)
STEP_SECONDS = 0.5
NEAR, FAR = Link(0.005, 1e9), Link(0.6, 1e9)
SECONDS_BETWEEN_FAULTS = 600.0
"""Of one learner."""
FAULTS: tuple[Callable[[str, float], Fault], ...] = (Kill, lambda learner, at_seconds: Cut(learner, at_seconds, 3.0))
TRIES = 3
"""The fastest counts: what else the machine does only takes time."""


@dataclass(frozen=True)
class Course:
    """Recorded events, the options of their engine, and a function that simulates them, for ``seconds``."""

    simulate: Callable[[], object]
    seconds: float
    options: EngineOptions
    events: list[tuple[Event, float]]


def record(learners: int, events: int) -> Course:
    """The course of a job of so many learners, about this many events long."""
    found: list[tuple[Event, float]] = []

    class Recording(Engine):
        def step(self, event: Event, now: float) -> list[Action]:
            found.append((event, now))
            return super().step(event, now)

    training = {"tokens": 10**12, "sequenceLength": 64, "batchSize": 16}
    sync = {"fragments": FRAGMENTS, "interval": INTERVAL}
    job = DiLoCoJob.model_validate(manifest("engine", {"here": learners}, training=training, sync=sync))
    ids, layout = job.spec.learner_ids, layout_of_sizes([10_000] * FRAGMENTS)
    seconds = STEP_SECONDS * events / (3 * learners)  # a step, an outer gradient and a new fragment each
    between = SECONDS_BETWEEN_FAULTS / learners
    faults = [
        fault
        for seed, make in enumerate(FAULTS)
        for fault in faults_every(between, make, learners=ids, until_seconds=seconds, seed=seed)
    ]
    far = dict.fromkeys(ids[: learners // 4], Profile(STEP_SECONDS, link=FAR))
    scenario = Scenario(far, Profile(STEP_SECONDS, link=NEAR), tuple(faults))
    simulate = partial(simulate_course, job, scenario, layout, seconds)
    with patch.object(syncer, "Engine", Recording):
        simulate()
    return Course(simulate, seconds, EngineOptions.from_job(job, layout), found)


def replay(course: Course) -> Engine:
    """Process the events once more."""
    engine = Engine(course.options, epoch=1)
    for event, now in course.events:
        engine.step(event, now)
    return engine


def cpu_seconds(work: Callable[[], object]) -> float:
    """Processor seconds of the fastest try."""
    seconds = []
    for _ in range(TRIES):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


def calls_of(work: Callable[[], object]) -> int:
    """Function calls that it makes."""
    count = 0

    def note(_frame: FrameType, what: str, _: Any) -> None:
        nonlocal count
        count += what in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def run_case(learners: int, events: int) -> dict[str, Any]:
    """Record a course, and measure its replay."""
    course = record(learners, events)
    again, count, in_a_day = partial(replay, course), len(course.events), 86_400 / course.seconds
    return {
        "learners": learners,
        "events": count,
        "merges": again().progress.merges,
        "events_a_cpu_second": count / cpu_seconds(again),
        "calls_an_event": calls_of(again) / count,
        "calls_an_event_simulated": calls_of(course.simulate) / count,
        "day_events": count * in_a_day,
        "day_cpu_seconds": cpu_seconds(course.simulate) * in_a_day,
    }


def main() -> None:
    """Run the cases and report."""
    parser = command(__doc__)
    parser.add_argument("--events", type=int, default=30_000, help="about so many in each case (30000)")
    arguments = parser.parse_args()
    rows = {learners: alone(run_case, learners, arguments.events) for learners in LEARNERS}
    few = LEARNERS[0]
    ratios: Ratios = {
        f"{what}_{many}": Ratio(
            rows[many][figure] / rows[few][figure], f"the same with {few} learners", less_is_better=what == "calls"
        )
        for many in LEARNERS[1:]
        for what, figure in (("speed", "events_a_cpu_second"), ("calls", "calls_an_event"))
    }
    write_report(arguments.json, "engine", ratios, {"cases": list(rows.values())})


if __name__ == "__main__":
    main()
