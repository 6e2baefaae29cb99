"""Shows a run in progress: a table that is redrawn in a terminal, plain lines elsewhere.

Both show the same ``RunSnapshot``. A supervisor pushes events and snapshots into a ``RunView``; ``diloco top`` asks for
frames instead and has a ``FrameWriter`` for them (``cli.jobs.top``). Both draw with `render` and `progress_line`.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from diloco.core.account.time_class import TimeClass
from diloco.local.view.snapshot import RunSnapshot
from diloco.local.view.time_classes import losses_text, shares_of
from diloco.local.view.units import bytes_text, count_text, duration_text, loss_text, percent_text
from diloco.spec.status.engine import PRESENT, LearnerStatus, too_fast
from diloco.spec.status.syncer import SyncerStatus
from diloco.spec.words import shortlist

_LINE_SECONDS = 10.0
_EVENTS_SHOWN = 6
_FITS = "Fits"
_LOSSES_SHOWN = 5
_LEFT_OUT_SHOWN = 5
_CONNECTED = frozenset(state.lower() for state in PRESENT)
_STYLES = {
    "training": "green",
    "starting": "cyan",
    "loading": "cyan",
    "restarting": "yellow",
    "stalled": "yellow",
    "quarantined": "red",
    "cut off": "red",
    "paused": "red",
    "given up": "bold red",
    "ended": "dim",
}


def say(console: Console, line: str) -> None:
    """Print a line as it is."""
    console.print(Text(line), soft_wrap=True)


class RunView(Protocol):
    """Where a supervisor shows its run and the events of it."""

    def announce(self, line: str) -> None:
        """Show an event."""

    def update(self, snapshot: RunSnapshot) -> None:
        """Show the current state; called several times per second."""

    def close(self) -> None:
        """End the view."""


class PlainRunView:
    """A line for each event, and one on progress now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown_at = 0.0
        self._elapsed = 0.0

    def announce(self, line: str) -> None:
        """Print it, with the time since the start."""
        self._print(line)

    def update(self, snapshot: RunSnapshot) -> None:
        """Print a line, if the last one is old enough."""
        self._elapsed = snapshot.elapsed_seconds
        if snapshot.status is not None and snapshot.elapsed_seconds - self._shown_at >= _LINE_SECONDS:
            self._shown_at = snapshot.elapsed_seconds
            self._print(progress_line(snapshot))

    def close(self) -> None:
        """Nothing to do."""

    def _print(self, line: str) -> None:
        say(self._console, f"{duration_text(self._elapsed):>6}  {line}")


class LiveRunView:
    """A table in a terminal, redrawn in place, with the latest events below it."""

    def __init__(self, console: Console) -> None:
        self._events: deque[str] = deque(maxlen=_EVENTS_SHOWN)
        self._elapsed = 0.0
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def announce(self, line: str) -> None:
        """Show it below the table."""
        self._events.append(f"{duration_text(self._elapsed):>7}  {line}")

    def update(self, snapshot: RunSnapshot) -> None:
        """Redraw the table."""
        self._elapsed = snapshot.elapsed_seconds
        self._live.update(render(snapshot, tuple(self._events)), refresh=True)

    def close(self) -> None:
        """Remove the table and restore the terminal."""
        self._live.stop()


