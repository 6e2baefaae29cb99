"""``diloco cluster revoke``: certificates of a region or pool that somebody else may hold are refused and replaced.

The time of a revocation is that of the API server: this machine's clock may be wrong, and a time that is too early
would revoke less than was asked for.
"""

import os
from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any, Final

import typer

from diloco.cli.cluster_access import ApiServer, ClusterError, connect
from diloco.cli.cluster_jobs import Jobs
from diloco.cli.cluster_options import Context, Kubeconfig, checked_name, needs_operator
from diloco.cli.console import new_console
from diloco.spec.words import shortlist

_ATTEMPTS: Final = 5
_MOST_NAMES: Final = 8


class RevokeError(ValueError):
    """What was named has no certificates; the text is one line."""


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
    needs_operator()
    server = connect(kubeconfig, context, os.environ)
    where = namespace or server.namespace
    found = Jobs(server).one(where, job)  # which names the jobs there are
    if found.over:
        raise RevokeError(f"JOB: {job} has ended ({found.status.phase}); no syncer accepts its certificates any more")
    annotate(server, f"/apis/diloco.dev/v1alpha1/namespaces/{where}/dilocojobs/{job}", what)
    told = f"the syncer refuses certificates of {what} that were made before now; the operator makes new ones"
    new_console().print(told, markup=False, highlight=False, soft_wrap=True)


def annotate(server: ApiServer, path: str, what: str) -> None:
    """Add a region or ``region/pool`` to the annotation of the job at ``path``, revoked as of the server's time.

    Raises:
        RevokeError: there is no such region or pool.
        ClusterError: the server does not say its time, or refuses.
    """
    from diloco_operator.decide.revocation import REVOKED, with_entry

    for _ in range(_ATTEMPTS):
        read = server.get(path)
        item = read.said
        check(what, item)
        if read.date is None:
            raise ClusterError(f"{server.url} does not say its time (header Date); use kubectl annotate instead")
        annotations = item.setdefault("metadata", {}).setdefault("annotations", {})
        annotations[REVOKED] = with_entry(str(annotations.get(REVOKED, "")), what, read.date)
        # With the resourceVersion that was read: what others have changed meanwhile is not overwritten.
        answer = server.put(path, item)
        if answer.status == HTTPStatus.OK:
            return
        if answer.status != HTTPStatus.CONFLICT:
            raise ClusterError(f"{server.url} refuses the annotation: {answer.said.get('message', answer.status)}")
    raise ClusterError("the job changes all the time; try again")


def check(what: str, item: Mapping[str, Any]) -> None:
    """Check that ``what`` is a region or ``region/pool`` of the job ``item``.

    Raises:
        RevokeError: it is not; the text names those that are.
    """
    regions = (item.get("spec") or {}).get("regions") or ()
    known = [name for region in regions for name in _names(region)]
    if what not in known:
        raise RevokeError(
            f"REGION[/POOL]: {what} is not a region or pool of the job; use {shortlist(known, _MOST_NAMES)}"
        )


def _names(region: Mapping[str, Any]) -> list[str]:
    name = str(region.get("name", ""))
    return [name, *(f"{name}/{pool.get('name', '')}" for pool in region.get("pools") or ())]
