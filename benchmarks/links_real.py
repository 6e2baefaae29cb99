"""Benchmark `links_real`: three points of `links` with real processes, each held against the simulator.

`diloco run` trains with real syncer and learner processes; `--emulate-link` gives regions a rate and a round trip. The
same world, with the step times that were measured in the run, is then counted in virtual time. Run it with

    python benchmarks/links_real.py --json benchmarks/results/links_real.json

A share is merged tokens over trained tokens. Anything else that runs on the machine makes steps longer and less even;
what the simulator is given follows.
"""

import math
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diloco.core.engine.actions import Merge
from diloco.core.engine.events import Merged, StepReported
from diloco.model.build import layout_of_job
from diloco.simulate import Link, Profile, Scenario
from diloco.simulate.world import simulate_course
from diloco.spec import DiLoCoJob
from diloco.tape.reader import TapeEntry
from diloco.world.model import World
from diloco.world.reading import read_world
from support.job import carry_out, manifest, steps_of, summary, tapes
from support.report import Ratio, command, write_report

STEPS = 300
BATCH, SEQUENCE_LENGTH = 8, 64
PERCENT_POINTS = 5.0
"""Real shares and counted ones must not differ by more."""
SHORTEST_STEP_PART = 0.02
"""Of the mean: the first steps, which warm up, are left out of the step times."""


@dataclass(frozen=True)
class Point:
    """One run."""

    name: str
    regions: dict[str, int]
    """Learners in each."""
    links: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    sync: dict[str, Any] = field(default_factory=dict)

    def manifest(self) -> dict[str, Any]:
        training = {
            "tokens": STEPS * sum(self.regions.values()) * BATCH * SEQUENCE_LENGTH,
            "sequenceLength": SEQUENCE_LENGTH,
            "batchSize": BATCH,
            "evaluation": {"sequences": 4},
        }
        sync = {"outerOptimizer": {"learningRate": 1.0, "momentum": 0.0}, **self.sync}
        return manifest("links-real", self.regions, training=training, sync=sync)


POINTS = (
    Point(
        "thin: two learners, 5 Mbit/s each, 7 Mbit/s at the syncer",  # which the way down uses to some 80 %
        {"a": 1, "b": 1},
        ("a=5Mbit/s", "b=5Mbit/s", "syncer=7Mbit/s"),
        ("a=0.2", "b=0.2"),
        sync={"compression": "Int4"},
    ),
    Point("far: one of three, 80 ms one way", {"near": 2, "far": 1}, ("far=1Gbit/s,160ms",), ("near=0.2", "far=0.2")),
    Point("slow: one of three, five times slower", {"fast": 2, "slow": 1}, (), ("fast=0.5", "slow=0.1")),
)


def profile(steps: list[tuple[float, StepReported]], link: Link) -> Profile:
    """As measured, for the simulator."""
    seconds = sorted(step.step_seconds for _, step in steps[5:])
    seconds = seconds[: max(1, math.ceil(len(seconds) * (1 - SHORTEST_STEP_PART)))]
    mean = statistics.mean(seconds)
    return Profile(mean, statistics.pstdev(seconds) / mean, link=link)


def measure(point: Point) -> dict[str, Any]:
    """Run a point both ways."""
    flags = [word for link in point.links for word in ("--emulate-link", link)]
    flags += [word for slow in point.slow for word in ("--slow", slow)]
    job = DiLoCoJob.model_validate(point.manifest())
    with tempfile.TemporaryDirectory() as name:
        output = carry_out(Path(name), point.manifest(), *flags)
        ((_, entries),), learners = tapes(output), summary(output)["learners"]
    members = [len(one.members) for entry in entries for one in entry.actions if isinstance(one, Merge)]
    counted = count(job, entries, read_world(job.spec, point.links))
    real = {one["id"]: one["merged_tokens"] / one["tokens"] for one in learners}
    share = sum(one["merged_tokens"] for one in learners) / sum(one["tokens"] for one in learners)
    worst = min(real, key=real.__getitem__)
    return {
        "point": point.name,
        "real": share,
        "counted": counted["share"],
        "points_apart": 100 * (share - counted["share"]),
        "worst": worst,
        "worst_real": real[worst],
        "worst_counted": counted[worst],
        "members_real": statistics.mean(members),
        "members_counted": counted["members"],
        "step_seconds": {
            name: statistics.median(step.step_seconds for _, step in steps) for name, steps in steps_of(entries).items()
        },
    }


def count(job: DiLoCoJob, entries: list[TapeEntry], world: World) -> dict[str, float]:
    """The same world in virtual time. The syncer's own link is divided evenly among the regions."""
    regions, steps = len(job.spec.regions), steps_of(entries)
    profiles = {}
    for learner in job.spec.learner_ids:
        link = world.region(learner.partition("/")[0])
        rate = min(link.bytes_per_second, world.syncer.bytes_per_second / regions, 1e9)
        profiles[learner] = profile(steps[learner], Link(link.round_trip_seconds / 2 + 0.001, rate))
    merge_seconds = statistics.mean(one.event.seconds for one in entries if isinstance(one.event, Merged))
    scenario = Scenario(profiles, merge_seconds=merge_seconds)
    times = [at for its in steps.values() for at, _ in its]
    training = job.spec.training.model_copy(update={"tokens": 10**12})
    endless = job.model_copy(update={"spec": job.spec.model_copy(update={"training": training})})
    course = simulate_course(endless, scenario, layout_of_job(job.spec), max(times) - min(times))
    views = course.view.learners
    shares = {view.id: view.merged_tokens / max(1, view.tokens) for view in views}
    total = sum(view.merged_tokens for view in views) / sum(view.tokens for view in views)
    return {**shares, "share": total, "members": course.counts.members_per_merge}


def main() -> None:
    """Run the points, then report."""
    parser = command(__doc__)
    parser.add_argument("--only", type=int, action="append", help="this point alone, from 0; may be repeated")
    arguments = parser.parse_args()
    rows = [measure(POINTS[index]) for index in arguments.only or range(len(POINTS))]
    against = "merged share in the simulator, with the step times of the run"
    ratios = {row["point"].partition(":")[0]: Ratio(row["real"] / row["counted"], against) for row in rows}
    write_report(arguments.json, "links_real", ratios, {"points": rows, "apart_at_most": PERCENT_POINTS})


if __name__ == "__main__":
    main()