def progress_line(snapshot: RunSnapshot) -> str:
    """The state of the run in one line."""
    status = snapshot.status
    if status is None:
        return f"syncer {snapshot.syncer_state}"
    parts = [
        f"{snapshot.progress:4.0%}",
        f"loss {loss_text(status.train_loss)} eval {_evaluated(status)}",
        f"{count_text(status.tokens_per_second)} tok/s",
        _taking_part(snapshot),
        f"merged {_whole_percent(status.merged)}",
    ]
    if status.seconds_left is not None:
        parts.append(f"{duration_text(status.seconds_left)} left")
    if status.quorum < status.quorum_wanted:
        parts.append(f"quorum {status.quorum} (sync.quorum {status.quorum_wanted})")
    if names := [learner.id for learner in status.learners if learner.quarantine_seconds is not None]:
        parts.append(f"in quarantine: {shortlist(names, _LEFT_OUT_SHOWN)}")
    if names := [
        learner.id for learner in status.learners if learner.left_out_now and learner.quarantine_seconds is None
    ]:
        parts.append(f"left out: {shortlist(names, _LEFT_OUT_SHOWN)}")
    if names := [learner.id for learner in status.learners if learner.unanswered_now]:
        parts.append(f"not answering: {shortlist(names, _LEFT_OUT_SHOWN)}")
    if names := too_fast(status.learners):
        parts.append(f"faster than counts: {shortlist(names, _LEFT_OUT_SHOWN)}")
    if names := [learner.id for learner in status.learners if learner.against]:
        parts.append(f"against the others: {shortlist(names, _LEFT_OUT_SHOWN)}")
    if status.links is not None and status.links.kind != _FITS:
        parts.append(f"links: {status.links.kind}")
    parts += _not_written(status)[:1]
    return "  ".join(parts)


def _taking_part(snapshot: RunSnapshot) -> str:
    training = sum(learner.state == "training" for learner in snapshot.learners)
    connected = sum(learner.state in _CONNECTED for learner in snapshot.learners)
    others = f" ({connected} connected)" if connected != training else ""
    return f"{training}/{len(snapshot.learners)} train{others}"


def render(snapshot: RunSnapshot, events: tuple[str, ...]) -> RenderableType:
    """The live view as a rich renderable."""
    parts: list[RenderableType] = [_head(snapshot), *_rates(snapshot), _bar(snapshot), _learners(snapshot)]
    parts += [*_diverged(snapshot), *_left_out(snapshot), *_unanswering(snapshot), *_links(snapshot)]
    parts += [Text(f"{problem}; training goes on", style="yellow") for problem in _not_written(snapshot.status)]
    if events:
        parts.append(Text("\n".join(events), style="dim"))
    return Group(*parts)


def _head(snapshot: RunSnapshot) -> Text:
    status = snapshot.status
    text = Text()
    text.append(snapshot.job, style="bold")
    text.append(f"  syncer {snapshot.syncer_state}", style=_STYLES.get(snapshot.syncer_state, ""))
    if status is not None:
        text.append(f"  step {status.syncer_step}")
        text.append(f"  loss {loss_text(status.train_loss)}  evaluated {_evaluated(status)}")
        if status.quorum < status.quorum_wanted:
            quorum = f"  quorum {status.quorum}: only that many learners are left (sync.quorum: {status.quorum_wanted})"
            text.append(quorum, style="yellow")
    return text


def _evaluated(status: SyncerStatus) -> str:
    """The latest credible loss, followed by a later one that is not."""
    newest = status.evaluations[-1] if status.evaluations else None
    doubted = f", in doubt: {loss_text(newest.loss)}" if newest is not None and newest.doubted else ""
    return f"{loss_text(status.eval_loss)}{doubted}"


def _rates(snapshot: RunSnapshot) -> list[Text]:
    status = snapshot.status
    if status is None:
        return []
    rest = losses_text(shares_of(status.time_seconds), most=_LOSSES_SHOWN)
    return [
        Text(
            f"{count_text(status.tokens_per_second)} tokens/s"
            f"  goodput {percent_text(status.goodput)}  merged {percent_text(status.merged)}"
            f"  up {bytes_text(snapshot.bandwidth.pushed)}/s  down {bytes_text(snapshot.bandwidth.pulled)}/s"
        ),
        *([Text(f"not merged: {rest}", style="dim")] if rest else []),
        *([Text(f"computing in {status.computing}", style="dim")] if status.computing else []),
    ]


def _diverged(snapshot: RunSnapshot) -> list[Text]:
    """Learners that were reset or are in quarantine, and why."""
    diverged = [one for one in _learner_statuses(snapshot) if one.diverged_reason]
    lines = []
    for one in sorted(diverged, key=lambda one: (one.quarantine_seconds is None, one.id)):
        left = one.quarantine_seconds
        what = "reset from the global model" if left is None else f"in quarantine for {duration_text(left)}"
        lines.append(Text(f"{one.id}: {what}: {one.diverged_reason}", style="yellow"))
    return _shortened(lines, "have diverged", "yellow")


