"""The processes of a job: ``diloco syncer`` and ``learner``, and ``rank``, which a learner starts."""

import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from diloco.cli.program import new_app, run_command
from diloco.runtime.log import set_up_logging
from diloco.runtime.process.die_with_parent import die_with_parent
from diloco.runtime.process.exits import end
from diloco.runtime.process.launchers import forget_launchers
from diloco.runtime.process.memory import keep_freed_memory
from diloco.spec import DiLoCoJob, load_job

if TYPE_CHECKING:
    from diloco.learner.process.rank_process import RankOptions

_Tls = TypeVar("_Tls")

app = new_app()
"""Only these commands, which start sooner without the others."""

Job = Annotated[Path, typer.Option("--job", help="The manifest.", show_default=False)]
Directory = Annotated[Path, typer.Option("--directory", help="Directory of this process alone; created if missing.")]
_ANY_PORT = "127.0.0.1:0"

Http = Annotated[
    str | None, typer.Option("--http", metavar="HOST:PORT", help="Address to serve /metrics, /healthz and /readyz on.")
]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, max=1024, help="Number of torch threads. Default: torch's own.")
]
TlsCa = Annotated[Path | None, typer.Option("--tls-ca", help="CA certificates to trust (PEM).")]
TlsCert = Annotated[Path | None, typer.Option("--tls-cert", help="This process's certificate (PEM).")]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", help="Its private key (PEM).")]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log one JSON object per line.")]
Learner = Annotated[
    str, typer.Option("--learner", metavar="REGION/POOL/INDEX", help="Id of this learner: REGION/POOL/INDEX.")
]
Parent = Annotated[int | None, typer.Option("--parent", hidden=True)]


@app.command()
def syncer(
    job: Job,
    directory: Directory,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Address to serve learners on.")
    ] = "[::]:29400",
    http: Http = _ANY_PORT,
    record: Annotated[
        bool, typer.Option("--record", help="Record what learners push, so that a replay is exact.")
    ] = False,
    exit_when_finished: Annotated[
        bool, typer.Option("--exit-when-finished", help="Exit once the job is over and every learner knows.")
    ] = False,
    threads: Threads = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    log_json: LogJson = False,
    parent: Parent = None,
) -> None:
    """Run the sync-server of a job.

    \b
    Examples:
      diloco syncer --job job.yaml --directory state --http 127.0.0.1:8080
      diloco syncer --job job.yaml --directory state --listen 127.0.0.1:29400
    """
    _begin(parent)
    manifest = load_job(job)
    with _loading():
        from diloco.local.report.live import LivePage
        from diloco.syncer.options import SyncerOptions
        from diloco.syncer.process import run_syncer
        from diloco.wire.tls.tls import ServerTls

    set_up_logging(json=log_json, process="syncer", of=_of(manifest))
    options = SyncerOptions(
        job=manifest,
        directory=directory,
        listen=listen,
        http=http or _ANY_PORT,
        tls=_tls(ServerTls, tls_ca, tls_cert, tls_key),
        job_file=job,
        record=record,
        exit_when_finished=exit_when_finished,
        threads=threads,
        page=LivePage(directory),
    )
    raise typer.Exit(run_syncer(options))


