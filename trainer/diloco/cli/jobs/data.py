"""``diloco data``: what became of the sequences of a job's data, by epoch."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from diloco.cli.live.cluster_access import connect
from diloco.cli.live.cluster_jobs import Jobs
from diloco.cli.live.local_runs import Summary, WhereError, ask
from diloco.cli.live.target import ClusterFlags, Context, Kubeconfig, LocalRun, Namespace, target
from diloco.local.status_poll import StatusError
from diloco.runtime.console import new_console
from diloco.spec.status.syncer import DataStatus

_COLUMNS = ("dealt", "merged", "lost", "waiting")


def data(
    context: typer.Context,
    what: Annotated[
        str, typer.Argument(metavar="DIR | HOST:PORT | URL | job/NAME", help="A run, a syncer, or a job in a cluster.")
    ] = ".",
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    namespace: Namespace = None,
    kube_context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show how many sequences of each epoch were dealt to learners, merged and lost.

    A sequence counts as merged once an outer gradient with it is in any fragment, also if its step was skipped because
    the loss was not finite; these are told. Lost: it was dealt, and will not be merged. Waiting: a learner has it.

    \b
    Examples:
      diloco data runs/two-regions
      diloco data job/two-regions --namespace training --json
    """
    found = _found(what, ClusterFlags(namespace, context=kube_context, kubeconfig=kubeconfig), context)
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
        return
    if not found.sequences:
        typer.echo("no sequences are dealt: no learner has joined yet, or the job's loop has data of its own")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("epoch", *_COLUMNS):
        table.add_column(name, justify="right", no_wrap=True)
    for one in found.epochs:
        epoch = str(one.first) if one.first == one.last else f"{one.first} to {one.last}"
        table.add_row(epoch, *(f"{getattr(one, name):,}" for name in _COLUMNS))
    new_console().print(table)
    typer.echo(f"{found.sequences:,} sequences in an epoch; merged twice: {found.twice:,}; skipped: {found.skipped:,}")


def _found(what: str, flags: ClusterFlags, context: typer.Context) -> DataStatus:
    where = target(what, flags, program=str(context.find_root().info_name))
    if not isinstance(where, LocalRun):
        server = connect(flags.kubeconfig, flags.context, os.environ)
        jobs = Jobs(server)
        return jobs.syncer(jobs.one(flags.namespace or server.namespace, what.rpartition("/")[2])).data
    try:
        live = ask(where.where)
        if not isinstance(live, Summary):
            return live.data
    except (StatusError, WhereError):
        if not (Path(where.where) / "syncer").is_dir():
            raise
    # Its syncer does not answer: the newest checkpoint says it.
    from diloco.core.dealing.dealer import Dealer
    from diloco.syncer.disk.checkpoint import read_checkpoint_manifest
    from diloco.syncer.disk.checkpoint_names import checkpoint_names
    from diloco.syncer.peers.dealing import read_record

    syncer = Path(where.where) / "syncer"
    names = checkpoint_names(syncer / "checkpoints")
    if not names:
        raise WhereError(f"{syncer}: has no checkpoint; use the directory of a run")
    state = read_checkpoint_manifest(syncer / "checkpoints" / names[-1]).data
    return Dealer.restored(state, *read_record(syncer / "dealt.json")).status()
