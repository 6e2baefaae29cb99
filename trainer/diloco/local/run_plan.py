"""The options of a local run, and the command lines of its processes. Pure."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from diloco.local.certificates import learner_flags, syncer_flags
from diloco.local.chaos.spec import Fault, FaultKind
from diloco.local.directory import RunDirectory
from diloco.spec import DiLoCoJob
from diloco.spec.names.learner_ids import region_of
from diloco.world.model import World

LOOPBACK: Final = "127.0.0.1"
SYNCER_THREADS: Final = 1


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What the user asked for, with one field per flag."""

    job: Path
    output: Path
    resume: bool = False
    overwrite: bool = False
    record: bool = False
    slow: tuple[str, ...] = ()
    chaos: tuple[str, ...] = ()
    link: tuple[str, ...] = ()
    relays: bool = False
    seed: int | None = None
    """Replaces ``training.seed``."""
    threads: int | None = None
    device: tuple[str, ...] = ()
    port: int | None = None
    http_port: int | None = None
    page: bool = False
    """Print the address of the report, which grows while the run goes on."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One ``diloco run``: the request, checked against the job and the machine."""

    request: RunRequest
    job: DiLoCoJob
    directory: RunDirectory
    sync_port: int
    """The syncer's port on loopback, the same over all its restarts."""
    http_port: int
    speeds: Mapping[str, float]
    """By learner; 1.0 is as fast as the machine allows."""
    world: World
    faults: tuple[Fault, ...]
    devices: Mapping[str, tuple[str, ...]]
    """Of each process, by learner."""

    @property
    def sync_address(self) -> str:
        """Address at which the syncer serves learners."""
        return f"{LOOPBACK}:{self.sync_port}"

    @property
    def http_address(self) -> str:
        """Address at which the syncer serves /status."""
        return f"{LOOPBACK}:{self.http_port}"

    @property
    def relayed_regions(self) -> tuple[str, ...]:
        """Regions that reach the syncer through a relay, because a fault cuts their link or it has a rate or delay."""
        cut = {victim for fault in self.faults if fault.kind is FaultKind.CUT for victim in fault.victims}
        every = self.request.relays or math.isfinite(self.world.syncer.bytes_per_second)
        names = (region.name for region in self.job.spec.regions)
        return tuple(name for name in names if every or name in cut or self.world.gives_link(name))

    @property
    def learner_threads(self) -> int:
        """Threads of each process of a learner. Default: as many as let all of them together not exceed the cores."""
        return self.request.threads or max(1, (os.cpu_count() or 1) // sum(map(len, self.devices.values())))


def syncer_arguments(plan: RunPlan) -> list[str]:
    """Arguments of this run's ``diloco syncer``."""
    return [
        "syncer",
        *("--job", str(plan.directory.job)),
        *("--directory", str(plan.directory.syncer)),
        *("--listen", plan.sync_address),
        *("--http", plan.http_address),
        *("--threads", str(SYNCER_THREADS)),
        *syncer_flags(plan.directory),
        "--exit-when-finished",
        *(["--record"] if plan.request.record else []),
    ]


def learner_arguments(plan: RunPlan, learner: str, relays: Mapping[str, str]) -> list[str]:
    """Arguments of this run's ``diloco learner``; ``relays`` has the address of each region's relay, if it has one."""
    devices = plan.devices[learner]
    return [
        "learner",
        *("--job", str(plan.directory.job)),
        *("--learner", learner),
        *("--syncer", relays.get(region_of(learner), plan.sync_address)),
        *("--directory", str(plan.directory.learner(learner))),
        *learner_flags(plan.directory, learner),
        *("--speed", str(plan.speeds.get(learner, 1.0))),
        *("--threads", str(plan.learner_threads)),
        *("--processes", str(len(devices))),
        *("--device", ",".join(devices if len(set(devices)) > 1 else devices[:1])),
    ]


def thread_environment(threads: int) -> dict[str, str]:
    """Environment that limits numerical libraries to ``threads``: otherwise each process would use every core."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