@app.command()
def learner(
    job: Job,
    learner: Learner,
    directory: Directory,
    syncer: Annotated[
        str | None, typer.Option("--syncer", metavar="HOST:PORT", help="Address of the syncer.", show_default=False)
    ] = None,
    syncer_address_file: Annotated[
        Path | None,
        typer.Option("--syncer-address-file", help="A file with this address instead, which may come and change."),
    ] = None,
    speed: Annotated[
        float,
        typer.Option(
            "--speed", envvar="DILOCO_SPEED", help="Emulate slower hardware: at 0.5 a step takes twice as long."
        ),
    ] = 1.0,
    pod: Annotated[
        str,
        typer.Option(
            "--pod", envvar="DILOCO_POD", help="Uid of its pod: a learner that starts in another one has not failed."
        ),
    ] = "",
    device: Annotated[
        str,
        typer.Option(
            "--device", help="auto (cuda if available), cpu, cuda, cuda:1..., or cuda:0,cuda:1 for each process"
        ),
    ] = "auto",
    processes: Annotated[int | None, typer.Option("--processes", min=1, hidden=True)] = None,
    index_of_pod: Annotated[bool, typer.Option("--index-of-pod", hidden=True)] = False,
    unit: Annotated[str | None, typer.Option("--unit", hidden=True)] = None,
    stay: Annotated[
        bool, typer.Option("--stay", help="Once the job is over, wait for SIGTERM, or until it goes on.")
    ] = False,
    http: Http = None,
    threads: Threads = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    log_json: LogJson = False,
    parent: Parent = None,
) -> None:
    """Run one learner of a job.

    \b
    Example:
      diloco learner --job job.yaml --learner us-east/fast/0 \\
          --syncer syncer.example:29400 --directory /scratch/diloco
    """
    _begin(parent)
    address = syncer if syncer_address_file is None else syncer_address_file
    if address is None or (syncer is not None and syncer_address_file is not None):
        given = "both are given" if address is not None else "none is given"
        raise typer.BadParameter(f"--syncer, --syncer-address-file: {given}; use one of them")
    if index_of_pod != (unit is not None):
        raise typer.BadParameter("--index-of-pod, --unit: only one is given; use both, for a learner of several nodes")
    manifest = load_job(job)
    from diloco.learner.options import LearnerOptions, node_of_pod, only_visible
    from diloco.learner.unit.starting import unit_of
    from diloco.spec.names.syncer_name import syncer_name
    from diloco.wire.tls.tls import ClientTls

    node = 0
    if unit is not None:
        learner, node, unit = node_of_pod(manifest, learner, unit)
    named = f"{learner} node {node}" if node else learner
    set_up_logging(json=log_json, process=named, of=_of(manifest, learner))
    if launchers := forget_launchers(os.environ):
        text = "a learner begins its processes itself: %s of another launcher are taken out of the environment"
        logging.getLogger(__name__).info(text, ", ".join(launchers))
    at = manifest.metadata.name, manifest.metadata.namespace
    options = LearnerOptions(
        job=manifest,
        learner=learner,
        syncer_address=address,
        directory=directory,
        tls=_tls(partial(ClientTls, server_name=syncer_name(*at)), tls_ca, tls_cert, tls_key),
        speed=speed,
        threads=threads,
        http_address=http,
        device=device,
        processes=processes,
        unit=unit,
        node=node,
        stay=stay,
        pod=pod,
        log_json=log_json,
    )
    if manifest.spec.loop is not None:
        visible = only_visible(device, os.environ.get("CUDA_VISIBLE_DEVICES"))
        if visible is not None:  # before torch is loaded
            os.environ["CUDA_VISIBLE_DEVICES"] = visible
            options = replace(options, device="cuda")
    with unit_of(options) as processes_of_it:
        if processes_of_it is not None and node:
            with _loading():
                from diloco.learner.process.rank_process import run_node

                run = _rank_runner(manifest)
            raise typer.Exit(run_node(options, processes_of_it, run))
        with _loading():
            from diloco.learner.process.learner_process import run_learner  # imports torch, as the others do by now

        raise typer.Exit(run_learner(options, processes_of_it))


@app.command(hidden=True)
def rank(
    job: Job,
    learner: Learner,
    rank: Annotated[int, typer.Option("--rank")],
    ranks: Annotated[int, typer.Option("--ranks")],
    processes: Annotated[int, typer.Option("--processes")],
    store: Annotated[str, typer.Option("--store")],
    directory: Directory,
    device: Annotated[str, typer.Option("--device")],
    threads: Annotated[int, typer.Option("--threads")],
    parent: Annotated[int, typer.Option("--parent")],
    log_json: LogJson = False,
) -> None:
    """Run a process of a learner, which its first process starts."""
    _begin(parent)
    manifest = load_job(job)
    with _loading():
        from diloco.learner.process.rank_process import RankOptions

        run = _rank_runner(manifest)
    set_up_logging(json=log_json, process=f"{learner} rank {rank}", of=_of(manifest, learner))
    options = RankOptions(manifest, learner, rank, ranks, processes, store, directory, device, threads)
    raise typer.Exit(run(options))


def _of(job: DiLoCoJob, learner: str = "") -> dict[str, str]:
    """What lines for a collector say of the job."""
    of_job = {"job": job.metadata.name, "namespace": job.metadata.namespace}
    return {**of_job, "learner": learner} if learner else of_job


def _rank_runner(job: DiLoCoJob) -> "Callable[[RankOptions], int]":
    """What runs a process of a learner that is not its first."""
    if job.spec.loop is not None:
        from diloco.learner.process.loop_process import run_loop

        return run_loop
    from diloco.learner.process.rank_process import run_rank

    return run_rank


def main() -> None:
    """Entry point of ``diloco syncer`` and ``diloco learner``."""
    end(run_command(app, sys.argv[1:]))


def _begin(parent: int | None) -> None:
    # Before anything slow is imported, as the parent may die in the meantime.
    if parent is not None:
        die_with_parent(parent)
    keep_freed_memory()


@contextmanager
def _loading() -> Iterator[None]:
    """Inside, modules are loaded. The garbage collector does not look at their objects, of which torch has a million.

    It would take a sixth of the time to load it, and moments of each later step.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _tls(kind: Callable[[Path, Path, Path], _Tls], ca: Path | None, cert: Path | None, key: Path | None) -> _Tls | None:
    if ca is None and cert is None and key is None:
        return None
    if ca is None or cert is None or key is None:
        raise typer.BadParameter("--tls-ca, --tls-cert, --tls-key: only some are given; use all three or none")
    return kind(ca, cert, key)
