"""Benchmark `links`: how much of the learners' work is merged over thin, far and uneven links.

Runs are counted in virtual time (`diloco.simulate.simulate_course`): engine, schedule and links are those of a real
run, nothing is trained. All of them are of equal length. Run it with

    python benchmarks/links.py --json benchmarks/results/links.json

A share is merged tokens over trained tokens, and it is held against the share over an ideal link: no latency, no limit.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from diloco.simulate import Link, Profile, Scenario
from diloco.simulate.training.counted import layout_of_sizes
from diloco.simulate.world import simulate_course
from diloco.spec import DiLoCoJob
from support.job import manifest
from support.processes import workers
from support.report import Ratio, command, write_report

FRAGMENTS = INTERVAL = 24
NUMEL = 10_000
"""Elements of each fragment: only what the link takes for it matters."""
STEPS = 400
"""Length of a run, in inner steps of the fastest learner."""
STEP_SECONDS = 0.5
JITTER = 0.05
IDEAL = Link(latency_seconds=0.0, bytes_per_second=1e15)
RATES = (4.0, 2.0, 1.5, 1.25, 1.1, 1.05, 1.0)
"""Of the link, over what the way down needs for the schedule."""
ROUND_TRIPS = (0.001, 0.01, 0.03, 0.1, 0.16, 0.2, 0.3)
SPEEDS = (1, 2, 3, 5, 10)
FAR = ((0.16, 0.1), (0.2, 0.05))
"""(round trip, inner step), in seconds: the far learners that the aims name."""


@dataclass(frozen=True)
class Case:
    """One run."""

    table: str
    name: str
    learners: int
    step_seconds: float = STEP_SECONDS
    link: Link = IDEAL
    odd: int = 0
    """Learners, the last ones, that are not like the others."""
    odd_link: Link = IDEAL
    odd_slower: float = 1.0
    steps: int = STEPS

    @property
    def ideal(self) -> "Case":
        """The same on ideal links."""
        return replace(self, table="", name="", link=IDEAL, odd_link=IDEAL)


def carrying(rate: float) -> Link:
    """A link of ``rate`` times what f32 fragments on the way down need."""
    return Link(0.005, rate * 4 * NUMEL * FRAGMENTS / INTERVAL / STEP_SECONDS)


def far(round_trip_seconds: float) -> Link:
    """A link that is far and wide."""
    return Link(round_trip_seconds / 2, 1e12)


def cases(learners: Iterable[int], steps: int) -> list[Case]:
    """Every run but those on ideal links."""
    made: list[Case] = []
    for m in learners:
        made += [Case("rate", f"{rate:g}x", m, link=carrying(rate)) for rate in RATES]
        made += [Case("round trip, all", f"{1e3 * trip:g} ms", m, 0.1, link=far(trip)) for trip in ROUND_TRIPS]
        made += [
            Case("round trip, one", f"{1e3 * trip:g} ms", m, 0.1, odd=1, odd_link=far(trip)) for trip in ROUND_TRIPS
        ]
        made += [
            Case("far", f"one, {1e3 * trip:g} ms, steps of {1e3 * step:g} ms", m, step, odd=1, odd_link=far(trip))
            for trip, step in FAR
        ]
        made += [Case("speed", f"{slower:g} times slower", m, odd=1, odd_slower=slower) for slower in SPEEDS]
        made += [Case("dead slow", f"{part:g}x", m, odd=1, odd_link=carrying(part)) for part in (0.67, 0.2, 0.02)]
    made += [
        Case("learners", f"{m}, {what}", m, link=link, steps=min(steps, 120))
        for m in (2, 4, 8, 16, 32, 64)
        for what, link in (("1.18x", carrying(1 / 0.85)), ("160 ms", Link(0.08, 1e12)))
    ]
    return [replace(case, steps=min(case.steps, steps)) for case in made]


def run(case: Case) -> dict[str, float]:
    """Count a run: merged over trained tokens, of all learners, of the odd ones and of the others; and merges."""
    training = {"tokens": 10**12, "sequenceLength": 64, "batchSize": 16}
    sync = {"fragments": FRAGMENTS, "interval": INTERVAL, "quorum": 1}
    job = DiLoCoJob.model_validate(manifest("links", {"sim": case.learners}, training=training, sync=sync))
    ids = job.spec.learner_ids
    odd = ids[len(ids) - case.odd :]
    usual = Profile(case.step_seconds, JITTER, link=case.link)
    other = Profile(case.odd_slower * case.step_seconds, JITTER, link=case.odd_link)
    seconds = case.steps * case.step_seconds
    scenario = Scenario(dict.fromkeys(odd, other), usual)
    course = simulate_course(job, scenario, layout_of_sizes([NUMEL] * FRAGMENTS), seconds)
    learners = course.view.learners

    def share(names: Iterable[str]) -> float:
        chosen = [view for view in learners if view.id in set(names)]
        return sum(view.merged_tokens for view in chosen) / max(1, sum(view.tokens for view in chosen))

    return {
        "share": share(ids),
        "odd": share(odd or ids),
        "others": share(ids[: len(ids) - case.odd] or ids),
        "members": course.counts.members_per_merge,
        "merges_of_schedule": course.counts.merges / (case.steps * FRAGMENTS / INTERVAL),
    }


def main() -> None:
    """Run all cases, then report."""
    parser = command(__doc__)
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--quick", action="store_true", help="a smoke test: four learners, short runs")
    arguments = parser.parse_args()
    learners, steps = ((4,), 120) if arguments.quick else ((4, 8), STEPS)
    todo = cases(learners, steps)
    with workers(arguments.workers) as pool:
        everything = list(dict.fromkeys([*todo, *(case.ideal for case in todo)]))
        results = dict(zip(everything, pool.map(run, everything), strict=True))
    tables: dict[str, list[dict[str, Any]]] = {}
    for case in todo:
        tables.setdefault(case.table, []).append(_row(case, results[case], results[case.ideal]))
    asked = _asked(tables)
    ratios = {row["what"]: Ratio(row["measured"], row["against"]) for row in asked}
    schedule = f"P = H = {INTERVAL}, {STEPS} inner steps of {STEP_SECONDS} s"
    write_report(arguments.json, "links", ratios, {"schedule": schedule, **tables, "asked": asked})


def _row(case: Case, result: dict[str, float], ideal: dict[str, float]) -> dict[str, Any]:
    of_ideal = {f"{what}_of_ideal": result[what] / ideal[what] for what in ("share", "others")}
    return {"M": case.learners, "case": case.name, **result, **of_ideal}


def _asked(tables: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The goals, the worst measurement for each, and whether it is met."""

    def worst(table: str, column: str, but: str = "") -> float:
        return min(float(row[column]) for row in tables[table] if row["case"] != but)

    carries = worst("rate", "share_of_ideal")
    slow = worst("speed", "odd", but="10 times slower")
    distant = worst("far", "odd")
    beside = worst("dead slow", "others_of_ideal")
    rows = [
        ("link_carries", "ideal link; link of 4 times to once what is needed", 0.85, carries),
        ("slow_learner", "what it trains; a learner up to 5 times slower", 0.7, slow),
        ("far_learner", "what it trains; 80 ms one way, 100 ms steps; 100 ms, 50 ms", 0.7, distant),
        ("beside_dead_slow", "the others beside an ideal link", 0.98, beside),
    ]
    return [
        {"what": what, "against": against, "asked": asked, "measured": value, "holds": value >= asked}
        for what, against, asked, value in rows
    ]


if __name__ == "__main__":
    main()
