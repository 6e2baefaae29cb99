"""Benchmark `links`: how much of the learners' work is merged over thin, far and uneven links.

Runs are counted in virtual time (`diloco.simulate.simulate_course`): engine, schedule and links are those of a real
run, nothing is trained. All of them are of equal length. Run it with

    python benchmarks/links.py --json benchmarks/results/links.json

A share is merged tokens over trained tokens, and it is held against the share over an ideal link: no latency, no limit.
With ``first rules`` the engine merges whatever has arrived when the grace window ends, as it once did.
"""

import argparse
import multiprocessing
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diloco.core.options import Rules
from diloco.simulate import Kill, Link, Profile, RunOptions, Scenario, faults_every, layout_of_sizes, simulate_course
from diloco.spec import DiLoCoJob
from report import write_report

FRAGMENTS = INTERVAL = 24
NUMEL = 10_000
"""Elements of each fragment: only what the link takes for it matters."""
STEPS = 400
"""Length of a run, in inner steps of the fastest learner."""
STEP_SECONDS = 0.5
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
    jitter: float = 0.05
    link: Link = IDEAL
    odd: int = 0
    """Learners, the last ones, that are not like the others."""
    odd_link: Link = IDEAL
    odd_slower: float = 1.0
    quorum: int = 1
    interval: int = INTERVAL
    kills: bool = False
    rules: Rules = Rules.READY
    steps: int = STEPS

    @property
    def ideal(self) -> "Case":
        """The same on ideal links."""
        return Case(**{**vars(self), "table": "", "name": "", "link": IDEAL, "odd_link": IDEAL, "rules": Rules.READY})


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    share: float
    """Merged over trained tokens, of all learners."""
    odd_share: float
    """Of the odd ones; of all where there are none."""
    others_share: float
    members: float
    merges_per_step: float
    """Over what the schedule asks for."""


