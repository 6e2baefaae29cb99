"""Benchmark `published`: the published figures of decoupled training, and what the simulation makes of each.

    python benchmarks/published.py --json benchmarks/results/published.json

Prints each cell as published, ours and the difference, and fails if a claim is not within what it allows.
docs/explanation/published.md says what is fitted and what is inferred.
"""

import statistics
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, NamedTuple

from diloco.simulate.published import bandwidth, capacity, goodput, links, tables
from support.processes import workers
from support.report import Ratio, command, write_report

HOURS = 12.0
"""Virtual hours of a job of 8 or more learners through the engine; one of 4 runs twice as long, one of 2 four times."""
DRAWN_SECONDS = 2e6
"""Virtual time for which failures alone are drawn."""
MIXED_DRAWS = 20_000
MIXED_SEEDS = range(4)
MIXED_SECONDS = 1800.0
LINKS_SECONDS = 7200.0
Row = dict[str, Any]


class Claim(NamedTuple):
    """One thing that must hold."""

    claim: str
    least: float
    measured: float
    most: float

    def row(self) -> Row:
        return {**self._asdict(), "holds": self.holds}

    @property
    def holds(self) -> bool:
        return self.least <= self.measured <= self.most


def cell(row: str, column: str, paper: float, ours: float, **more: Any) -> Row:
    """A cell of a table."""
    return {"row": row, "column": column, "paper": paper, "ours": ours, "difference": ours - paper, **more}


class Asked(NamedTuple):
    """A cell of the table of goodput, and its calculations."""

    row: str
    chips: int
    paper: float
    ours: float
    drawn: Future[goodput.Happened]
    engine: Future[goodput.Engine] | None = None

    def row_of(self) -> Row:
        drawn = self.drawn.result()
        made = cell(self.row, f"{self.chips:,}", self.paper, 100 * self.ours, drawn=100 * drawn.goodput)
        if self.engine is None:
            return made
        engine = self.engine.result()
        return {**made, "engine": 100 * engine.computing, "merged": 100 * engine.merged, "uptime": 100 * drawn.uptime}


def goodput_cells(pool: ProcessPoolExecutor, hours: float) -> list[Row]:
    """The 30 cells, in percent: closed forms, drawn failures and the engine."""
    pauses, asked = goodput.CALIBRATED, list[Asked]()
    for name, printed, form, whole in (
        ("data-parallel", tables.DATA_PARALLEL, goodput.data_parallel, True),
        ("data-parallel, elastic", tables.ELASTIC, goodput.elastic, False),
    ):
        for chips, paper in zip(tables.CHIPS, printed, strict=True):
            drawn = pool.submit(goodput.from_failures, 1, chips, pauses, DRAWN_SECONDS, whole=whole)
            asked.append(Asked(name, chips, paper, form(chips, pauses), drawn))
    for learners, printed in tables.DECOUPLED.items():
        for chips, paper in zip(tables.CHIPS, printed, strict=True):
            drawn = pool.submit(goodput.from_failures, learners, chips, pauses, DRAWN_SECONDS)
            engine = pool.submit(goodput.through_engine, learners, chips, pauses, hours * max(1, 8 / learners) * 3600)
            ours = goodput.decoupled(learners, chips, pauses)
            asked.append(Asked(f"M = {learners}", chips, paper, ours, drawn, engine))
    return [one.row_of() for one in asked]


