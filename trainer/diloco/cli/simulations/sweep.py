"""Simulates a job once for every combination of the values of some fields of its manifest or its world."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from diloco.cli.simulations.inputs import Inputs
from diloco.cli.simulations.recording import bar_of, claim, costs_of, region_bytes
from diloco.cli.simulations.sweep_page import axis_field, short_names, sweep_page
from diloco.core.fragments import LayoutError
from diloco.local.view.units import duration_text, percent_text
from diloco.plan.fit.situation import SYNCER_LINK, rate_text
from diloco.runtime.files import write_atomically, write_json_atomically
from diloco.runtime.process.exits import EXIT_INTERRUPTED, EXIT_OK
from diloco.simulate.judged import Ending, go_on
from diloco.simulate.of_world import line_rate, scenario_of
from diloco.simulate.world import Simulation
from diloco.spec.errors import SpecError
from diloco.spec.reading.defaults import fill_in
from diloco.spec.reading.document import Json, read_document
from diloco.spec.reading.load import job_from, read_manifest
from diloco.spec.status.syncer import RegionBytes
from diloco.world import WorldError
from diloco.world.reading import world_from

MOST_RUNS: Final = 1000
_WORLD: Final = "world."


class SweepError(ValueError):
    """``--sweep`` cannot be used; the text is one line that names it and what to give."""


@dataclass(frozen=True, slots=True)
class Swept:
    """A field and its values, as the argument has them."""

    field: str
    values: tuple[str, ...]

    @classmethod
    def parsed(cls, text: str) -> "Swept":
        """From ``FIELD=VALUE,VALUE``.

        Raises:
            SweepError: it is anything else.
        """
        field, equals, values = text.partition("=")
        found = tuple(value.strip() for value in values.split(","))
        if not (equals and all(field.split(".")) and all(found)):
            raise SweepError(f"--sweep {text}: {text!r} is not FIELD=VALUE,VALUE; use sync.quorum=1,2,4")
        if len(set(found)) < len(found):
            raise SweepError(f"--sweep {text}: a value is there twice; use each once")
        return cls(field, found)


@dataclass(frozen=True, slots=True)
class Row:
    """One run of a sweep."""

    values: dict[str, str]
    """By field."""
    ending: str
    reason: str
    virtual_seconds: float
    finish_seconds: float | None
    """At the pace so far; None: nothing was merged."""
    goodput: float | None
    merged: float | None
    members_per_merge: float
    busiest_link: str
    """The one that carries the largest share of its rate, or the most bytes if all are unlimited."""
    bytes_per_second: float
    """Of that link on average, in the direction that carries more."""
    cost: float | None
    """Of the whole job, at the pace so far."""


def simulate_all(
    inputs: Inputs, manifest: Path, texts: Sequence[str], folder: Path, console: Console, *, as_json: bool
) -> int:
    """Simulate every combination, and write ``sweep.json`` and ``sweep.html`` into the folder; the exit code.

    Raises:
        SweepError: an argument cannot be used.
        SpecError: a value cannot be used in its field; all combinations are tried before the first run.
        OutputError, OSError: the folder cannot be used.
        PlanError, LayoutError, WorldError, ModelError, DataError: the inputs cannot be used.
    """
    swept = [Swept.parsed(text) for text in texts]
    names = [one.field for one in swept]
    if len(set(names)) < len(names):
        raise SweepError(f"--sweep: {max(names, key=names.count)} is there twice; use each field once")
    if (runs := math.prod(len(one.values) for one in swept)) > MOST_RUNS:
        raise SweepError(f"--sweep: {runs} combinations are too many; use at most {MOST_RUNS}")
    document = read_document(read_manifest(manifest), str(manifest))
    fill_in(document)
    ways = [dict(zip(names, values, strict=True)) for values in product(*(one.values for one in swept))]
    varied = [(way, _with(inputs, document, way)) for way in ways]
    claim(folder)
    rows: list[Row] = []
    interrupted = False
    try:
        with bar_of(console) as bar:
            _run_all(varied, rows, bar)
    except KeyboardInterrupt:  # between two runs; one within a run is the ending of its row
        interrupted = True
    finally:
        told = [asdict(row) for row in rows]
        if rows:
            figures = {"job": inputs.job.metadata.name, "seed": inputs.seed, "runs": told}
            write_json_atomically(folder / "sweep.json", figures)
            write_atomically(folder / "sweep.html", sweep_page(inputs.job.metadata.name, names, told))
    if not rows:
        return EXIT_INTERRUPTED
    if as_json:
        typer.echo(json.dumps(told, indent=2))
    else:
        console.print(table(rows))
        where = "plots are in" if axis_field(names, told) else "runs are also in the table of"
        console.print(f"\nThe {where} {folder / 'sweep.html'}.")
    return EXIT_INTERRUPTED if interrupted or rows[-1].ending == Ending.INTERRUPTED else EXIT_OK


def _run_all(varied: Sequence[tuple[dict[str, str], Inputs]], rows: list[Row], bar: Progress) -> None:
    """Simulate each combination and add its row, up to one that is interrupted."""
    task = bar.add_task("", total=float(len(varied)))
    for place, (way, one) in enumerate(varied):

        def tell(run: Simulation, place: int = place) -> None:
            done = run.progress.merged_tokens / run.progress.budget_tokens
            bar.update(task, completed=place + done, description=f"{place + 1} of {len(varied)}")

        rows.append(_run(one, way, tell))
        if rows[-1].ending == Ending.INTERRUPTED:
            break


def _with(inputs: Inputs, document: Json, values: dict[str, str]) -> Inputs:
    """The inputs with these values of fields, if they can be simulated."""
    job = deepcopy(document)
    world = inputs.world.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for field, text in values.items():
        flag = f"--sweep {field}={text}"
        value = read_document(text, flag)
        if field.startswith(_WORLD):
            _set(world, field.removeprefix(_WORLD), value, flag)
        else:
            _set(job, f"spec.{field}", value, flag)
    source = "--sweep " + " ".join(f"{field}={text}" for field, text in values.items())
    try:
        made = job_from(job, source)
    except SpecError as error:
        raise error.under(f"{source}: ") from None
    try:
        given = world_from(world, source)
    except SpecError as error:
        raise error.under(f"{source}: {_WORLD}") from None
    if problems := [*given.problems(made.spec)]:
        raise SpecError(problems, source).under(f"{source}: {_WORLD}")
    varied = replace(inputs, job=made, world=given)
    try:
        scenario_of(made.spec, given, varied.size().parameters, inputs.seed)
    except LayoutError as error:
        raise SweepError(f"{source}: {error}") from error
    except WorldError as error:
        raise SweepError(f"{source}: {_WORLD}{error}") from error
    return varied


def _set(document: Any, path: str, value: Json, flag: str) -> None:
    """Set a field of nested mappings; an item of a list is named by its ``name`` or its index."""
    *parts, last = path.split(".")
    for part in parts:
        if isinstance(document, list):
            named = [one for one in document if isinstance(one, dict) and one.get("name") == part]
            indexed = [document[int(part)]] if part.isdecimal() and int(part) < len(document) else []
            if not (named or indexed):
                raise SweepError(f"{flag}: {part!r} is not in the list there; use a name or an index of it")
            document = (named or indexed)[0]
        else:
            document = document.setdefault(part, {})
        if not isinstance(document, dict | list):
            raise SweepError(f"{flag}: {part!r} is no mapping; use a field of the manifest's spec or of the world")
    if not isinstance(document, dict):
        raise SweepError(f"{flag}: {last!r} is an item of a list; use a field of it")
    document[last] = value


def _run(inputs: Inputs, values: dict[str, str], tell: Callable[[Simulation], None]) -> Row:
    spec, size = inputs.job.spec, inputs.size()
    scenario = scenario_of(spec, inputs.world, size.parameters, inputs.seed)
    layout, work = inputs.work(size)
    simulation = Simulation(inputs.job, scenario, layout, work)
    verdict = go_on(simulation, spec, scenario, inputs.limit_seconds, tell)
    course = simulation.course()
    busiest, carried = _busiest_link(inputs, region_bytes(spec, simulation.traffic))
    return Row(
        values=values,
        ending=verdict.ending.value,
        reason=verdict.reason,
        virtual_seconds=simulation.now,
        finish_seconds=verdict.finish_seconds,
        goodput=course.view.goodput,
        merged=course.view.merged,
        members_per_merge=course.counts.members_per_merge,
        busiest_link=busiest,
        bytes_per_second=carried / max(simulation.now, 1e-9),
        cost=costs_of(inputs, simulation, verdict)[1],
    )


def _busiest_link(inputs: Inputs, sent: Sequence[RegionBytes]) -> tuple[str, int]:
    """Of the regions' links and the syncer's own the busiest, and the bytes of the direction that carries more."""
    regions = zip(inputs.job.spec.regions, sent, strict=True)
    links = [
        (max(one.up.total, one.down.total), line_rate(region, inputs.world.region(region.name)), region.name)
        for region, one in regions
    ]
    both = (sum(one.up.total for one in sent), sum(one.down.total for one in sent))
    links.append((max(both), inputs.world.syncer.bytes_per_second, SYNCER_LINK))
    carried, _, name = max(links, key=lambda one: (one[0] / one[1], one[0]))
    return name, carried


def table(rows: Iterable[Row]) -> Table:
    """A row for each run."""
    rows = list(rows)
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for name in short_names([*rows[0].values]).values():
        shown.add_column(name)
    priced = any(row.cost for row in rows)
    for name in ("ending", "complete after", "goodput", "merged", "learners a merge", "busiest link"):
        shown.add_column(name, justify="right", no_wrap=True)
    if priced:
        shown.add_column("cost", justify="right", no_wrap=True)
    for row in rows:
        shown.add_row(
            *row.values.values(),
            row.ending,
            "-" if row.finish_seconds is None else duration_text(row.finish_seconds),
            percent_text(row.goodput),
            percent_text(row.merged),
            f"{row.members_per_merge:.2f}",
            f"{row.busiest_link} {rate_text(row.bytes_per_second)}",
            *(["-" if row.cost is None else f"{row.cost:,.2f}"] if priced else []),
        )
    return shown
