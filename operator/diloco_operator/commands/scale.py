"""``diloco scale``: the learners of pools of a job in a cluster, by the pools' names."""

from typing import Annotated, Any

import typer

from diloco.runtime.console import new_console
from diloco.spec.names.object_names import checked_name
from diloco_operator.commands.job_changes import change_job, chosen, pools_by_name
from diloco_operator.commands.shared import CommandError, Context, Kubeconfig, Namespace, access, run


def scale(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job.", show_default=False)],
    sizes: Annotated[
        list[str],
        typer.Argument(metavar="REGION/POOL=N ...", help="A pool and its number of learners.", show_default=False),
    ],
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Set the number of learners of pools of a job in a cluster.

    All pools change in one update. No other learner restarts. A manifest that
    is applied afterwards sets its own numbers again.

    \b
    Examples:
      diloco scale two-regions us-west/old=8
      diloco scale two-regions us-east/new=0 us-west/old=4 --namespace training
    """
    checked_name("JOB", job, "job")
    if namespace is not None:
        checked_name("--namespace", namespace, "namespace")
    wanted = wanted_sizes(sizes)

    async def change(item: dict[str, Any]) -> None:
        pools = pools_by_name(item)
        for name, learners in wanted.items():
            chosen("REGION/POOL=N", name, pools)[0]["learners"] = learners

    async def work() -> None:
        async with access(kubeconfig, context) as server:
            await change_job(server.api, namespace or server.namespace, job, change)

    run(work())
    for name, learners in wanted.items():
        new_console().print(f"{name}: {learners} learner(s)", markup=False, highlight=False, soft_wrap=True)


def wanted_sizes(sizes: list[str]) -> dict[str, int]:
    """The number of learners by pool.

    Raises:
        CommandError: one is not of this form, or a pool is named twice.
    """
    wanted: dict[str, int] = {}
    for size in sizes:
        name, _, number = size.partition("=")
        if name.count("/") != 1 or not (number.isascii() and number.isdecimal()):
            raise CommandError(f"REGION/POOL=N: {size} is not a pool and a number; use for example us-west/old=8")
        if name in wanted:
            raise CommandError(f"REGION/POOL=N: {name} is given twice; use each pool once")
        wanted[name] = int(number)
    return wanted
