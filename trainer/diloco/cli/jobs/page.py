"""``diloco page``: the report of a job that runs, in a browser."""

import contextlib
import os
import threading
from http import HTTPStatus
from typing import Annotated, Final

import typer

from diloco.cli.live.cluster_access import ClusterError, connect
from diloco.cli.live.cluster_jobs import Jobs
from diloco.cli.live.local_runs import page_address
from diloco.cli.live.target import ClusterFlags, Context, Kubeconfig, LocalRun, Namespace, TargetError, target
from diloco.local.report.html import HEADERS, SCRIPT
from diloco.local.run_plan import LOOPBACK
from diloco.runtime.http import HttpServer, KeptPage, Response, Route

_AGAIN: Final = (("Refresh", "5"),)
"""The browser asks again, after this many seconds."""
_OVER: Final = b"<main data-over>"


def page(
    context: typer.Context,
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="DIR | HOST:PORT | URL | job/NAME",
            help="Directory of a run, address of a syncer, or a job in a cluster. Default: the run in this folder.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to serve a cluster's job at. 0: a free one.")
    ] = 0,
    namespace: Namespace = None,
    kube_context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the report of a job while it runs: curves, learners, where the time went, links, events.

    Of a run on this machine the address is printed: its syncer serves the page.
    A job's page in a cluster is served at 127.0.0.1 until Ctrl-C, from its syncer
    through the API server, with the permissions of 'diloco top'.

    \b
    Examples:
      diloco page runs/two-regions
      diloco page job/two-regions --namespace training
      kubectl diloco page two-regions -n training --port 8000
    """
    chosen = target(what, ClusterFlags(namespace, False, kube_context, kubeconfig), program=_program(context))  # noqa: FBT003  # all_namespaces
    if isinstance(chosen, LocalRun):
        typer.echo(f"http://{page_address(chosen.where)}/page")
        return
    if chosen.job is None:
        raise TargetError("page: shows one job; name it, as in job/two-regions")
    server = connect(kubeconfig, kube_context, os.environ)
    jobs, place, name = Jobs(server), namespace or server.namespace, chosen.job
    jobs.one(place, name)
    with HttpServer(f"{LOOPBACK}:{port}", {"/": KeptPage(_route(jobs, place, name))}) as http:
        typer.echo(f"page of job {name}: http://{http.address}/ (Ctrl-C ends it)")
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


def _program(context: typer.Context) -> str:
    return str(context.find_root().info_name)


def _route(jobs: Jobs, namespace: str, name: str) -> Route:
    latest = b"<!DOCTYPE html><meta charset=utf-8><main></main>"

    def answer() -> Response:
        nonlocal latest
        try:
            job = jobs.one(namespace, name)
            if job.over:  # its syncer is gone: the report as it was seen last
                told = f'<p class="verdict">The job is over ({job.status.phase}).</p>'
                return _html(latest.replace(b"<main>", _OVER + told.encode()))
            latest = jobs.page(job)
        except ClusterError as error:
            return Response(f"{error}\n".encode(), status=HTTPStatus.SERVICE_UNAVAILABLE, headers=_AGAIN)
        return _html(latest)

    return answer


def _html(body: bytes) -> Response:
    """A page. The policy blocks the script of a syncer of another version; then the browser asks again by itself."""
    own = SCRIPT.encode() in body or _OVER in body
    return Response(body, "text/html; charset=utf-8", headers=HEADERS if own else (*HEADERS, *_AGAIN))
