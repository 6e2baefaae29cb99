"""Runs one session of ``diloco chaos``, and writes its report however the session ends."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console

from diloco.cli.live.cluster_access import ClusterError
from diloco.cli.program import complain
from diloco.local.chaos.session import Place, Session
from diloco.local.chaos.spec import ChaosError, Fault
from diloco.local.report.chaos_report import document, table
from diloco.local.view.screen import say
from diloco.runtime.files import write_json_atomically
from diloco.runtime.process.exits import EXIT_BAD_INPUT, EXIT_INTERRUPTED


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session runs, and where its report goes."""

    seconds: float
    settle_seconds: float
    seed: int
    """Of the times; the report has it."""
    files: Sequence[Path]


def run_session(
    place: Place, job: str, learner_ids: Sequence[str], faults: Sequence[Fault], how: SessionOptions, console: Console
) -> None:
    """Inject the faults, and report what they did.

    Raises:
        ChaosError: the session ended early, because nothing can be hit or read any more.
        typer.Exit: it was interrupted, or a file of the report could not be written.
    """
    session = Session(place, learner_ids, lambda line: say(console, line))
    interrupted, unwritten = False, False
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends the session as Ctrl-C does
    try:
        session.run(faults, seconds=how.seconds, settle_seconds=how.settle_seconds)
    except KeyboardInterrupt:
        interrupted = True
        say(console, "stopped; nothing is left paused or cut")
    except (ChaosError, ClusterError) as error:
        raise ChaosError(f"the session ended early: {error}") from error
    finally:
        # Also after an error: nothing else knows what was injected.
        unwritten = _report(session, job, how, console)
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if unwritten:
        raise typer.Exit(EXIT_BAD_INPUT)


def _report(session: Session, job: str, how: SessionOptions, console: Console) -> bool:
    """Write the report, and print it; returns whether a file could not be written."""
    results = session.effects
    unwritten = False
    for file in how.files:
        try:
            write_json_atomically(file, document(results, job=job, seed=how.seed))
        except OSError as error:
            # The others, and the table, are still wanted.
            unwritten = True
            complain(f"{file}: the report cannot be written ({error.strerror or error})")
    # Last, as a pipe may have lost its reader.
    console.print(table(results) if results else "no fault was injected")
    return unwritten