def goodput_claims(cells: list[Row]) -> Iterator[Claim]:
    """What is asked of the 30 cells."""
    fitted, kept = goodput.fitted(), goodput.CALIBRATED
    for name in ("down_seconds", "recovery_seconds", "up_seconds"):
        yield Claim(f"fitted {name}", getattr(kept, name), getattr(fitted, name), getattr(kept, name))
    decoupled = [row for row in cells if row["row"].startswith("M = ")]
    differences = [abs(row["difference"]) for row in decoupled]
    yield Claim("decoupled goodput: mean difference, points", 0, statistics.mean(differences), 1)
    yield Claim("decoupled goodput: largest difference, points", 0, max(differences), 4)
    yield Claim("decoupled goodput: cells within 2 points", 18, sum(one <= 2 for one in differences), 20)
    for name, most in (("data-parallel", 3), ("data-parallel, elastic", 3), ("M = 8", 1)):
        found = next(row for row in cells if (row["row"], row["column"]) == (name, "1,200,000"))
        yield Claim(f"goodput at 1.2M chips, {name}: difference, points", 0, abs(found["difference"]), most)
    drawn = [abs(row["drawn"] - row["ours"]) for row in cells]
    yield Claim("drawn failures: largest difference to the closed forms, points", 0, max(drawn), 0.7)
    engine = [abs(row["engine"] - row["ours"]) for row in decoupled]
    yield Claim("engine: largest difference to the closed forms, points", 0, max(engine), 1)
    for names, least in ((("M = 8", "M = 16"), 99.99), (("M = 4",), 99.0)):
        uptime = min(row["uptime"] for row in decoupled if row["row"] in names)
        yield Claim(f"least uptime of {' and '.join(names)}, percent", least, uptime, 100)


def usual_cells() -> list[Row]:
    """Goodput at 1.2M chips if pauses take as long as in a usual cluster."""
    chips, pauses = 1_200_000, goodput.USUAL
    rows = [("data-parallel", goodput.data_parallel(chips, pauses))]
    rows += [("data-parallel, elastic", goodput.elastic(chips, pauses))]
    rows += [(f"M = {learners}", goodput.decoupled(learners, chips, pauses)) for learners in tables.DECOUPLED]
    return [{"row": name, "chips": chips, "goodput": 100 * value} for name, value in rows]


def bandwidth_cells(bits: float) -> list[Row]:
    """The 75 cells, in Gbit/s; differences in steps of the grid that they are chosen from."""
    rows = []
    for method, models in tables.BANDWIDTH.items():
        for name, printed in models.items():
            model = bandwidth.MODELS[name]
            exchange = bandwidth.published_exchange(method, model, bits)
            for wanted, paper in zip(tables.UTILIZATIONS, printed, strict=True):
                ours = bandwidth.grid_gbits(model, exchange, wanted)
                steps = bandwidth.grid_steps(paper, ours)
                rows.append(cell(f"{method}, {name}", f"{100 * wanted:g} %", paper, ours, steps=steps))
    return rows


def bandwidth_claims(cells: list[Row]) -> Iterator[Claim]:
    """What is asked of the 75 cells."""
    whole = [row for row in cells if row["row"].startswith(("data-parallel", "DiLoCo"))]
    yield Claim("bandwidth: cells within a step of the grid", 75, sum(abs(row["steps"]) <= 1 for row in cells), 75)
    yield Claim("bandwidth: exact cells", 65, sum(row["steps"] == 0 for row in cells), 75)
    yield Claim("bandwidth: exact, of data-parallel and DiLoCo", 30, sum(row["steps"] == 0 for row in whole), 30)


def places_cells() -> list[Row]:
    """Rates between places, in Gbit/s."""
    rows = []
    for published, case in ((tables.EIGHT_PLACES, links.EIGHT_PLACES), (tables.TWO_PLACES, links.TWO_PLACES)):
        for method, paper in zip(("data-parallel", "decoupled"), published, strict=True):
            exchange = case.data_parallel() if method == "data-parallel" else case.decoupled()
            ours = bandwidth.needed_gbits(case.model, exchange, case.utilization)
            on_grid = bandwidth.grid_gbits(case.model, exchange, case.utilization)
            rows.append(cell(method, f"{case.places} places", paper, ours, on_grid=on_grid))
    return rows


def places_claims(cells: list[Row]) -> Iterator[Claim]:
    """Within 2 %; those of two places as printed, from the grid and without further decimals."""
    for row in cells:
        name = f"{row['column']}, {row['row']}, Gbit/s"
        if row["column"] == "8 places":
            yield Claim(name, 0.98 * row["paper"], row["ours"], 1.02 * row["paper"])
        else:
            yield Claim(f"{name}, on the grid", 0.98 * row["paper"], row["on_grid"], 1.02 * row["paper"])