def carrying(rate: float, step_seconds: float = STEP_SECONDS, interval: int = INTERVAL) -> Link:
    """A link of ``rate`` times what f32 fragments on the way down need."""
    return Link(0.005, rate * 4 * NUMEL * FRAGMENTS / interval / step_seconds)


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
        made += [
            Case("quorum", f"K = {k}, 1.18x", m, link=carrying(1 / 0.85), quorum=k) for k in sorted({1, m // 2, m})
        ]
        made += [
            Case("jitter", f"{share:.0%}, 1.18x", m, jitter=share, link=carrying(1 / 0.85)) for share in (0.2, 0.4)
        ]
        made.append(Case("half thin", "1.18x", m, odd=m // 2, odd_link=carrying(1 / 0.85)))
        made.append(Case("interval", "H = 48, 1.05x", m, interval=48, link=carrying(1.05, interval=48)))
        made += [Case("dead slow", f"{part:g}x", m, odd=1, odd_link=carrying(part)) for part in (0.67, 0.2, 0.02)]
        made += [Case("overload", f"{rate:g}x", m, link=carrying(rate)) for rate in (0.9, 0.75, 0.5)]
        for rules in Rules:
            made.append(Case("fast", f"{rules.name.lower()}", m, link=Link(), rules=rules))
            made.append(Case("failures", f"{rules.name.lower()}", m, link=Link(), kills=True, rules=rules))
    made += [
        Case("learners", f"{m}, {what}", m, link=link, steps=min(steps, 120))
        for m in (2, 4, 8, 16, 32, 64)
        for what, link in (("1.18x", carrying(1 / 0.85)), ("160 ms", Link(0.08, 1e12)))
    ]
    return [Case(**{**vars(case), "steps": min(case.steps, steps)}) for case in made]


def run(case: Case) -> Result:
    """Count a run."""
    sync = {"fragments": FRAGMENTS, "interval": case.interval, "quorum": case.quorum}
    manifest = {
        "apiVersion": "diloco.dev/v1alpha1",
        "kind": "DiLoCoJob",
        "metadata": {"name": "links"},
        "spec": {
            "model": {"builtin": {"preset": "pico"}},
            "data": {"text": {}},
            "training": {"tokens": 10**12, "sequenceLength": 64, "batchSize": 16},
            "sync": sync,
            "regions": [{"name": "sim", "pools": [{"name": "pool", "learners": case.learners}]}],
        },
    }
    job = DiLoCoJob.model_validate(manifest)
    ids = job.spec.learner_ids
    odd = ids[len(ids) - case.odd :]
    usual = Profile(case.step_seconds, case.jitter, link=case.link)
    other = Profile(case.odd_slower * case.step_seconds, case.jitter, link=case.odd_link)
    seconds = case.steps * case.step_seconds
    kills = faults_every(
        60.0, lambda name, at: Kill(name, at, 10.0), learners=ids, until_seconds=seconds if case.kills else 0.0, seed=0
    )
    scenario = Scenario(dict.fromkeys(odd, other), usual, faults=kills)
    course = simulate_course(
        job, scenario, layout_of_sizes([NUMEL] * FRAGMENTS), RunOptions(case.rules, stop_seconds=seconds)
    )
    learners = course.view.learners

    def share(names: Iterable[str]) -> float:
        chosen = [view for view in learners if view.id in set(names)]
        return sum(view.merged_tokens for view in chosen) / max(1, sum(view.tokens for view in chosen))

    return Result(
        share(ids),
        share(odd or ids),
        share(ids[: len(ids) - case.odd] or ids),
        course.counts.members_per_merge,
        course.counts.merges / (case.steps * FRAGMENTS / case.interval),
    )


def main() -> int:
    """Run all cases, then report."""
    arguments = _parse()
    learners, steps = ((4,), 120) if arguments.quick else ((4, 8), STEPS)
    todo = cases(learners, steps)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.workers, mp_context=context) as pool:
        everything = list(dict.fromkeys([*todo, *(case.ideal for case in todo)]))
        results = dict(zip(everything, pool.map(run, everything), strict=True))
    _report(arguments.json, todo, results)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Merged share of the learners' work over thin, far and uneven links.")
    parser.add_argument("--json", type=Path, help="write the report here")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--quick", action="store_true", help="a smoke test: four learners, short runs")
    return parser.parse_args()


def _report(path: Path | None, todo: list[Case], results: dict[Case, Result]) -> None:
    figures: dict[str, Any] = {
        "schedule": f"P = H = {INTERVAL}, {STEPS} inner steps of {STEP_SECONDS} s",
    }
    for case in todo:
        figures.setdefault(case.table, []).append(_row(case, results))
    asked = _asked(todo, results)
    figures["asked"] = asked
    ratios = {row["what"]: row["measured"] for row in asked}
    against = {row["what"]: row["against"] for row in asked}
    write_report(path, benchmark="links", ratios=ratios, figures=figures, against=against)


def _row(case: Case, results: dict[Case, Result]) -> dict[str, Any]:
    result, ideal = results[case], results[case.ideal]
    row = {"M": case.learners, "case": case.name, "share": result.share, "of_ideal": result.share / ideal.share}
    if case.odd:
        row |= {"odd": result.odd_share, "others": result.others_share, "others_ideal": ideal.others_share}
    return row | {"members": result.members, "merges_of_schedule": result.merges_per_step}


def _asked(todo: list[Case], results: dict[Case, Result]) -> list[dict[str, Any]]:
    """The goals, the worst measurement for each, and whether it is met."""

    def worst(table: str, value: Any, *, names: tuple[str, ...] = ()) -> float:
        chosen = [case for case in todo if case.table == table and (not names or case.name in names)]
        return float(min(value(results[case], results[case.ideal]) for case in chosen))

    def of_ideal(result: Result, ideal: Result) -> float:
        return result.share / ideal.share

    def odd_share(result: Result, ideal: Result) -> float:
        del ideal
        return result.odd_share

    up_to_five = tuple(f"{slower:g} times slower" for slower in SPEEDS if slower <= 5)
    slow = worst("speed", odd_share, names=up_to_five)
    beside = worst("dead slow", lambda result, ideal: result.others_share / ideal.others_share)
    fast, failures = _by_rules("fast", todo, results), _by_rules("failures", todo, results)
    rows = [
        ("link_carries", "ideal link; link of 4 times to once what is needed", 0.85, worst("rate", of_ideal)),
        ("slow_learner", "what it trains; a learner up to 5 times slower", 0.7, slow),
        ("far_learner", "what it trains; 80 ms one way, 100 ms steps; 100 ms, 50 ms", 0.7, worst("far", odd_share)),
        ("beside_dead_slow", "the others beside an ideal link", 0.98, beside),
        ("fast_links", "the same by the first rules", 0.99, fast),
        ("failures", "the same by the first rules; a kill a minute", 0.99, failures),
    ]
    return [
        {"what": what, "against": against, "asked": asked, "measured": value, "holds": value >= asked}
        for what, against, asked, value in rows
    ]


def _by_rules(table: str, todo: list[Case], results: dict[Case, Result]) -> float:
    chosen = [case for case in todo if case.table == table]
    shares = {(case.learners, case.rules): results[case].share for case in chosen}
    return min(shares[m, Rules.READY] / shares[m, Rules.ARRIVED] for m in {case.learners for case in chosen})


if __name__ == "__main__":
    sys.exit(main())
