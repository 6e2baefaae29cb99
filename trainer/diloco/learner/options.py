"""A learner process's options, checked before anything is built. Everything about training is in the job."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from diloco.runtime.addresses import parse_address
from diloco.spec import DiLoCoJob
from diloco.wire.tls.tls import ClientTls

LEAST_SPEED: Final = 0.001
"""Slowest simulated hardware (ours): a step takes a thousand times as long."""

LONGEST_POD: Final = 64
"""Characters of a pod's uid; Kubernetes' have 36."""


class LearnerOptionError(ValueError):
    """An option's value is not allowed; the text names the option, the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class LearnerOptions:
    """How to run one learner of a job."""

    job: DiLoCoJob
    learner: str
    """Its id, ``region/pool/index``."""
    syncer_address: str | Path
    """``host:port`` of the syncer's gRPC server, or a file that contains it, is followed, and may not exist yet."""
    directory: Path
    """A directory of this learner alone, for its checkpoints and ``activity.json``. Created if missing."""
    tls: ClientTls | None = None
    """Certificates, if the syncer requires them."""
    speed: float = 1.0
    """Simulates slower hardware: each inner step takes 1/speed as long, the rest being slept. At most 1."""
    threads: int | None = None
    """torch threads of the inner step in each process. Default: torch's own choice; with several, a share each."""
    http_address: str | None = None
    """``host:port`` for /metrics, /healthz and /readyz. Default: none."""
    device: str | None = None
    """``cpu``, ``cuda``, ``cuda:1``..., or one for each process, separated by commas. Default: cuda if there is one."""
    processes: int | None = None
    """Processes of this learner on this machine. Default: the pool's."""
    unit: str | None = None
    """``host:port`` at which the first node of the learner listens for the others. None: it is one node."""
    node: int = 0
    """Which of the learner's nodes this is."""
    stay: bool = False
    """Once the job is over, wait for SIGTERM, or until it goes on: for a supervisor that restarts every process."""
    pod: str = ""
    """The uid of the pod that it runs in; empty: none."""
    hand_in_seconds: float = 20.0
    """After SIGTERM: longest wait until what is due has reached the syncer."""
    log_json: bool = False
    """How its other processes log."""

    def __post_init__(self) -> None:
        """Check what can be checked without building anything.

        Raises:
            LearnerOptionError: a value is not allowed.
            AddressError: an address cannot be parsed.
        """
        ids = self.job.spec.learner_ids
        if self.learner not in ids:
            some = ", ".join(ids[:4]) + (", ..." if len(ids) > 4 else "")
            raise LearnerOptionError(f"--learner: {self.learner!r} is not in job {self.job.metadata.name}; use {some}")
        if not LEAST_SPEED <= self.speed <= 1:
            raise LearnerOptionError(
                f"--speed, DILOCO_SPEED: {self.speed:g} is not a valid factor; use {LEAST_SPEED:g} to 1"
            )
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise LearnerOptionError(f"--threads: {self.threads} is not allowed; use 1 to 1024")
        devices = (self.device or "auto").split(",")
        given, processes = len(devices), self.processes_here
        plural = "es" * (processes > 1)
        shared = ":" in devices[0] and len(set(devices)) < processes
        if given not in (1, processes) or shared or len({name.partition(":")[0] for name in devices}) > 1:
            raise LearnerOptionError(
                f"--device: {self.device} is not possible for {processes} process{plural}; use cpu, cuda, or "
                f"{processes} of one kind, separated by commas"
            )
        if len(self.pod) > LONGEST_POD or not (self.pod.isascii() and self.pod.isprintable()) or "/" in self.pod:
            raise LearnerOptionError(
                f"--pod, DILOCO_POD: {self.pod[:LONGEST_POD]!r} is not a pod's uid; "
                f"use at most {LONGEST_POD} plain characters"
            )
        if not (math.isfinite(self.hand_in_seconds) and self.hand_in_seconds >= 0):
            raise LearnerOptionError(f"hand_in_seconds {self.hand_in_seconds:g}: use 0 or more")
        if isinstance(self.syncer_address, str):
            parse_address(self.syncer_address)
        for address in (self.http_address, self.unit):
            if address is not None:
                parse_address(address)

    @property
    def processes_here(self) -> int:
        """Processes of this learner on this machine."""
        return self.processes or self.job.spec.pool_of(self.learner).processes

    @property
    def nodes(self) -> int:
        """Nodes of this learner."""
        return 1 if self.unit is None else self.job.spec.pool_of(self.learner).nodes_per_learner

    @property
    def ranks(self) -> int:
        """Processes that are this learner, on all its nodes."""
        return self.processes_here * self.nodes

    @property
    def threads_of_process(self) -> int | None:
        """Number of torch threads of each process; None: torch's own choice."""
        share = None if self.ranks == 1 else max(1, (os.cpu_count() or 1) // self.processes_here)
        return self.threads or share

    def device_of(self, process: int) -> str:
        """The device of one of its processes, as `choose_device` takes it."""
        devices = (self.device or "auto").split(",")
        return devices[process % len(devices)]

    @property
    def staleness_bound_steps(self) -> int:
        """Inner steps without receiving a fragment after which the learner pauses."""
        sync = self.job.spec.sync
        return sync.staleness_bound_steps


def only_visible(device: str, visible: str | None) -> str | None:
    """The ``CUDA_VISIBLE_DEVICES`` with which process N of a learner, on this machine, has its device as ``cuda:N``.

    Libraries that a loop of the user's own uses take that one. None: no device is named by its number, or there is no
    such one. Pure.

    Args:
        device: Of each process, by its number among those in ``visible``, separated by commas.
        visible: The variable as it is; None: it is not set.
    """
    numbers = [name.removeprefix("cuda:") for name in device.split(",")]
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        return None
    if visible is None:
        return ",".join(numbers)
    every = [one.strip() for one in visible.split(",")]
    chosen = [every[int(number)] for number in numbers if int(number) < len(every)]
    return ",".join(chosen) if len(chosen) == len(numbers) else None


def node_of_pod(job: DiLoCoJob, pod: str, unit: str) -> tuple[str, int, str]:
    """The learner's id, the number of its node, and the address of its first node. Pure.

    Args:
        job: The job.
        pod: ``region/pool/index`` of the pod; each learner has ``nodesPerLearner`` of them, one after another.
        unit: The address; ``{index}`` stands for the index of the learner's first pod.

    Raises:
        LearnerOptionError: the job has no such pod.
    """
    pool, _, number = pod.rpartition("/")
    found = job.spec.pools.get(pool)
    if found is None or not (number.isascii() and number.isdecimal()):
        raise LearnerOptionError(f"--learner: {pod!r} is no pod of job {job.metadata.name}; use REGION/POOL/PODINDEX")
    learner, node = divmod(int(number), found.nodes_per_learner)
    return f"{pool}/{learner}", node, unit.replace("{index}", str(learner * found.nodes_per_learner))


def is_other_training(one: str, another: str) -> bool:
    """Whether two ids are of two trainings. An empty id stands for an unknown one."""
    return bool(one and another) and one != another
