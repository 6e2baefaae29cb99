"""The options of a local run, and the command lines of its processes. Pure."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from diloco.local.certificates import learner_flags, syncer_flags
from diloco.local.chaos.spec import Fault, FaultKind
from diloco.local.directory import RunDirectory
from diloco.plan.world import World
from diloco.spec import DiLoCoJob
from diloco.spec.learner_ids import region_of

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One ``diloco run``."""

    job: DiLoCoJob
    directory: RunDirectory
    sync_port: int
    """The syncer's port on loopback, the same over all its restarts."""
    http_port: int
    speeds: Mapping[str, float]
    """By learner; 1.0 is as fast as the machine allows."""
    world: World = field(default_factory=World)
    """Rates and round trips of links."""
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    """Seed of the faults by rate."""
    relays: bool = False
    """Every region's link has a relay, so that ``diloco chaos`` can cut it."""
    record: bool = False
    learner_threads: int = 1
    syncer_threads: int = 1
    resumed: bool = False
    devices: Mapping[str, str] = field(default_factory=dict)
    """By learner, if there is a choice."""

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
        every = self.relays or math.isfinite(self.world.syncer_bytes_per_second)
        names = (region.name for region in self.job.spec.regions)
        return tuple(name for name in names if every or name in cut or name in self.world.links)


def default_learner_threads(learners: int) -> int:
    """Threads of each learner, so that all of them together do not exceed the cores."""
    return max(1, (os.cpu_count() or 1) // max(1, learners))


def syncer_arguments(plan: RunPlan) -> list[str]:
    """Arguments of this run's ``diloco syncer``."""
    return [
        "syncer",
        *("--job", str(plan.directory.job)),
        *("--directory", str(plan.directory.syncer)),
        *("--listen", plan.sync_address),
        *("--http", plan.http_address),
        *("--threads", str(plan.syncer_threads)),
        *syncer_flags(plan.directory),
        "--exit-when-finished",
        *(["--record"] if plan.record else []),
    ]


def learner_arguments(plan: RunPlan, learner: str, relays: Mapping[str, str]) -> list[str]:
    """Arguments of this run's ``diloco learner``; ``relays`` has the address of each region's relay, if it has one."""
    return [
        "learner",
        *("--job", str(plan.directory.job)),
        *("--learner", learner),
        *("--syncer", relays.get(region_of(learner), plan.sync_address)),
        *("--directory", str(plan.directory.learner(learner))),
        *learner_flags(plan.directory, learner),
        *("--speed", str(plan.speeds.get(learner, 1.0))),
        *("--threads", str(plan.learner_threads)),
        *(["--device", plan.devices[learner]] if learner in plan.devices else []),
    ]


def thread_environment(threads: int) -> dict[str, str]:
    """Environment that limits numerical libraries to ``threads``: otherwise each process would use every core."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
