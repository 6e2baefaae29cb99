"""``diloco run``: a job as processes on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from diloco.local.launch import run_job
from diloco.local.run_plan import RunRequest
from diloco.runtime.console import lasting_output, new_console
from diloco.spec import load_job

_CAUSE = "Fault injection"


def run(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="The manifest, a YAML file.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Directory for all output of the run. Default: runs/NAME, by the job's name.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in DIR.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Remove an earlier run from DIR first.")] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Record what learners push, so that 'diloco replay' is exact to the bit.")
    ] = False,
    slow: Annotated[
        list[str] | None,
        typer.Option(
            "--slow",
            metavar="TARGET=FACTOR",
            help="Emulate slower hardware: with us-west/old=0.5 a step takes twice as long.",
            rich_help_panel=_CAUSE,
        ),
    ] = None,
    chaos: Annotated[
        list[str] | None,
        typer.Option(
            "--chaos",
            metavar="KIND:TARGET@WHEN",
            help="Inject a fault: kill, pause or cut, at a step or at a rate per hour. May be repeated.",
            rich_help_panel=_CAUSE,
        ),
    ] = None,
    link: Annotated[
        list[str] | None,
        typer.Option(
            "--emulate-link",
            metavar="REGION=RATE[,RTT]",
            help="Slow a region's link down to us-west=200Mbit/s,80ms. syncer=RATE is the syncer's own link.",
            rich_help_panel=_CAUSE,
        ),
    ] = None,
    relays: Annotated[
        bool,
        typer.Option("--relays", help="Allow 'diloco chaos' to cut every region's link.", rich_help_panel=_CAUSE),
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, max=2**31 - 1, help="Seed to use instead of training.seed, also for faults."),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, max=1024, help="Threads per learner. Default: an equal share of the cores."),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device",
            metavar="[TARGET=]DEVICES",
            help="Where learners train: cpu, cuda:1, us-west=cuda:0,cuda:1. Default: all CUDA devices, in turn.",
        ),
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="The syncer's gRPC port. Default: a free one.")] = None,
    http_port: Annotated[
        int | None, typer.Option("--http-port", help="The syncer's HTTP port, for /status. Default: a free one.")
    ] = None,
    page: Annotated[
        bool, typer.Option("--page", help="Print the address of the report, which grows in a browser.")
    ] = False,
    no_view: Annotated[bool, typer.Option("--no-view", help="Print plain lines, even in a terminal.")] = False,
) -> None:
    """Train a job with real processes on this machine: a syncer and learners.

    Learners are restarted when they fail. Ctrl-C stops the run cleanly, and
    --resume continues it. At the end DIR has summary.json, report.html,
    model.safetensors and sample.txt, besides logs, checkpoints and the tape.

    \b
    Examples:
      diloco run job.yaml
      diloco run job.yaml --page
      diloco run job.yaml --resume
      diloco run job.yaml --output out --slow us-west/old=0.5
      diloco run job.yaml --output out --chaos kill:us-west/old/0@step=150
      diloco run job.yaml --output out --chaos cut:us-west@step=60,seconds=20
      diloco run job.yaml --output out --emulate-link us-west=10Mbit/s,80ms

    \b
    Faults (--chaos):
      kill:TARGET@step=N             SIGKILL at the learner's inner step N
      kill:syncer@step=N             the same for the syncer, at syncer step N
      pause:TARGET@step=N,seconds=S  SIGSTOP for S seconds
      cut:REGION@step=N,seconds=S    the region's link, at syncer step N: nothing
                                     passes; with manner=reset connections break
      kill:*@rate=2                  at random times from the seed, on average
                                     twice an hour per learner; also pause, cut
      TARGET is a learner (us-west/old/0), a pool (us-west/old), a region
      (us-west), * for every learner, or syncer.
    """
    output = output or Path("runs", load_job(job).metadata.name)
    request = RunRequest(
        job=job,
        output=output,
        resume=resume,
        overwrite=overwrite,
        record=record,
        slow=tuple(slow or ()),
        chaos=tuple(chaos or ()),
        link=tuple(link or ()),
        relays=relays,
        seed=seed,
        threads=threads,
        device=tuple(device or ()),
        port=port,
        http_port=http_port,
        page=page,
    )
    console = new_console(lasting_output(f"see {output}/supervisor.jsonl"))
    raise typer.Exit(run_job(request, console, plain=no_view or not console.is_terminal))
