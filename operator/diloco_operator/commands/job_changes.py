"""Changes of single pools of a job in a cluster by their names: a place in a list may be another pool's now."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from diloco.spec.words import shortlist
from diloco_operator.commands.shared import CommandError

if TYPE_CHECKING:
    from diloco_operator.api_server.api import Api

_ATTEMPTS: Final = 5
_MOST_NAMES: Final = 8


async def change_job(
    api: "Api", namespace: str, job: str, change: Callable[[dict[str, Any]], Awaitable[None]]
) -> dict[str, Any]:
    """Change a job as it is at the server, and return it; what others change meanwhile is kept.

    Args:
        api: of the job's cluster.
        namespace: of the job.
        job: its name.
        change: changes the object in place; called again if somebody else was faster.

    Raises:
        CommandError: there is no such job, or others change it all the time.
        ApiError: the server refuses.
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
        await change(item)
        try:
            # With the resourceVersion that was read, so that no other change is overwritten.
            await api.replace(JOB, item)
        except ConflictError:
            continue
        return item
    raise CommandError("the job changes all the time; try again")


def pools_by_name(item: Mapping[str, Any], *, regions: bool = False) -> dict[str, list[dict[str, Any]]]:
    """The pools of the job ``item`` by ``region/pool``; with ``regions`` also all of a region, by its name."""
    pools: dict[str, list[dict[str, Any]]] = {}
    for region in (item.get("spec") or {}).get("regions") or ():
        for pool in region["pools"]:
            if regions:
                pools.setdefault(region["name"], []).append(pool)
            pools[f"{region['name']}/{pool['name']}"] = [pool]
    return pools


def chosen(argument: str, what: str, pools: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The pools of that name.

    Raises:
        CommandError: there are none; the text names ``argument`` and what there is.
    """
    if what not in pools:
        kind = "region or pool" if "[" in argument else "pool"
        raise CommandError(f"{argument}: {what} is not a {kind} of the job; use {shortlist([*pools], _MOST_NAMES)}")
    return pools[what]