def _left_out(snapshot: RunSnapshot) -> list[Text]:
    """Learners whose work was not merged, and why: first those for which this still goes on."""
    left_out = [one for one in _learner_statuses(snapshot) if one.left_out]
    lines = [
        Text(
            f"{one.id}: {one.left_out} merges without it, most recently: {one.left_out_reason}",
            style="yellow" if one.left_out_now else "dim",
        )
        for one in sorted(left_out, key=lambda one: (not one.left_out_now, -one.left_out, one.id))
    ]
    return _shortened(lines, "were left out of merges", "dim")


def _unanswering(snapshot: RunSnapshot) -> list[Text]:
    """Learners that leave requests unanswered, and how."""
    silent = [one for one in _learner_statuses(snapshot) if one.unanswered_now]
    lines = [Text(f"{one.id}: {one.unanswered_now}; the others go on without it", style="yellow") for one in silent]
    return _shortened(lines, "do not answer", "yellow")


def _learner_statuses(snapshot: RunSnapshot) -> Sequence[LearnerStatus]:
    return () if snapshot.status is None else snapshot.status.learners


def _shortened(lines: list[Text], what: str, style: str) -> list[Text]:
    more = len(lines) - _LEFT_OUT_SHOWN
    rest = [Text(f"{more} more learners {what}", style=style)] if more > 0 else []
    return lines[:_LEFT_OUT_SHOWN] + rest


def _links(snapshot: RunSnapshot) -> list[Text]:
    """Which of overlap, interval and links do not fit together, and what would help."""
    links = None if snapshot.status is None else snapshot.status.links
    if links is None or links.kind == _FITS:
        return []
    lines = [Text(f"links: {links.kind}: {links.reason}", style="yellow")]
    if links.remedies:
        lines.append(Text(f"  remedies: {'; or '.join(links.remedies)}"))
    return lines


def _not_written(status: SyncerStatus | None) -> list[str]:
    """What the syncer cannot write now, and why: first its checkpoints, last its trackers."""
    if status is None:
        return []
    checkpoints = f"checkpoints: {status.checkpoint.problem}" if status.checkpoint.problem else ""
    backups = f"backups: {status.backup.problem}" if status.backup is not None and status.backup.problem else ""
    trackers = (f"{one.name}: {one.problem}" for one in status.trackers if one.problem)
    return [*(problem for problem in (checkpoints, status.tape_problem, backups) if problem), *trackers]


def _bar(snapshot: RunSnapshot) -> Table:
    status = snapshot.status
    grid = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=1.0, completed=snapshot.progress, width=20)
    text = f"{duration_text(snapshot.elapsed_seconds)} elapsed"
    if status is not None:
        text = f"{count_text(status.merged_tokens)} of {count_text(status.budget_tokens)} tokens  {text}"
        if status.seconds_left is not None:
            text += f"  {duration_text(status.seconds_left)} left"
    grid.add_row(bar, "" if status is None else f"{snapshot.progress:.0%}", text)
    return grid


def _learners(snapshot: RunSnapshot) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("learner", overflow="fold")
    table.add_column("state", no_wrap=True)
    units = any(learner.processes > 1 for learner in snapshot.learners)
    for name in (*["processes"] * units, "step", "loss", "tokens/s", "waiting", "merged", "restarts"):
        table.add_column(name, justify="right", no_wrap=True)
    for learner in snapshot.learners:
        state = Text(learner.state, style=_STYLES.get(learner.state, ""))
        processes = [str(learner.processes)] * units
        table.add_row(learner.id, state, *processes, *_work(learner.status), str(learner.restarts))
    return table


def _work(status: LearnerStatus | None) -> tuple[str, ...]:
    if status is None:
        return ("-",) * 5
    shares = shares_of(status.time_seconds)
    return (
        str(status.steps),
        loss_text(status.loss),
        count_text(status.tokens_per_second),
        percent_text(shares.get(TimeClass.WAITING)),
        _whole_percent(shares.get(TimeClass.MERGED)),
    )


def _whole_percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
