"""``diloco cluster revoke``: certificates of a region or pool that somebody else may hold are refused and replaced.

The time of a revocation is that of the API server: this machine's clock may be wrong, and a time that is too early
would revoke less than was asked for.
"""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diloco.runtime.console import new_console
from diloco.spec.names.object_names import checked_name
from diloco_operator.commands.job_changes import change_job, chosen, pools_by_name
from diloco_operator.commands.shared import CommandError, Context, Kubeconfig, Namespace, access, run

if TYPE_CHECKING:
    from diloco_operator.api_server.api import Api


def revoke(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job.", show_default=False)],
    what: Annotated[str, typer.Argument(metavar="REGION[/POOL]", help="A region or pool of it.", show_default=False)],
    namespace: Namespace = None,
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

    async def change(item: dict[str, Any]) -> None:
        phase = (item.get("status") or {}).get("phase")
        if phase in ("Complete", "Failed"):
            raise CommandError(f"JOB: {job} has ended ({phase}); no syncer accepts its certificates any more")
        # Certificates of the second that has begun are revoked too.
        until = await api.time() + timedelta(seconds=1)
        for pool in chosen("REGION[/POOL]", what, pools_by_name(item, regions=True)):
            pool["certificatesNotBefore"] = f"{until:%Y-%m-%dT%H:%M:%SZ}"

    await change_job(api, namespace, job, change)
