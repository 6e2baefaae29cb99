"""Shows jobs in a cluster from their status: a table, one job in full, or plain lines. Pure: time is an argument."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from diloco.cli.live.cluster_jobs import SeenJob
from diloco.local.view.screen import render
from diloco.local.view.snapshot import LearnerSnapshot, RunSnapshot
from diloco.local.view.units import count_text, duration_text
from diloco.spec.status.job import Condition, JobStatus, PoolStatus, Progress
from diloco.spec.words import shortlist

_STYLES: Final = {"Training": "green", "Complete": "bold green", "Failed": "bold red", "Invalid": "bold red"}
_GOOD: Final = ("Ready", "Progressing")
"""Conditions that are shown if they are not true; the others are shown if they are."""
_NEWS_FIRST: Final = ("Failed", "Degraded", "Complete", "Suspended", "Ready", "Progressing")
_NONE: Final = "-"


@dataclass(frozen=True, slots=True)
class Closeup:
    """What is known of one job beyond its status."""

    snapshot: RunSnapshot | None = None
    """From the syncer's own status."""
    unseen: str = ""
    """Why there is no snapshot."""
    learners_shown: int | None = None
    """Most learners to show; None: all."""


def jobs_table(jobs: Sequence[SeenJob], *, namespaces: bool) -> RenderableType:
    """A table with one job per line; ``namespaces``: show each job's namespace."""
    if not jobs:
        return Text("no jobs")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("namespace", "job")[0 if namespaces else 1 :]:
        table.add_column(name, overflow="fold")
    table.add_column("phase", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("progress", no_wrap=True)
    for name in ("learners", "loss", "goodput", "tokens/s", "left"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("reason", overflow="fold")
    for job in jobs:
        status, progress = job.status, job.status.progress or Progress()
        table.add_row(
            *((job.namespace, job.name) if namespaces else (job.name,)),
            Text(status.phase, style=_STYLES.get(status.phase, "")),
            str(progress.step),
            _bar(progress, width=10),
            status.learners.summary,
            progress.loss or _NONE,
            progress.goodput or _NONE,
            count_text(progress.tokens_per_second),
            _left(progress) or _NONE,
            status.reason or (_NONE if not job.note else "no status yet"),
        )
    return table


def job_view(job: SeenJob, closeup: Closeup, now: datetime) -> RenderableType:
    """One job: what is wrong, its pools, and its learners one by one if the syncer could be asked."""
    parts: list[RenderableType] = [_head(job)]
    if job.note:
        parts.append(Text(job.note, style="yellow"))
    if notable := tuple(notable_conditions(job.status)):
        parts.append(_conditions(notable, now))
    snapshot = closeup.snapshot
    if snapshot is None:
        parts += _account(job.status)
    if job.status.regions:
        parts += [_pools(job.status), *_waiting(job.status)]
    if snapshot is not None:
        limit = closeup.learners_shown
        shown = snapshot.learners if limit is None else most_telling(snapshot.learners, limit)
        parts.append(render(replace(snapshot, learners=shown), ()))
        if hidden := len(snapshot.learners) - len(shown):
            parts.append(Text(f"and {hidden} more learners that train", style="dim"))
    else:
        parts += _restarts(job.status)
    if closeup.unseen:
        parts.append(Text(f"Learners are not shown individually: {closeup.unseen}", style="dim"))
    if model := job.status.model:
        parts.append(Text(f"model: {model.path} on PersistentVolumeClaim {model.persistent_volume_claim}"))
    return Group(*parts)


def job_line(job: SeenJob) -> str:
    """One job in one line, for output that is not a terminal."""
    status, progress = job.status, job.status.progress
    parts = [job.name, status.phase if status.reason in ("", status.phase) else f"{status.phase} ({status.reason})"]
    if progress is not None:
        parts += [
            progress.percent,
            f"{count_text(progress.tokens)} of {count_text(progress.budget_tokens)} tokens",
            f"step {progress.step}",
            f"loss {_loss(progress)} (training {progress.train_loss or _NONE})",
            f"{count_text(progress.tokens_per_second)} tokens/s",
        ]
    if status.learners.desired:
        parts.append(f"{status.learners.summary} train")
    if progress is not None:
        parts.append(f"goodput {progress.goodput or _NONE}")
        parts.append(f"merged {progress.merged or _NONE}")
        parts += [f"{_left(progress)} left"] if _left(progress) else []
    return "  ".join(parts)


def news_lines(job: SeenJob, before: SeenJob | None) -> tuple[str, ...]:
    """Changes of the job's conditions since ``before``, a line each; without ``before``, the notable conditions."""
    known = set() if before is None else {_key(condition) for condition in notable_conditions(before.status)}
    now = {_key(condition) for condition in notable_conditions(job.status)}
    came = [
        f"{job.name}  {_title(condition)}: {condition.reason}: {condition.message}".removesuffix(": ")
        for condition in notable_conditions(job.status)
        if _key(condition) not in known
    ]
    types = {kind for kind, *_ in now}
    went = [f"{job.name}  no longer {title}" for kind, title, *_ in sorted(known) if kind not in types]
    return (*came, *went)


def notable_conditions(status: JobStatus) -> Iterator[Condition]:
    """The conditions that report something unusual, the worst first."""
    resting = status.phase in ("Complete", "Failed", "Suspended")
    # A newer operator may have conditions of other types: they come last.
    place = {kind: number for number, kind in enumerate(_NEWS_FIRST)}
    for condition in sorted(status.conditions, key=lambda condition: place.get(condition.type, len(place))):
        if condition.type in _GOOD:
            if condition.status != "True" and not resting:
                yield condition
        elif condition.status == "True":
            yield condition


def most_telling(learners: Sequence[LearnerSnapshot], limit: int) -> tuple[LearnerSnapshot, ...]:
    """At most ``limit`` learners: those that do not train first, otherwise in the given order."""
    chosen = sorted(range(len(learners)), key=lambda index: (learners[index].state == "training", index))[:limit]
    return tuple(learners[index] for index in sorted(chosen))


def _key(condition: Condition) -> tuple[str, str, str, str]:
    return condition.type, _title(condition), condition.reason, condition.message


def _title(condition: Condition) -> str:
    return f"not {condition.type}" if condition.type in _GOOD else condition.type


def _head(job: SeenJob) -> Text:
    status = job.status
    text = Text()
    text.append(job.name, style="bold")
    text.append(f"  in {job.namespace}  ")
    text.append(status.phase, style=_STYLES.get(status.phase, ""))
    if status.reason not in ("", status.phase):
        text.append(f"  {status.reason}")
    if status.learners.desired:
        text.append(f"  {status.learners.summary} learners train")
    if status.learners.quorum is not None:
        text.append(f"  quorum {status.learners.quorum}", style="yellow")
    return text


def _conditions(conditions: Sequence[Condition], now: datetime) -> Table:
    grid = Table.grid(padding=(0, 2))
    for condition in conditions:
        bad = condition.type in ("Failed", "Degraded")
        lasted = _age((now - condition.last_transition_time).total_seconds())
        grid.add_row(
            Text(_title(condition), style="red" if bad else "yellow" if condition.type in _GOOD else ""),
            f"for {lasted}",
            condition.reason,
            Text(condition.message),
        )
    return grid


def _account(status: JobStatus) -> list[RenderableType]:
    progress = status.progress
    if progress is None:
        return []
    told = Text(
        f"step {progress.step}  loss {_loss(progress)}  training {progress.train_loss or _NONE}  "
        f"goodput {progress.goodput or _NONE}  merged {progress.merged or _NONE}  "
        f"{count_text(progress.tokens_per_second)} tokens/s"
    )
    grid = Table.grid(padding=(0, 1))
    left = f"  {_left(progress)} left" if _left(progress) else ""
    tokens = f"{count_text(progress.tokens)} of {count_text(progress.budget_tokens)} tokens"
    grid.add_row(_bar(progress, width=40), f"{tokens}{left}")
    return [told, grid]


def _loss(progress: Progress) -> str:
    doubted = f", in doubt: {progress.doubted_loss}" if progress.doubted_loss is not None else ""
    return f"{progress.loss or _NONE}{doubted}"


def _bar(progress: Progress, *, width: int) -> RenderableType:
    share = progress.tokens / progress.budget_tokens if progress.budget_tokens else 0.0
    grid = Table.grid(padding=(0, 1))
    grid.add_row(ProgressBar(total=1.0, completed=min(1.0, share), width=width), progress.percent)
    return grid


def _age(seconds: float) -> str:
    return duration_text(seconds) if seconds < 172_800 else f"{seconds // 86_400:.0f}d"


def _left(progress: Progress) -> str:
    return duration_text(progress.seconds_left) if progress.seconds_left else ""


def _pools(status: JobStatus) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("pool")
    for name in ("train", "ready", "wanted"):
        table.add_column(name, justify="right")
    units = any(pool.nodes_per_learner for region in status.regions for pool in region.pools)
    if units:
        table.add_column("pods ready", justify="right")
    some_left_out = any(pool.left_out for region in status.regions for pool in region.pools)
    if some_left_out:
        table.add_column("left out", justify="right")
    table.add_column("StatefulSet")
    for region in status.regions:
        for pool in region.pools:
            fewest = pool.desired if pool.minimum is None else pool.minimum
            short = "yellow" if pool.training < fewest else ""
            table.add_row(
                f"{region.name}/{pool.name}",
                Text(str(pool.training), style=short),
                str(pool.ready),
                str(pool.desired) if pool.minimum is None else f"{pool.minimum} to {pool.desired}",
                *([_pods(pool)] if units else []),
                *([Text(str(pool.left_out or 0), style="yellow" if pool.left_out else "")] if some_left_out else []),
                pool.stateful_set or _NONE,
            )
    return table


def _pods(pool: PoolStatus) -> str:
    if pool.nodes_per_learner is None:
        return str(pool.ready)
    return f"{pool.ready_pods or 0} of {pool.desired * pool.nodes_per_learner}"


def _waiting(status: JobStatus) -> list[RenderableType]:
    """Why learners of elastic pools have no node, and how many run elsewhere meanwhile."""
    told = [pool.message for region in status.regions for pool in region.pools if pool.message]
    told += [
        f"{count} learners of {pool} run in the region's next pool" for pool, count in status.fallback_learners.items()
    ]
    return [Text(line, style="dim") for line in told]


def _restarts(status: JobStatus) -> list[RenderableType]:
    if not status.restarts:
        return []
    told = [f"{each.learner} {each.count}" for each in status.restarts]
    return [Text(f"restarts: {shortlist(told, 10)}")]
