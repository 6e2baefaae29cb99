"""``diloco cluster orphans``: what jobs that are gone, or a home that is gone, left behind in a remote cluster."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diloco.runtime.console import new_console
from diloco.runtime.process.exits import EXIT_UNEXPECTED
from diloco.spec.names.object_names import checked_name
from diloco.spec.words import shortlist
from diloco_operator.commands.shared import Access, CommandError, Context, Kubeconfig, Namespace, access, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from diloco_operator.commands.remains import Remain


def orphans(
    namespace: Namespace = None,
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
    delete: Annotated[bool, typer.Option("--delete", help="Delete them. Needs --home or --home-context.")] = False,
    claims: Annotated[
        bool, typer.Option("--claims", help="With --delete: learners' volume claims too, with what is on them.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking first.")] = False,
) -> None:
    """List, and with --delete remove, what jobs that are gone left behind in a remote cluster.

    The context is one of the remote cluster. Each object there bears the id of
    the home whose operator made it, and the uid of its job. A home removes
    what its deleted jobs left behind while another job names this cluster: use
    --delete if none does, or if the home no longer exists. Volume claims that a job
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
        raise CommandError("--claims: has no effect without --delete; add it, or leave --claims out")
    homes = _Homes(kubeconfig, home_context)
    home, left, is_known = run(_listed(kubeconfig, context, homes, home, (namespace, all_namespaces)))
    if home is None or not left:
        return
    chosen = left if claims or not delete else _without_claims(left)
    if delete and chosen:
        pods, jobs = sum(one.pods for one in chosen), len({one.job_uid for one in chosen})
        running = f", with {pods} pod(s) that still run" if pods else ""
        if not yes:
            typer.confirm(f"Delete these {len(chosen)} object(s) of {jobs} job(s) of home {home}{running}?", abort=True)
        run(_delete(kubeconfig, context, homes if is_known else None, home, chosen))


@dataclass(frozen=True, slots=True)
class _Homes:
    """Where a home's id and its jobs are."""

    kubeconfig: Path | None
    context: str | None


async def _listed(
    kubeconfig: Path | None, context: str | None, homes: _Homes, home: str | None, where: tuple[str | None, bool]
) -> tuple[str | None, "tuple[Remain, ...]", bool]:
    """Print what there is. Returns the home, what may be deleted, and whether the home's jobs are known."""
    from rich.text import Text

    from diloco_operator.commands.remains import job_uids, remains
    from diloco_operator.commands.remains import orphans as chosen_from

    namespace, everywhere = where
    async with access(kubeconfig, context) as server:
        place = None if everywhere else namespace or server.namespace
        found = await remains(server.api, place, lambda why: _say(f"claims are not listed: {why}"))
    jobs: frozenset[str] | None = None
    if homes.context is not None:
        async with access(homes.kubeconfig, homes.context) as at_home:
            home = await _id_of(at_home, home)
            # After the objects: a job that is made in between is then in the list.
            jobs = await job_uids(at_home.api)
    console = new_console()
    if home is None:
        console.print(_table(found, "jobs were not looked up") if found else Text("no objects of another home"))
        return None, (), False
    left = chosen_from(found, home, jobs or frozenset())
    shown = _table(left, "gone" if jobs is not None else "counts as gone") if left else Text(_nothing(found, home))
    console.print(shown)
    return home, left, jobs is not None


def _check(namespace: str | None, all_namespaces: bool, *, delete: bool, named: bool) -> None:
    if namespace is not None:
        checked_name("--namespace", namespace, "namespace")
        if all_namespaces:
            raise CommandError(f"--all-namespaces: cannot be used with --namespace {namespace}; use one of them")
    if delete and not named:
        raise CommandError("--delete: needs --home ID or --home-context; the list without --delete shows the ids")


async def _id_of(at_home: Access, given: str | None) -> str:
    """The id of the home at `--home-context`, which must be ``given`` if that is.

    Raises:
        ApiError: the server does not answer.
        CommandError: it is another home, or the id cannot be read and is not given.
    """
    from diloco_operator.api_server.errors import ForbiddenError
    from diloco_operator.clusters.home import home_id

    try:
        found = await home_id(at_home.api)
    except ForbiddenError as error:  # the user may only read jobs
        if given is None:
            raise CommandError(f"--home-context: {error}; use --home to give the id") from None
        _say(f"--home: cannot be compared with the id at --home-context: {error}")
        return given
    if given not in (None, found):
        raise CommandError(f"--home: {given} is not the home at --home-context, which is {found}; use one of them")
    return found


async def _delete(
    kubeconfig: Path | None, context: str | None, homes: _Homes | None, home: str, left: "Sequence[Remain]"
) -> None:
    from diloco_operator.commands.remains import deleted, job_uids
    from diloco_operator.commands.remains import orphans as chosen_from

    if homes is not None:
        async with access(homes.kubeconfig, homes.context) as at_home:
            # The answer may have taken long.
            left = chosen_from(left, home, await job_uids(at_home.api))
    async with access(kubeconfig, context) as server:
        problems = await deleted(server.api, left)
    typer.echo(f"{len(left) - len(problems)} of {len(left)} object(s) deleted")
    for one, problem in problems.items():
        _say(f"{one}: {problem}")
    if problems:
        raise typer.Exit(EXIT_UNEXPECTED)


def _say(text: str) -> None:
    typer.echo(f"diloco: {text}", err=True)


def _without_claims(left: "Sequence[Remain]") -> "tuple[Remain, ...]":
    from diloco_operator.api_server.kinds import CLAIM

    kept = sum(one.kind is CLAIM for one in left)
    if kept:
        _say(f"{kept} claim(s) stay; to delete them too, add --claims")
    return tuple(one for one in left if one.kind is not CLAIM)


def _nothing(found: "Sequence[Remain]", home: str) -> str:
    homes = sorted({one.home for one in found})
    if home in homes:
        return f"no orphans: the jobs of home {home} exist"
    return f"no objects of home {home}" + (f"; there are objects of home {shortlist(homes)}" if homes else "")


def _table(found: "Sequence[Remain]", job_is: str) -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("home", "job", "job uid", "job is", "object"):
        table.add_column(name, overflow="fold")
    table.add_column("pods", justify="right", no_wrap=True)
    for one in sorted(found, key=lambda one: (one.home, one.namespace, one.at_home, one.job_uid)):
        table.add_row(
            *(Text(text) for text in (one.home, one.at_home, one.job_uid, job_is, str(one))),
            str(one.pods or "-"),
        )
    return table
