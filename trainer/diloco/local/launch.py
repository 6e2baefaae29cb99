"""``diloco run`` from its options to its exit code: checks, locks the directory, supervises, writes the report."""

import os
import shlex
import socket
import sys
from contextlib import closing
from pathlib import Path
from typing import TextIO, cast

import yaml
from rich.console import Console

from diloco.local.certificates import issue_certificates
from diloco.local.chaos.spec import parse_faults
from diloco.local.devices import assign_devices, cuda_devices
from diloco.local.directory import DirectoryClaim, RunDirectory, begin, resume
from diloco.local.report.summary import closing_table
from diloco.local.run_plan import LOOPBACK, RunPlan, RunRequest
from diloco.local.supervisor import Ending, Outcome, Supervisor
from diloco.local.targets import parse_speeds
from diloco.local.view.screen import LiveRunView, PlainRunView, RunView, say
from diloco.runtime.console import new_console
from diloco.runtime.files import UnusableFileError, read_json
from diloco.runtime.output import LastingOutput
from diloco.runtime.process.exits import EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_OK, EXIT_UNEXPECTED
from diloco.spec import DiLoCoJob, load_job, parse_job
from diloco.spec.reading.load import read_manifest
from diloco.spec.words import listed
from diloco.world.reading import read_world


class RequestError(ValueError):
    """Flags that cannot be combined; the text is one line that names them."""


def run_job(request: RunRequest, console: Console, *, plain: bool) -> int:
    """Run a job on this machine and return the program's exit code; ``plain``: lines instead of a live view.

    Raises:
        RequestError, SpecError, SpeedError, ChaosError, PlanError, QuantityError, DevicesError, PortError,
            RunDirectoryError: the request is not possible.
        OSError: the output cannot be written.
    """
    job, text = manifest(request.job, request.seed)
    before = RunDirectory(request.output.absolute())
    if request.resume and is_complete(before) and job.spec.training.tokens <= _budget(before):
        say(console, f"the run in {request.output} is complete; its report is {before.report}")
        return EXIT_OK
    plan = make_plan(request, job, text)
    claim = DirectoryClaim(plan.directory)
    if elsewhere := [region.name for region in job.spec.regions if region.cluster is not None]:
        regions = listed(elsewhere, "and")
        say(console, f"the manifest puts {regions} into other clusters; here every region runs on this machine")
    if request.page:
        say(console, f"page: http://{plan.http_address}/page")
    try:
        issue_certificates(plan.directory, job)
        view: RunView = PlainRunView(console) if plain else LiveRunView(console)
        with closing(view):
            outcome = Supervisor(plan, view).run()
        return _conclude(request, plan, outcome, console)
    finally:
        claim.release()


def _budget(directory: RunDirectory) -> int:
    return load_job(directory.job).spec.training.tokens


def manifest(path: Path, seed: int | None) -> tuple[DiLoCoJob, str]:
    """The job in a file, with another seed if one is given, and the text to store of it.

    Raises:
        SpecError: it is not a valid manifest.
    """
    text = read_manifest(path)
    job = parse_job(text, str(path))
    if seed is None or seed == job.spec.training.seed:
        return job, text
    document = yaml.safe_load(text)
    document["spec"]["training"]["seed"] = seed
    text = yaml.safe_dump(document, sort_keys=False)
    return parse_job(text, str(path)), text


