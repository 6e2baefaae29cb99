"""``diloco cluster orphans``: what jobs that are gone, or a home that is gone, left behind in a remote cluster."""

import os
from collections.abc import Sequence
from typing import Annotated, Final

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from diloco.cli.cluster_access import ApiServer, AwayError, ClusterError, UnauthorizedError, connect
from diloco.cli.cluster_options import ClusterInputError, Context, Kubeconfig, checked_name
from diloco.cli.cluster_remains import CLAIM, Remain, deleted, home_id, job_uids, remains
from diloco.cli.cluster_remains import orphans as chosen_from
from diloco.cli.console import new_console
from diloco.runtime.exits import EXIT_UNEXPECTED
from diloco.spec.words import shortlist

DEFAULT_LEASE: Final = "diloco-operator"
"""The name of the operator's Lease, unless its chart is told another one."""


def orphans(
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace. Default: the context's.")
    ] = None,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Look in all namespaces.")] = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    home: Annotated[
        str | None,
        typer.Option(
            "--home",
            metavar="ID",
            help="Only objects of this home, by its id in label diloco.dev/home. Default: that of --home-context.",
        ),
    ] = None,
    home_context: Annotated[
        str | None,
        typer.Option(
            "--home-context",
            metavar="CONTEXT",
            help="Context of that home: objects of its jobs are left alone. Without it, all its jobs count as gone.",
        ),
    ] = None,
    operator_namespace: Annotated[
        str, typer.Option("--operator-namespace", help="Namespace of that home's operator, where its id is.")
    ] = "diloco-system",
    lease_name: Annotated[
        str, typer.Option("--lease-name", help="Its value operator.leaseName: the id is in ConfigMap NAME-home.")
    ] = DEFAULT_LEASE,
    delete: Annotated[bool, typer.Option("--delete", help="Delete them. Needs --home or --home-context.")] = False,
    claims: Annotated[
        bool, typer.Option("--claims", help="With --delete: learners' volume claims too, with what is on them.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking first.")] = False,
) -> None:
    """List, and with --delete remove, what jobs that are gone left behind in a remote cluster.

    The context is one of the remote cluster. Each object there bears the id of
    the home whose operator made it, and the uid of its job. A home removes
    what its deleted jobs left behind by itself: use --delete if the home no
    longer exists, or no longer reaches this cluster. Volume claims that a job
    retains (storage.whenDeleted) stay: they go with --delete --claims.

    \b
    Examples:
      diloco cluster orphans --context west --namespace learners
      diloco cluster orphans --context west -A --home-context home
      diloco cluster orphans --context west -n learners --home 4f3c2b1a --delete

    \b
    Exit code: 1 if something could not be deleted, 2 for an error in the input.
    """
    _check(namespace, all_namespaces, delete=delete, named=home is not None or home_context is not None)
    if claims and not delete:
        raise ClusterInputError("--claims: has no effect without --delete; add it, or leave --claims out")
    checked_name("--operator-namespace", operator_namespace, "namespace")
    checked_name("--lease-name", lease_name, "Lease")
    server = connect(kubeconfig, context, os.environ)
    homes_server = connect(kubeconfig, home_context, os.environ) if home_context is not None else None
    if homes_server is not None:
        home = _id_of(homes_server, operator_namespace, lease_name, home)
    where = None if all_namespaces else namespace or server.namespace
    found = remains(server, where, lambda why: typer.echo(f"diloco: claims are not listed: {why}", err=True))
    console = new_console()
    if home is None:
        console.print(_table(found, "jobs were not looked up") if found else Text("no objects of another home"))
        return
    # After the objects: a job that is made in between is then in the list.
    left = chosen_from(found, home, frozenset() if homes_server is None else job_uids(homes_server))
    if not left:
        console.print(Text(_nothing(found, home)))
        return
    console.print(_table(left, "gone" if homes_server is not None else "counts as gone"))
    chosen = left if claims or not delete else _without_claims(left)
    if delete and chosen:
        _delete(server, homes_server, chosen, home, asked=yes)


def _check(namespace: str | None, all_namespaces: bool, *, delete: bool, named: bool) -> None:
    if namespace is not None:
        checked_name("--namespace", namespace, "namespace")
        if all_namespaces:
            raise ClusterInputError(f"--all-namespaces: cannot be used with --namespace {namespace}; use one of them")
    if delete and not named:
        raise ClusterInputError("--delete: needs --home ID or --home-context; the list without --delete shows the ids")


def _id_of(homes_server: ApiServer, operator_namespace: str, lease_name: str, given: str | None) -> str:
    """The id of the home at ``homes_server``, which must be ``given`` if that is.

    Raises:
        ClusterInputError: it is another home, or the id cannot be read and is not given.
    """
    try:
        found = home_id(homes_server, operator_namespace, lease_name)
    except (AwayError, UnauthorizedError):
        raise
    except ClusterError as error:  # the operator is removed, or the user may only read jobs
        if given is None:
            raise ClusterInputError(
                f"--home-context: {error}; use --operator-namespace, or give the id with --home"
            ) from None
        typer.echo(f"diloco: --home: cannot be compared with the id at --home-context: {error}", err=True)
        return given
    if given not in (None, found):
        raise ClusterInputError(f"--home: {given} is not the home at --home-context, which is {found}; use one of them")
    return found


def _delete(
    server: ApiServer, homes_server: ApiServer | None, left: Sequence[Remain], home: str, *, asked: bool
) -> None:
    learners = sum(one.learners for one in left)
    jobs = len({one.job_uid for one in left})
    running = f", with {learners} learner(s) that still run" if learners else ""
    if not asked:
        typer.confirm(f"Delete these {len(left)} object(s) of {jobs} job(s) of home {home}{running}?", abort=True)
    if homes_server is not None:
        # The answer may have taken long.
        left = chosen_from(left, home, job_uids(homes_server))
    problems = [outcome for outcome in deleted(server, left) if outcome.problem]
    typer.echo(f"{len(left) - len(problems)} of {len(left)} object(s) deleted")
    for outcome in problems:
        typer.echo(f"diloco: {outcome.remain}: {outcome.problem}", err=True)
    if problems:
        raise typer.Exit(EXIT_UNEXPECTED)


def _without_claims(left: Sequence[Remain]) -> tuple[Remain, ...]:
    kept = sum(one.kind is CLAIM for one in left)
    if kept:
        typer.echo(f"diloco: {kept} claim(s) stay; to delete them too, add --claims", err=True)
    return tuple(one for one in left if one.kind is not CLAIM)


def _nothing(found: Sequence[Remain], home: str) -> str:
    homes = sorted({one.home for one in found})
    if home in homes:
        return f"no orphans: the jobs of home {home} exist"
    return f"no objects of home {home}" + (f"; there are objects of home {shortlist(homes)}" if homes else "")


def _table(found: Sequence[Remain], job_is: str) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("home", "job", "job uid", "job is", "object"):
        table.add_column(name, overflow="fold")
    table.add_column("learners", justify="right", no_wrap=True)
    for one in sorted(found, key=lambda one: (one.home, one.namespace, one.at_home, one.job_uid)):
        table.add_row(
            *(Text(text) for text in (one.home, one.at_home, one.job_uid, job_is, str(one))),
            str(one.learners or "-"),
        )
    return table
