"""``diloco top`` and ``diloco status``: show the state of a run or of jobs, live or once.

``frames`` reads the state; this module repeats that, and writes it to a terminal, a pipe or a program.
"""

import json
import math
import os
import time
from collections.abc import Callable
from typing import Annotated, Protocol

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from diloco.cli.live.cluster_access import AwayError, connect
from diloco.cli.live.cluster_jobs import Jobs
from diloco.cli.live.frames import Frame, JobSource, JobsSource, LocalSource, Source, now
from diloco.cli.live.local_runs import NotServingYetError
from diloco.cli.live.target import AllNamespaces, ClusterFlags, Context, Kubeconfig, LocalRun, Namespace, target
from diloco.local.status_poll import StatusError
from diloco.local.view.screen import say
from diloco.runtime.console import new_console
from diloco.runtime.process.exits import EXIT_OK

_ROWS_BESIDE_LEARNERS = 24
"""Lines of the live view besides learners' (ours): those of a job with a dozen pools."""

What = Annotated[
    str | None,
    typer.Argument(
        metavar="DIR | HOST:PORT | URL | job/NAME",
        help="Directory of a run, HTTP address of a syncer, or a job in a cluster. Default: the run in this folder; "
        "with a cluster flag or 'kubectl diloco', all jobs.",
        show_default=False,
    ),
]


class FrameWriter(Protocol):
    """Writes the frames of ``diloco top``. ``diloco run`` has a ``RunView`` (``local.view.screen``)."""

    def show(self, frame: Frame) -> None:
        """Show the current state."""

    def remark(self, line: str) -> None:
        """Show a remark beside the frames."""

    def close(self) -> None:
        """End the output."""


def status(
    context: typer.Context,
    what: What = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    kube_context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the state of a run or job, from its syncer or the cluster, or from the summary of a run that is over.

    \b
    Examples:
      diloco status runs/two-regions
      diloco status 127.0.0.1:8080
      diloco status http://syncer.example:8080 --json
      diloco status job/two-regions --namespace training
      kubectl diloco status two-regions -n training
    """
    flags = ClusterFlags(namespace, all_namespaces, kube_context, kubeconfig)
    frame = _source(what, flags, context).read(None)
    if as_json:
        typer.echo(json.dumps(frame.document, indent=2))
    else:
        _print(new_console(), frame)


def top(
    context: typer.Context,
    what: What = None,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit, for scripts.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document per update, each on one line.")
    ] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.5, max=86400, metavar="SECONDS", help="Seconds between updates.")
    ] = 2.0,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    kube_context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Watch a run or jobs live: one line per job, or one job with its pools and learners.

    Press Ctrl-C to quit. A single run or job is watched to its end; the exit code
    is then 0 if it is complete, 4 if it has failed. In a pipe, each change is
    printed as a plain line.

    \b
    Examples:
      diloco top runs/two-regions
      diloco top job/two-regions --namespace training
      kubectl diloco top -A
      kubectl diloco top two-regions -n training --once --json
    """
    if math.isnan(every):
        raise typer.BadParameter("--every: nan is not a number of seconds; use 0.5 to 86400")
    flags = ClusterFlags(namespace, all_namespaces, kube_context, kubeconfig)
    source = _source(what, flags, context)
    console = new_console()
    if once and not as_json:
        _print(console, source.read(None))
        return
    writer: FrameWriter = JsonFrames() if as_json else LiveFrames(console) if console.is_terminal else NewLines(console)
    rows = max(8, console.height - _ROWS_BESIDE_LEARNERS) if isinstance(writer, LiveFrames) else None
    raise typer.Exit(follow(source, writer, rows=rows, once=once, wait=lambda: time.sleep(every)))


def _print(console: Console, frame: Frame) -> None:
    console.print(frame.drawn, soft_wrap=isinstance(frame.drawn, Text))  # a line may hold a command to copy


def follow(source: Source, writer: FrameWriter, *, rows: int | None, once: bool, wait: Callable[[], None]) -> int:
    """Show frames until nothing changes any more or the user ends it; returns the exit code.

    Raises:
        RuntimeError, ValueError: of one of diloco's own classes: the first frame failed, or its target is gone. If a
            later frame, or one of a run that starts, only gets no answer, that is remarked, and it is tried again.
    """
    shown, remarked = False, ""
    try:
        while True:
            try:
                frame = source.read(rows)
            except (AwayError, StatusError) as error:
                if not shown and (once or not isinstance(error, NotServingYetError)):
                    raise
                if str(error) != remarked:
                    remarked = str(error)
                    writer.remark(f"{error}; retrying")
            else:
                shown, remarked = True, ""
                writer.show(frame)
                if once or frame.over:
                    return EXIT_OK if once else frame.exit_code
            wait()
    except KeyboardInterrupt:
        return EXIT_OK  # Ctrl-C is the normal way to leave a live view
    finally:
        writer.close()


class LiveFrames:
    """In a terminal: redrawn in place; the last frame stays."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()
        self._console = console

    def show(self, frame: Frame) -> None:
        """Redraw it."""
        self._live.update(frame.drawn, refresh=True)

    def remark(self, line: str) -> None:
        """Print it above the frame."""
        self._console.print(Text(line, style="yellow"))

    def close(self) -> None:
        """Restore the terminal."""
        self._live.stop()


class NewLines:
    """In a pipe or a log: only the lines that are new."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: tuple[str, ...] = ()

    def show(self, frame: Frame) -> None:
        """Print the lines that the previous frame did not have."""
        for line in frame.lines:
            if line not in self._shown:
                self.remark(line)
        self._shown = frame.lines

    def remark(self, line: str) -> None:
        """Print it."""
        say(self._console, line)

    def close(self) -> None:
        """Nothing to do."""


class JsonFrames:
    """For a program: one document per line."""

    def show(self, frame: Frame) -> None:
        """Print it on one line."""
        typer.echo(json.dumps(frame.document))

    def remark(self, line: str) -> None:
        """Write it to stderr, as the output is JSON only."""
        typer.echo(f"diloco: {line}", err=True)

    def close(self) -> None:
        """Nothing to do."""


def _source(what: str | None, flags: ClusterFlags, context: typer.Context) -> Source:
    chosen = target(what, flags, program=str(context.find_root().info_name))
    if isinstance(chosen, LocalRun):
        return LocalSource(chosen.where)
    server = connect(flags.kubeconfig, flags.context, os.environ)
    jobs, namespace = Jobs(server), flags.namespace or server.namespace
    if chosen.job is None:
        return JobsSource(jobs, None if flags.all_namespaces else namespace)
    return JobSource(jobs, namespace, chosen.job, now)
