"""Simulates one run, and leaves the summary and the report that a real run leaves."""

from collections import deque
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
from diloco.local.report.html import render_report
from diloco.local.report.record import LOSSES_DRAWN, Point, Points, history_of, with_beginning
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
from diloco.spec.status.engine import EngineStatus
from diloco.spec.status.syncer import BytesByKind, RegionBytes, StoredStatus
from diloco.syncer.reporting.curves import Curves
from diloco.syncer.reporting.decisions import Decisions
from diloco.syncer.reporting.status_builder import Reporter
from diloco.world.cost import cost_of

_SAMPLES: Final = 1000
"""Points of the charts over time, about."""
_MOST_ENTRIES: Final = 50_000
"""Of the journal, the latest ones, as many as a syncer's journal has (ours)."""


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
    """Keeps of a simulation what a run keeps: points of its curves, and a journal."""

    def __init__(self, processes: dict[str, int], gap_seconds: float) -> None:
        """``processes``: by learner. ``gap_seconds``: least time between two points."""
        self._now, self._due, self._gap = 0.0, 0.0, gap_seconds
        self._curves, self._decisions = Curves(), Decisions(lambda: self._now)
        self._points = Points()
        self._entries: deque[Entry] = deque(maxlen=_MOST_ENTRIES)
        self._processes = processes
        self._engine: Engine

    def begins(self, engine: Engine) -> None:
        """See `Observer`."""
        self._engine = engine

    def passed(self, event: Event, actions: Sequence[Action], now: float) -> None:  # noqa: ARG002  # of the protocol
        """See `Observer`."""
        self._now = now
        for action in actions:
            self._curves.observe(action, now)
            self._decisions.observe(action)
        if now >= self._due:
            self._due = now + self._gap
            self._points.add(self._point(self._engine.view(now)))

    def process(self, learner: str, now: float, change: str) -> None:
        """See `Observer`."""
        self._now = now
        self._entries += self._decisions.take()
        if change == STARTED:
            self._entries.append(Entry("start", learner, now))
        else:
            self._entries += (Entry("away", learner, now), Entry("lost", learner, now, {"reason": change}))

    def history(self, job: str, view: EngineStatus, stored: StoredStatus) -> RunHistory:
        """The history of a simulation that is as in ``view``."""
        status = Reporter(job, 1).status(view, stored)
        self._decisions.look(view)
        journal = sorted((*self._entries, *self._decisions.take()), key=lambda entry: entry.time)
        if len(self._entries) == _MOST_ENTRIES:
            journal = with_beginning(journal, status)
        begin = Entry("run", "", 0.0, {"processes": self._processes})
        journal = [begin, Entry("start", SYNCER, 0.0), Entry("serves", SYNCER, 0.0), *journal]
        return history_of(status, self._points.kept, journal, self._now)

    def _point(self, view: EngineStatus) -> Point:
        self._decisions.look(view)
        self._entries += self._decisions.take()
        losses = {one.id: one.loss for one in view.learners[:LOSSES_DRAWN] if one.loss is not None}
        return Point(1, self._now, view.merged_tokens, view.time_seconds, losses, self._curves.merge)


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
    expected_seconds = inputs.limit_seconds or training_seconds(spec, scenario)
    recorder = Recorder(processes, max(1.0, expected_seconds / _SAMPLES))
    simulation = Simulation(inputs.job, scenario, layout, work, recorder)
    with bar_of(console) as bar:
        task = bar.add_task("", total=1.0)

        def tell(run: Simulation) -> None:
            done = run.progress.merged_tokens / run.progress.budget_tokens
            if inputs.limit_seconds is not None:
                done = max(done, run.now / inputs.limit_seconds)
            bar.update(task, completed=done, description=f"{duration_text(run.now)} simulated")

        verdict = go_on(simulation, spec, scenario, inputs.limit_seconds, tell)
    stored = StoredStatus(parameters=layout.numel, bytes_by_region=region_bytes(spec, simulation.traffic))
    history = recorder.history(inputs.job.metadata.name, simulation.course().view, stored)
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
