"""Simulates one run, and leaves the summary and the report that a real run leaves."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from diloco.cli.simulations.inputs import Inputs
from diloco.core.engine.actions import Action
from diloco.core.engine.engine import Engine
from diloco.core.engine.events import Event
from diloco.local.directory import RunDirectory
from diloco.local.report.history import RunHistory
from diloco.local.report.history_builder import HistoryBuilder
from diloco.local.report.html import render_report
from diloco.local.report.summary import closing_table, summarize
from diloco.local.targets import SYNCER
from diloco.local.view.units import duration_text
from diloco.runtime.files import make_writable_directory, write_atomically, write_json_atomically
from diloco.runtime.journal import Entry
from diloco.runtime.process.exits import EXIT_DOES_NOT_FIT, EXIT_INTERRUPTED, EXIT_JOB_FAILED, EXIT_OK
from diloco.simulate.judged import Ending, Verdict, go_on, training_seconds
from diloco.simulate.network.session import Traffic
from diloco.simulate.of_world import scenario_of
from diloco.simulate.syncer import STARTED
from diloco.simulate.world import Simulation
from diloco.spec import JobSpec
from diloco.spec.status.syncer import BytesByKind, RegionBytes
from diloco.world.cost import cost_of

_SAMPLES = 1000
"""Points of the charts over time, about."""


EXITS: Final = {
    Ending.COMPLETE: EXIT_OK,
    Ending.TIME_UP: EXIT_OK,
    Ending.FAILED: EXIT_JOB_FAILED,
    Ending.STALLED: EXIT_DOES_NOT_FIT,
    Ending.TOO_SLOW: EXIT_DOES_NOT_FIT,
    Ending.INTERRUPTED: EXIT_INTERRUPTED,
}


class OutputError(ValueError):
    """The output directory cannot be used; the text is one line that names it and what to do."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """A simulated run."""

    inputs: Inputs
    history: RunHistory
    verdict: Verdict
    cost: float
    """Of what was simulated, in the currency of the world's prices."""
    finish_cost: float | None
    """Of the whole job, at the pace so far; None: nothing was merged."""

    @property
    def exit_code(self) -> int:
        """Of the command."""
        return EXITS[self.verdict.ending]

    def document(self) -> dict[str, Any]:
        """``summary.json``: that of a run with virtual in place of wall time, and what only a simulation has."""
        document = summarize(self.history)
        document["virtual_seconds"] = document.pop("wall_seconds")
        document["simulation"] = {
            "seed": self.inputs.seed,
            "trained": self.inputs.train,
            "ending": self.verdict.ending.value,
            "reason": self.verdict.reason,
            "finish_seconds": self.verdict.finish_seconds,
            "cost": self.cost,
            "finish_cost": self.finish_cost,
        }
        return document

    def table(self) -> RenderableType:
        """The closing table."""
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="dim")
        facts.add_column(overflow="fold")
        facts.add_row("simulation", f"{self.verdict.ending.value}: {self.verdict.reason}")
        finish = self.verdict.finish_seconds
        if finish is not None and self.verdict.ending is not Ending.COMPLETE:
            facts.add_row("complete", f"after {duration_text(finish)}, at the pace so far")
        if self.finish_cost:
            facts.add_row("cost", f"{self.finish_cost:,.2f} of the whole job")
        return Group(closing_table(self.history), facts)


class Recorder:
    """Passes what happens in a simulation on to a history."""

    def __init__(self, builder: HistoryBuilder) -> None:
        self._builder = builder

    def begins(self, engine: Engine) -> None:
        """See `Observer`."""
        self._builder.process_changed(SYNCER, 0.0, "")
        self._builder.begins(engine, 0.0, 0.0)

    def passed(self, event: Event, actions: Sequence[Action], now: float) -> None:
        """See `Observer`."""
        self._builder.passed(event, actions, now, now)

    def process(self, learner: str, now: float, change: str) -> None:
        """See `Observer`."""
        self._builder.process_changed(learner, now, "" if change == STARTED else change)


