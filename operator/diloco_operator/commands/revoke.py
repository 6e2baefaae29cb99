"""``diloco cluster revoke``: certificates of a region or pool that somebody else may hold are refused and replaced.

The time of a revocation is that of the API server: this machine's clock may be wrong, and a time that is too early
would revoke less than was asked for.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from diloco.runtime.console import new_console
from diloco.spec.names.object_names import checked_name
from diloco.spec.words import shortlist
from diloco_operator.commands.shared import CommandError, Context, Kubeconfig, access, run

if TYPE_CHECKING:
    from diloco_operator.api_server.api import Api

_ATTEMPTS: Final = 5
_MOST_NAMES: Final = 8


def revoke(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job.", show_default=False)],
    what: Annotated[str, typer.Argument(metavar="REGION[/POOL]", help="A region or pool of it.", show_default=False)],
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace. Default: the context's.")
    ] = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Revoke the certificates of a region's learners, or of one pool's, and let the operator make new ones.

    --context is that of home. The syncer refuses every certificate of these
    pools that was made before now, and ends the sessions and transfers of
    those that use one. Learners go on once the new certificates have reached
    their pods, after a minute or two, without a restart. The syncer must be of
    this version or later.

    The new certificates go where the old ones were. If nobody there is to
    have any, delete the Secret with that cluster's kubeconfig first.

    \b
    Examples:
      diloco cluster revoke two-clusters west
      diloco cluster revoke two-clusters west/fast --context home --namespace training
    """
    checked_name("JOB", job, "job")
    if namespace is not None:
        checked_name("--namespace", namespace, "namespace")

    async def work() -> None:
        async with access(kubeconfig, context) as server:
            await revoke_in(server.api, namespace or server.namespace, job, what)

    run(work())
    told = f"the syncer refuses certificates of {what} that were made before now; the operator makes new ones"
    new_console().print(told, highlight=False, soft_wrap=True)


async def revoke_in(api: "Api", namespace: str, job: str, what: str) -> None:
    """Set ``certificatesNotBefore`` of a region's pools, or of one pool, to the server's time.

    Raises:
        CommandError: there is no such job, region or pool, or the job has ended.
        ApiError: the server does not say its time, or refuses.
    """
    from diloco_operator.api_server.api import Selection
    from diloco_operator.api_server.errors import ConflictError, NotFoundError
    from diloco_operator.api_server.kinds import JOB

    for _ in range(_ATTEMPTS):
        try:
            item = await api.get(JOB, namespace, job)
        except NotFoundError:
            there = [one["metadata"]["name"] for one in await api.items(Selection(JOB, namespace, metadata_only=True))]
            others = f"there is {shortlist(there, _MOST_NAMES)}" if there else "there are no jobs there"
            raise CommandError(f"JOB: no job {job} in namespace {namespace}; {others}") from None
        phase = (item.get("status") or {}).get("phase")
        if phase in ("Complete", "Failed"):
            raise CommandError(f"JOB: {job} has ended ({phase}); no syncer accepts its certificates any more")
        # Certificates of the second that has begun are revoked too.
        until = await api.time() + timedelta(seconds=1)
        for pool in chosen(what, item):
            pool["certificatesNotBefore"] = f"{until:%Y-%m-%dT%H:%M:%SZ}"
        try:
            # With the resourceVersion that was read: what others have changed meanwhile is not overwritten.
            await api.replace(JOB, item)
        except ConflictError:
            continue
        return
    raise CommandError("the job changes all the time; try again")


def chosen(what: str, item: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The pools of the job ``item`` that ``what`` means: a region or ``region/pool``.

    Raises:
        CommandError: there are none; the text names what there is.
    """
    pools: dict[str, list[dict[str, Any]]] = {}
    for region in (item.get("spec") or {}).get("regions") or ():
        for pool in region["pools"]:
            pools.setdefault(region["name"], []).append(pool)
            pools[f"{region['name']}/{pool['name']}"] = [pool]
    if what not in pools:
        raise CommandError(
            f"REGION[/POOL]: {what} is not a region or pool of the job; use {shortlist([*pools], _MOST_NAMES)}"
        )
    return pools[what]
