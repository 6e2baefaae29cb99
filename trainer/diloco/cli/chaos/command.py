"""``diloco chaos``: injects faults into a running job for a time, and reports what they did."""

import os
import secrets
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from diloco.cli.chaos.run import SessionOptions, run_session
from diloco.cli.live.cluster_access import ForbiddenError, connect
from diloco.cli.live.local_runs import run_directory
from diloco.cli.live.target import ClusterFlags, Context, Kubeconfig, LocalRun, Namespace, target
from diloco.cli.needs_operator import needs_operator
from diloco.local.chaos.run_socket import LocalPlace
from diloco.local.chaos.schedule import plan_faults
from diloco.local.chaos.spec import CLUSTER, LOCAL, Fault, parse_faults
from diloco.local.view.screen import say
from diloco.local.view.units import duration_text
from diloco.runtime.console import new_console
from diloco.spec.names.learner_ids import pool_of
from diloco.spec.names.object_names import checked_name
from diloco.spec.quantities import parse_duration

_LONGEST_SECONDS: Final = 7 * 86400.0
_MOST_SHOWN: Final = 40


class ChaosInputError(ValueError):
    """Flags that cannot be used so; the text is one line."""


def chaos(
    context: typer.Context,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="DIR | job/NAME", help="Output directory of a run, or a job in a cluster.", show_default=False
        ),
    ] = None,
    duration: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long faults are injected: 90s, 10min, 2h.")
    ] = "10min",
    fault: Annotated[
        list[str] | None,
        typer.Option("--fault", metavar="KIND:TARGET@WHEN", help="A fault at a time or rate. Repeat it for several."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, max=2**31 - 1, help="Seed of the times. Default: a new one, printed.")
    ] = None,
    settle: Annotated[
        float, typer.Option("--settle", min=0.0, max=3600.0, help="Longest wait at the end for recoveries, in seconds.")
    ] = 120.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="In a cluster: do not ask first.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON, also for a cluster.")
    ] = None,
    print_role: Annotated[bool, typer.Option("--print-role", help="Print the Role that it needs, and exit.")] = False,
    namespace: Namespace = None,
    kube_context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Inject faults into a running job for a while, and report what they did.

    Only processes or pods of the named job are touched. On this machine the
    run's supervisor injects the faults; Ctrl-C ends the session and every
    pause and cut. In a cluster, pods are deleted with your own rights, after
    you have agreed; whose a pod is, is checked by labels and owners.

    \b
    Examples:
      diloco chaos runs/two-regions --fault 'kill:*@rate=12' --for 10min --seed 7
      diloco chaos runs/two-regions --fault kill:us-west@at=30 --fault pause:syncer@at=60,seconds=5
      diloco chaos runs/two-regions --fault cut:us-west@rate=6,seconds=20 --dry-run
      diloco chaos job/two-regions --namespace training --fault 'kill:*@rate=2,by=node'
      diloco chaos --print-role --namespace training | kubectl apply -f -

    \b
    Faults (--fault):
      kill:TARGET@at=T             T seconds after the start
      kill:TARGET@rate=R           at random times, on average R an hour for each
      kill:TARGET@rate=R,by=UNIT   all of a pool, region or (in a cluster) node at once
      pause:TARGET@at=T,seconds=S  on this machine; also cut:REGION
      evict:TARGET@at=T            in a cluster: with the pod's grace period
      TARGET is a learner (us-west/old/0), a pool (us-west/old), a region
      (us-west), * for every learner, or syncer.
    """
    if print_role:
        _print_role(namespace)
        return
    flags = ClusterFlags(namespace, context=kube_context, kubeconfig=kubeconfig)
    chosen = target(what, flags, program=str(context.find_root().info_name))
    seconds = parse_duration("--for", duration, bare_seconds=True, longest_seconds=_LONGEST_SECONDS)
    used = secrets.randbelow(2**31) if seed is None else seed
    console = new_console()
    files, wanted = _report_files(json_file), tuple(fault or ())
    if isinstance(chosen, LocalRun):
        root = run_directory(Path(chosen.where)).absolute()
        with closing(LocalPlace(root)) as place:
            run = place.facts
            faults = plan_faults(parse_faults(wanted, run.learner_ids, LOCAL), seconds, used)
            place.check(faults)
            _show(console, faults, used, seconds)
            if not dry_run:
                place.begin()
                how = SessionOptions(seconds, settle, used, (root / "chaos.json", *files))
                run_session(place, run.job, run.learner_ids, faults, how, console)
        return
    if chosen.job is None:
        raise ChaosInputError("JOB: no job is named; use job/NAME")
    needs_operator()
    from diloco.cli.chaos.cluster import ClusterPlace

    server = connect(kubeconfig, kube_context, os.environ)
    where = namespace or server.namespace
    try:
        job = ClusterPlace(server, where, chosen.job)
        job.status()  # reading it needs a right too, and the report is made from it
        nodes = job.nodes()
    except ForbiddenError as error:
        raise ForbiddenError(f"{error}; diloco chaos --print-role prints the Role that is needed") from error
    planned = plan_faults(parse_faults(wanted, job.learner_ids, CLUSTER), seconds, used, nodes)
    _show(console, planned, used, seconds)
    if job.elsewhere:
        say(console, f"regions in other clusters are not touched: {', '.join(job.elsewhere)}")
    if pools := dict.fromkeys(pool_of(one) for one in job.learner_ids if one in job.fallbacks):
        say(console, f"learners that run in a fallback pool are hit while they run: {', '.join(pools)}")
    if dry_run:
        return
    _ask(f"Do this to job {chosen.job} in namespace {where} of {server.url}?", agreed=yes)
    run_session(job, job.job, job.all_learners, planned, SessionOptions(seconds, settle, used, files), console)


def _report_files(file: Path | None) -> tuple[Path, ...]:
    """The file of ``--json``, if there is one: a mistake in it is told before anything is hit."""
    if file is None:
        return ()
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise ChaosInputError(f"--json: {file} cannot be written; use a file in a directory that exists")
    return (file,)


def _show(console: Console, faults: Sequence[Fault], seed: int, seconds: float) -> None:
    say(console, f"{len(faults)} fault(s) within {duration_text(seconds)}, --seed {seed}:")
    for one in faults[:_MOST_SHOWN]:
        lasting = f" for {one.seconds:g} s" if one.seconds else ""
        names = ", ".join(one.victims[:4]) + (" ..." if len(one.victims) > 4 else "")
        of = "" if names == one.target else f" ({names})"
        say(console, f"  at {one.at_seconds:7.1f} s  {one.kind} {one.target}{of}{lasting}")
    if len(faults) > _MOST_SHOWN:
        say(console, f"  and {len(faults) - _MOST_SHOWN} more")


def _ask(question: str, *, agreed: bool) -> None:
    if agreed:
        return
    if not sys.stdin.isatty():
        raise ChaosInputError("--yes: is needed where nobody can be asked (no terminal); use it, or run in a terminal")
    typer.confirm(question, abort=True)


def _print_role(namespace: str | None) -> None:
    from diloco.cli.chaos.cluster import role_text

    typer.echo(role_text(checked_name("--namespace", namespace or "default", "namespace")), nl=False)