def faster_cells(pool: ProcessPoolExecutor, seconds: float) -> list[Row]:
    """Seconds of a step by rate: blocking, decoupled, and decoupled with a link of the syncer's own at that rate."""
    worlds = [links.world_of(gbits) for gbits in links.RATES_GBITS]
    narrow = [links.world_of(gbits, f"{gbits:g}Gbit/s") for gbits in links.RATES_GBITS]
    found = list(pool.map(links.decoupled_step_seconds, worlds + narrow, [seconds] * 2 * len(worlds)))
    rows = []
    wide, shared = found[: len(worlds)], found[len(worlds) :]
    for gbits, world, decoupled, own in zip(links.RATES_GBITS, worlds, wide, shared, strict=True):
        blocking = links.blocking_step_seconds(world)
        times = {"blocking_seconds": blocking, "decoupled_seconds": decoupled, "syncer_at_rate_seconds": own}
        rows.append(cell("times faster", f"{gbits:g} Gbit/s", tables.FASTER, blocking / decoupled, **times))
    return rows


def capacity_cells(pool: ProcessPoolExecutor) -> tuple[list[Row], list[Claim]]:
    """Mixed generations and scavenged capacity."""
    mixed = 100 * capacity.mixed(MIXED_DRAWS)
    engine = list(pool.map(capacity.mixed_through_engine, MIXED_SEEDS, [MIXED_SECONDS] * len(MIXED_SEEDS)))
    apart = [
        100 * abs(one - capacity.waiting_for_all(capacity.step_seconds(seed)))
        for seed, one in zip(MIXED_SEEDS, engine, strict=True)
    ]
    rows = [cell("mixed generations", "K = 8", tables.MIXED, mixed)]
    claims = [
        Claim("mixed generations, K = 8: goodput, percent", tables.MIXED - 1, mixed, tables.MIXED + 1),
        Claim("mixed generations: largest difference of the engine, points", 0, max(apart), 1),
    ]
    for added, paper in tables.SCAVENGED.items():
        ours = capacity.scavenged(added)
        rows.append(cell("scavenged capacity", f"+{100 * added:g} %", paper, ours))
        claims.append(Claim(f"scavenged capacity, +{100 * added:g} %: wall clock", paper - 0.01, ours, paper + 0.01))
    return rows, claims


def main() -> None:
    """Calculate all cells, report them, and fail if a claim does not hold."""
    parser = command(__doc__)
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument(
        "--hours", type=float, default=HOURS, help=f"virtual hours of a job of 8 or more learners (default {HOURS:g})"
    )
    arguments = parser.parse_args()
    with workers(arguments.workers) as pool:
        of_goodput = goodput_cells(pool, arguments.hours)
        faster = faster_cells(pool, LINKS_SECONDS)
        of_capacity, capacity_claims = capacity_cells(pool)
    of_bandwidth, places = bandwidth_cells(bandwidth.BITS), places_cells()
    wider = bandwidth_cells(16)
    claims = [
        *goodput_claims(of_goodput),
        *bandwidth_claims(of_bandwidth),
        *places_claims(places),
        Claim("least times faster than blocking", tables.FASTER, min(row["ours"] for row in faster), 1000),
        *capacity_claims,
    ]
    figures = {
        "goodput": of_goodput,
        "usual_pauses": usual_cells(),
        "bandwidth": of_bandwidth,
        "bandwidth_16_bits_within_a_step": sum(abs(row["steps"]) <= 1 for row in wider),
        "places": places,
        "faster": faster,
        "capacity": of_capacity,
        "virtual_hours": arguments.hours,
        "claims": [claim.row() for claim in claims],
    }
    held = Ratio(sum(claim.holds for claim in claims) / len(claims), "all claims")
    write_report(arguments.json, "published", {"claims_that_hold": held}, figures)
    broken = [claim.claim for claim in claims if not claim.holds]
    if broken:
        sys.exit(f"not within what is allowed: {'; '.join(broken)}")


if __name__ == "__main__":
    main()
