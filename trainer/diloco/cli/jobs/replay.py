"""``diloco replay``: repeats a run's decisions from its tape, and checks that they come out the same."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diloco.cli.live.local_runs import run_directory
from diloco.runtime.process.exits import EXIT_OK, EXIT_UNEXPECTED

if TYPE_CHECKING:
    from diloco.syncer.replay import EpochReplay


def replay(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a run.", show_default=False)],
    explain: Annotated[bool, typer.Option("--explain", help="Print every decision with its reason.")] = False,
) -> None:
    """Replay a run: the same events must lead to the same decisions; a run made with --record, to the same bits.

    Checkpoints and the exported model must be those of the tape; files that
    nothing was compared with are listed. The tape's hashes detect damage, not
    forgery: a forged tape has matching hashes. Code that a tape names is never
    imported.

    \b
    Examples:
      diloco replay runs/two-regions
      diloco replay runs/two-regions --explain | grep us-west/old/0
    """
    from diloco.syncer.replay import replay as run_again

    report = run_again(run_directory(directory), explain=explain)
    for line in report.explanation:
        typer.echo(line)
    if report.missing:
        typer.echo(report.missing)
    for epoch in report.epochs:
        typer.echo(_text(epoch))
    if report.unchecked:
        typer.echo(f"not checked: {', '.join(report.unchecked)}")
    for problem in report.problems:
        typer.echo(f"diloco: {problem}", err=True)
    raise typer.Exit(EXIT_OK if report.ok else EXIT_UNEXPECTED)


def _text(epoch: "EpochReplay") -> str:
    merges = f"{epoch.merges_redone} of {epoch.merges} merges redone to the bit"
    if not epoch.recorded:
        merges = f"{epoch.merges} merges not redone (the run was made without --record)"
    elif epoch.first_seq:
        merges = f"{epoch.merges} merges not redone (the tape's beginning is not there)"
    since = f" from line {epoch.first_seq} on" if epoch.first_seq else ""
    torn = "" if epoch.end else "; no line ends it: the syncer was killed or still runs, or the tape was cut off"
    torn = "; the last line is incomplete: the syncer was killed" if epoch.torn else torn
    return f"epoch {epoch.epoch}{since}: {epoch.events} events, {epoch.decisions} decisions the same, {merges}{torn}"