def claim(folder: Path) -> RunDirectory:
    """The folder for the output, which an earlier simulation may have used.

    Raises:
        OutputError: it holds a run.
        OSError: it cannot be made or written.
    """
    directory = RunDirectory(folder)
    if directory.journal.exists():
        raise OutputError(f"--output: {folder} holds a run of 'diloco run'; use another directory")
    make_writable_directory(folder)
    return directory


def simulate_once(inputs: Inputs, folder: Path, console: Console) -> Simulated:
    """Simulate, show how far it is, and write ``summary.json`` and ``report.html`` into the folder.

    Raises:
        OutputError, OSError: the folder cannot be used.
        PlanError, LayoutError, WorldError, ModelError, DataError: the inputs cannot be used.
    """
    directory, spec, size = claim(folder), inputs.job.spec, inputs.size()
    scenario = scenario_of(spec, inputs.world, size.parameters, inputs.seed)
    layout, work = inputs.work(size)
    processes = {learner: spec.pool_of(learner).ranks for learner in spec.learner_ids}
    builder = HistoryBuilder(inputs.job, layout, [Entry("run", "", 0.0, {"processes": processes})])
    expected_seconds = inputs.limit_seconds or training_seconds(spec, scenario)
    builder.sample_seconds = max(builder.sample_seconds, expected_seconds / _SAMPLES)
    simulation = Simulation(inputs.job, scenario, layout, work, Recorder(builder))
    with bar_of(console) as bar:
        task = bar.add_task("", total=1.0)

        def tell(run: Simulation) -> None:
            done = run.progress.merged_tokens / run.progress.budget_tokens
            if inputs.limit_seconds is not None:
                done = max(done, run.now / inputs.limit_seconds)
            bar.update(task, completed=done, description=f"{duration_text(run.now)} simulated")

        verdict = go_on(simulation, spec, scenario, inputs.limit_seconds, tell)
    builder.ends()
    builder.bytes_by_region = region_bytes(spec, simulation.traffic)
    history = builder.history()
    if not history.merged_tokens:  # the engine counts none before all learners have begun
        history = replace(history, merged_tokens=fsum(one.merged_tokens for one in history.learners))
    if not inputs.train:  # nothing was computed, so there are no losses
        without = tuple(replace(one, losses=()) for one in history.learners)
        history = replace(history, evaluations=(), learners=without)
    told = "with the training computed" if inputs.train else "without computing the training"
    note = f"Simulated in virtual time, {told}; seed {inputs.seed}. {verdict.ending.value}: {verdict.reason}."
    history = replace(history, notes=(*history.notes, note))
    simulated = Simulated(inputs, history, verdict, *costs_of(inputs, simulation, verdict))
    write_json_atomically(directory.summary, simulated.document())
    write_atomically(directory.report, render_report(history, ""))
    return simulated


def costs_of(inputs: Inputs, simulation: Simulation, verdict: Verdict) -> tuple[float, float | None]:
    """What was simulated costs, and the whole job at the pace so far; None: nothing was merged."""
    spec, finish = inputs.job.spec, verdict.finish_seconds
    both_ways = {one.region: one.up.total + one.down.total for one in region_bytes(spec, simulation.traffic)}
    cost = cost_of(spec, inputs.world, simulation.now, both_ways)
    return cost, None if finish is None else cost * finish / simulation.now


def region_bytes(spec: JobSpec, traffic: Traffic) -> tuple[RegionBytes, ...]:
    """The bytes of a simulation's fragments, in the order of the manifest."""
    return tuple(
        RegionBytes(
            region=region.name,
            up=BytesByKind(bulk=traffic.up.get(region.name, 0)),
            down=BytesByKind(bulk=traffic.down.get(region.name, 0)),
        )
        for region in spec.regions
    )


def bar_of(console: Console) -> Progress:
    """A progress bar with the time left; none outside of a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
