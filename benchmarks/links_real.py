"""Benchmark `links_real`: three points of `links` with real processes, each held against the simulator.

`diloco run` trains with real syncer and learner processes; `--emulate-link` gives regions a rate and a round trip. The
same world, with the step times that were measured in the run, is then counted in virtual time. Run it with

    python benchmarks/links_real.py --json benchmarks/results/links-real.json

A share is merged tokens over trained tokens. Anything else that runs on the machine makes steps longer and less even;
what the simulator is given follows.
"""

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from diloco.core.actions import Merge
from diloco.core.events import Merged, StepReported
from diloco.core.fragments import Layout
from diloco.model import build_model, layout_of
from diloco.plan.world import World, read_world
from diloco.simulate import Link, Profile, RunOptions, Scenario, simulate_course
from diloco.spec import DiLoCoJob, load_job
from diloco.tape.reader import TapeReader, Torn
from diloco.tape.segments import find_tapes
from report import write_report

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
    batch: int = 8
    steps: int = 300
    sync: dict[str, Any] = field(default_factory=dict)

    def manifest(self) -> dict[str, Any]:
        """The job."""
        sequence_length = 64
        learners = sum(self.regions.values())
        return {
            "apiVersion": "diloco.dev/v1alpha1",
            "kind": "DiLoCoJob",
            "metadata": {"name": "links-real"},
            "spec": {
                "model": {"builtin": {"preset": "pico"}},
                "data": {"text": {}},
                "training": {
                    "tokens": self.steps * learners * self.batch * sequence_length,
                    "sequenceLength": sequence_length,
                    "batchSize": self.batch,
                    "evaluation": {"sequences": 4},
                },
                "sync": {"outerOptimizer": {"learningRate": 1.0, "momentum": 0.0}, **self.sync},
                "regions": [
                    {"name": name, "pools": [{"name": "pool", "learners": count}]}
                    for name, count in self.regions.items()
                ],
            },
        }


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


@dataclass
class Seen:
    """Figures from the tape of a run."""

    tokens: dict[str, int] = field(default_factory=dict)
    merged: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    step_seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    merge_seconds: list[float] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def share(self, learner: str | None = None) -> float:
        """Merged over trained tokens, of one learner or of all."""
        names = self.tokens if learner is None else [learner]
        return sum(self.merged[name] for name in names) / sum(self.tokens[name] for name in names)

    def profile(self, learner: str, link: Link) -> Profile:
        """The learner's measured profile, for the simulator."""
        steps = sorted(self.step_seconds[learner][5:])
        steps = steps[: max(1, math.ceil(len(steps) * (1 - SHORTEST_STEP_PART)))]
        mean = statistics.mean(steps)
        return Profile(mean, statistics.pstdev(steps) / mean, link=link)


def read(directory: Path, layout: Layout) -> Seen:
    """The tape of a run."""
    seen, first = Seen(), None
    (files,) = find_tapes(directory / "syncer" / "tape")
    orders: dict[tuple[int, int], Merge] = {}
    for entry in TapeReader(files):
        if isinstance(entry, Torn):
            break
        for action in entry.actions:
            if isinstance(action, Merge):
                orders[action.fragment, action.version] = action
        match entry.event:
            case StepReported(learner, _, _, tokens, step_seconds):
                first = entry.now if first is None else first
                seen.seconds = entry.now - first
                seen.tokens[learner] = tokens
                seen.step_seconds[learner].append(step_seconds)
            case Merged(fragment, version, _, seconds):
                seen.merge_seconds.append(seconds)
                members = orders[fragment, version].members
                seen.members.append(len(members))
                for member in members:
                    seen.merged[member.learner] += layout.shares[fragment] * member.tokens
            case _:
                pass
    return seen


def carry_out(point: Point) -> dict[str, Any]:
    """Run a point both ways."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "job.yaml").write_text(yaml.safe_dump(point.manifest()))
        job = load_job(directory / "job.yaml")
        arguments = [word for link in point.links for word in ("--emulate-link", link)]
        arguments += [word for slow in point.slow for word in ("--slow", slow)]
        subprocess.run(
            [sys.executable, "-m", "diloco.cli.entry", "run", str(directory / "job.yaml"), "--output",
             str(directory / "out"), "--no-view", "--threads", "1", *arguments],
            check=True, stdout=sys.stderr,
        )  # fmt: skip
        layout = layout_of(build_model(job.spec), job.spec.sync.fragments)
        seen = read(directory / "out", layout)
    counted = count(job, layout, seen, read_world(job.spec, point.links, ()))
    worst = min(seen.tokens, key=seen.share)
    return {
        "point": point.name,
        "real": seen.share(),
        "counted": counted["share"],
        "points_apart": 100 * (seen.share() - counted["share"]),
        "worst": worst,
        "worst_real": seen.share(worst),
        "worst_counted": counted[worst],
        "members_real": statistics.mean(seen.members),
        "members_counted": counted["members"],
        "step_seconds": {name: statistics.median(steps) for name, steps in seen.step_seconds.items()},
    }


def count(job: DiLoCoJob, layout: Layout, seen: Seen, world: World) -> dict[str, float]:
    """The same world in virtual time. The syncer's own link is divided evenly among the regions."""
    regions = len(job.spec.regions)
    profiles = {}
    for learner in job.spec.learner_ids:
        link = world.link(learner.partition("/")[0])
        rate = min(link.bytes_per_second, world.syncer_bytes_per_second / regions, 1e9)
        profiles[learner] = seen.profile(learner, Link(link.round_trip_seconds / 2 + 0.001, rate))
    scenario = Scenario(profiles, merge_seconds=statistics.mean(seen.merge_seconds))
    training = job.spec.training.model_copy(update={"tokens": 10**12})
    endless = job.model_copy(update={"spec": job.spec.model_copy(update={"training": training})})
    course = simulate_course(endless, scenario, layout, RunOptions(stop_seconds=seen.seconds))
    views = course.view.learners
    shares = {view.id: view.merged_tokens / max(1, view.tokens) for view in views}
    total = sum(view.merged_tokens for view in views) / sum(view.tokens for view in views)
    return {**shares, "share": total, "members": course.counts.members_per_merge}


def main() -> int:
    """Run the points, then report."""
    parser = argparse.ArgumentParser(description="Merged share with real processes against the simulator.")
    parser.add_argument("--json", type=Path, help="write the report here")
    parser.add_argument("--only", type=int, action="append", help="this point alone, from 0; may be repeated")
    arguments = parser.parse_args()
    chosen = arguments.only or range(len(POINTS))
    rows = [carry_out(POINTS[index]) for index in chosen]
    ratios = {row["point"].partition(":")[0]: row["real"] / row["counted"] for row in rows}
    against = dict.fromkeys(ratios, "merged share in the simulator, with the step times of the run")
    figures = {"points": rows, "apart_at_most": PERCENT_POINTS}
    write_report(arguments.json, benchmark="links_real", ratios=ratios, figures=figures, against=against)
    return 0


if __name__ == "__main__":
    sys.exit(main())
