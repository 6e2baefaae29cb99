"""``summary.json`` and the closing table: the run's figures, for scripts and for the terminal. Pure."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from diloco.core.account.recovery import PARTS
from diloco.core.account.time_class import TimeClass
from diloco.local.report.chaos_report import survived_text
from diloco.local.report.history import RunHistory
from diloco.local.view.time_classes import TimeShares, losses_text
from diloco.local.view.units import bytes_text, count_text, duration_text, loss_text, percent_text


def summarize(history: RunHistory) -> dict[str, Any]:
    """The figures as plain JSON. Bytes are payload; a loss is null if nothing was evaluated."""
    sent = history.bytes_pushed + history.bytes_pulled
    return {
        "job": history.job,
        "complete": history.complete,
        "phase": history.phase,
        "reason": history.phase_reason,
        "wall_seconds": round(history.seconds, 3),
        "tokens": round(history.merged_tokens),
        "budget_tokens": history.budget_tokens,
        "syncer_steps": history.syncer_steps,
        "quorum": history.quorum,
        "quorum_wanted": history.quorum_wanted,
        "parameters": history.parameters,
        "computing": history.computing,
        "eval_loss_start": history.loss_start,
        "eval_loss": history.loss_end,
        "goodput": history.goodput,
        "merged": history.merged,
        "time_shares": _classes(history.time),
        "bytes_pushed": history.bytes_pushed,
        "bytes_pulled": history.bytes_pulled,
        "bytes_by_region": [one.model_dump() for one in history.bytes_by_region],
        "data_parallel_bytes": history.data_parallel_bytes,
        "data_parallel_ratio": history.data_parallel_bytes / sent if sent else None,
        "evaluations": [
            {
                "seconds": round(e.seconds, 3),
                "tokens": round(e.tokens),
                "loss": e.loss,
                "final": e.final,
                "doubted": e.doubted,
                "learner": e.learner,
            }
            for e in history.evaluations
        ],
        "recoveries": [
            {
                "learner": one.recovery.learner,
                "lost_seconds": round(one.lost_at, 3),
                "restarted": one.recovery.restarted,
                "seconds": round(one.recovery.seconds, 3),
                **{part: round(getattr(one.recovery, part), 3) for part in PARTS},
            }
            for one in history.recoveries
        ],
        "learners": [
            {
                "id": one.id,
                "processes": one.processes,
                "steps": one.steps,
                "tokens": one.tokens,
                "merged_tokens": round(one.merged_tokens),
                "restarts": one.restarts,
                "tokens_per_second": one.tokens_per_second,
                "goodput": one.goodput,
                "merged": one.merged,
                "time_shares": _classes(one.time),
                "left_out": one.left_out,
                "left_out_reason": one.left_out_reason,
            }
            for one in history.learners
        ],
        "former_learners": list(history.former),
        "incidents": [
            {"seconds": round(i.seconds, 3), "process": i.process, "what": i.text} for i in history.incidents
        ],
        "notes": list(history.notes),
    }


def _classes(shares: TimeShares) -> dict[str, float]:
    return {one.value: share for one, share in shares.items()}


def quorum_text(history: RunHistory) -> str:
    """The quorum at the end if it differs from the manifest's; else empty."""
    if history.quorum >= history.quorum_wanted:
        return ""
    return f"{history.quorum} at the end: only that many learners were left; sync.quorum is {history.quorum_wanted}"


def closing_table(history: RunHistory) -> RenderableType:
    """The table that is printed at the end."""
    learners = Table(box=None, pad_edge=False, header_style="dim")
    learners.add_column("learner", overflow="fold")
    units = any(one.processes > 1 for one in history.learners)
    for name in (*["processes"] * units, "steps", "tokens", "tokens/s", "waiting", "goodput", "merged", "restarts"):
        learners.add_column(name, justify="right", no_wrap=True)
    for one in history.learners:
        learners.add_row(
            one.id,
            *[str(one.processes)] * units,
            str(one.steps),
            count_text(one.tokens),
            count_text(one.tokens_per_second),
            percent_text(one.time.get(TimeClass.WAITING)),
            percent_text(one.goodput),
            percent_text(one.merged),
            str(one.restarts),
        )
    sent = history.bytes_pushed + history.bytes_pulled
    ratio = f", {history.data_parallel_bytes / sent:.0f} times as many" if sent else ""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    facts.add_row("job", f"{history.job}: {history.phase.lower()} after {duration_text(history.seconds)}")
    if history.evaluations:
        losses = f"{loss_text(history.loss_start)} at the start, {loss_text(history.loss_end)} now"
        facts.add_row("evaluation loss", losses)
    for e in history.evaluations:
        if e.doubted:
            facts.add_row("in doubt", f"{loss_text(e.loss)}, found by {e.learner} at {duration_text(e.seconds)}")
    for one in history.learners:
        if one.left_out:
            facts.add_row("left out", f"{one.id}, of {one.left_out} merges, most recently: {one.left_out_reason}")
    if history.computing:
        facts.add_row("computed in", history.computing)
    if followed := quorum_text(history):
        facts.add_row("quorum", followed)
    facts.add_row("tokens merged", f"{count_text(history.merged_tokens)} in {history.syncer_steps} merges")
    rest = losses_text(history.time)
    facts.add_row("goodput", f"{percent_text(history.goodput)} of the learners' time was spent in inner steps")
    facts.add_row(
        "merged",
        f"{percent_text(history.merged)} of their time is work that is in the model"
        + (f"; the rest: {rest}" if rest else ""),
    )
    facts.add_row(
        "bytes sent",
        f"{bytes_text(sent)} ({bytes_text(history.bytes_pushed)} up, {bytes_text(history.bytes_pulled)} down)",
    )
    facts.add_row(
        "data-parallel",
        f"{bytes_text(history.data_parallel_bytes)}{ratio}: an all-reduce of f32 gradients in every step made here",
    )
    survived = survived_text(history)
    return Group("", learners, "", facts, Text(f"\n{survived}" if survived else "", style="bold"))