def make_plan(request: RunRequest, job: DiLoCoJob, text: str) -> RunPlan:
    """The plan for a request; everything that is only read is checked before the directory is changed.

    Raises:
        RequestError, SpeedError, ChaosError, PlanError, QuantityError, DevicesError, PortError, RunDirectoryError:
            the request is not possible.
    """
    if request.resume and request.overwrite:
        raise RequestError(
            "--resume and --overwrite: both are given; use --resume to continue the run or --overwrite to replace it"
        )
    learners = job.spec.learner_ids
    if not learners:
        raise RequestError(f"{request.job}: its pools have 0 learners; use 1 or more in one of them")
    if request.port is not None and request.port == request.http_port:
        raise RequestError(f"--http-port: {request.port} is also --port; use another port")
    speeds = parse_speeds(request.slow, learners)
    faults = parse_faults(request.chaos, learners)
    world = read_world(job.spec, request.link, link_flag="--emulate-link")
    pools = {learner: job.spec.pool_of(learner) for learner in learners}
    devices = assign_devices(request.device, pools, cuda_devices)
    sync_port, http_port = free_ports(2)
    if request.port is not None:
        sync_port = check_free(request.port, "--port")
    if request.http_port is not None:
        http_port = check_free(request.http_port, "--http-port")
    root = request.output.absolute()
    directory = resume(root, text, job) if request.resume else begin(root, text, overwrite=request.overwrite)
    return RunPlan(request, job, directory, sync_port, http_port, speeds, world, faults, devices)


def is_complete(directory: RunDirectory) -> bool:
    """Whether the run in the directory has completed and written its summary."""
    try:
        return bool(read_json(directory.summary)["complete"])
    except (UnusableFileError, KeyError, TypeError):
        return False


def continuation(request: RunRequest) -> str:
    """The command line that resumes an interrupted run."""
    words = ["diloco", "run", str(request.job), "--output", str(request.output), "--resume"]
    repeated = {
        "--slow": request.slow,
        "--chaos": request.chaos,
        "--emulate-link": request.link,
        "--device": request.device,
    }
    words += [word for flag, values in repeated.items() for value in values for word in (flag, value)]
    words += ["--relays"] * request.relays
    words += ["--record"] * request.record + ["--page"] * request.page
    for flag, value in (("--seed", request.seed), ("--threads", request.threads)):
        words += [] if value is None else [flag, str(value)]
    return shlex.join(words)


def _conclude(request: RunRequest, plan: RunPlan, outcome: Outcome, console: Console) -> int:
    if outcome.ending is Ending.INTERRUPTED:
        say(console, f"stopped; to continue, run: {continuation(request)}")
        return EXIT_INTERRUPTED
    if outcome.ending is Ending.FAILED:
        _complain(outcome.reason, request.output)
        return EXIT_BAD_INPUT if outcome.bad_input else EXIT_UNEXPECTED
    # torch is needed only from here on: before, importing it would cost the supervisor a second and 200 MB.
    from diloco.local.report.write import close_run  # noqa: PLC0415

    console.print("writing the report", style="dim")
    try:
        history = close_run(plan.job, plan.directory)
    except OSError as error:
        what = f"{error.filename or plan.directory.root}: the report cannot be written ({error.strerror or error})"
        _complain(f"{what}; free some space, then run: {continuation(request)}", request.output)
        return EXIT_UNEXPECTED
    console.print(closing_table(history))
    say(console, f"\nreport: {request.output / plan.directory.report.name}")
    if history.complete:
        return EXIT_OK
    _complain(f"the job failed: {history.phase_reason}", request.output)
    return EXIT_UNEXPECTED


def _complain(reason: str, output: Path) -> None:
    say(new_console(cast("TextIO", LastingOutput(sys.stderr))), f"diloco: {reason} (logs: {output / 'logs'})")


_HIGHEST_PORT = 65535


class PortError(ValueError):
    """A port that cannot be listened on; the text is one line that names it."""


def free_ports(count: int) -> list[int]:
    """This many different ports that are free now, chosen once per run so that a restarted syncer is found."""
    sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    try:
        return [int(listening.getsockname()[1]) for listening in sockets]
    finally:
        for listening in sockets:
            listening.close()


def check_free(port: int, flag: str) -> int:
    """``port``, if it can be listened on now.

    Raises:
        PortError: it cannot.
    """
    if not 1 <= port <= _HIGHEST_PORT:
        raise PortError(f"{flag}: {port} is not a port; use 1 to {_HIGHEST_PORT}")
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise PortError(f"{flag}: {port} is not free at {LOOPBACK} ({reason}); use another port") from error
    return port
