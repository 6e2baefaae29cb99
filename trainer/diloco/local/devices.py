"""Chooses the devices of each learner in a local run: its accelerators are distributed over the learners' processes.

The decision is pure; ``cuda_devices`` looks at the machine. torch is not imported, to keep the supervisor small.
"""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Final

from diloco.local.targets import EVERY, TargetError, learners_named
from diloco.spec.placement import Pool

AUTO: Final = "auto"
"""The device that ``diloco learner`` finds itself."""

_DRIVERS: Final = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Device files of the drivers that torch's CUDA devices need: NVIDIA's, AMD's, and those of WSL."""
_DEVICE: Final = re.compile(r"cpu|cuda(?::(?P<index>\d{1,4}))?")
_SHARED: Final = frozenset({"cpu", AUTO})
"""Devices for any number of a learner's processes."""
_COUNT_SECONDS: Final = 120.0


class DevicesError(ValueError):
    """An invalid ``--device``; the text is one line that names it."""


def assign_devices(
    texts: Sequence[str], pools: Mapping[str, Pool], count: Callable[[], int]
) -> dict[str, tuple[str, ...]]:
    """The device of each process of every learner; AUTO, the default of ``diloco learner``, if there is no choice.

    A text is ``DEVICES`` or ``TARGET=DEVICES``, with devices ``cpu``, ``cuda:N``, or ``cuda`` for all there are,
    separated by commas; they are assigned in turn to the processes of the target's learners. If several texts name a
    learner, the last counts. All CUDA devices are assigned in turn to the learners that no text names. ``count``
    returns their number on this machine; it is called at most once, and only if needed. ``pools``: of each learner.

    Raises:
        DevicesError: a text cannot be parsed, or names no learner or a device that does not exist; or processes of one
            learner would share a CUDA device.
    """
    there: list[int] = []

    def cuda() -> tuple[str, ...]:
        if not there:
            there.append(count())
        return tuple(f"cuda:{index}" for index in range(there[0]))

    assigned: dict[str, tuple[str, ...]] = {}
    for text in texts:
        target, _, devices_text = text.rpartition("=")
        devices = _devices(text, devices_text, cuda)
        try:
            learners = learners_named(target or EVERY, tuple(pools))
        except TargetError as error:
            raise DevicesError(f"--device {text!r}: {error}") from error
        assigned |= _in_turn({learner: pools[learner] for learner in learners}, devices)
    rest = {learner: pool for learner, pool in pools.items() if learner not in assigned}
    assigned |= _in_turn(rest, cuda() or (AUTO,)) if rest else {}
    return {learner: assigned[learner] for learner in pools}


def devices_text(assigned: Mapping[str, tuple[str, ...]]) -> str:
    """How many learners, or processes of them, train on which device, in one line; empty if there is no choice."""
    what, ending = ("learner", "s") if all(len(devices) == 1 for devices in assigned.values()) else ("process", "es")
    counted = Counter(device for devices in assigned.values() for device in devices if device != AUTO)
    return ", ".join(f"{device}: {number} {what}{ending * (number > 1)}" for device, number in sorted(counted.items()))


def cuda_devices() -> int:
    """How many CUDA devices torch sees on this machine; 0 if there is no driver or the number is unknown."""
    if not any(Path(path).exists() for path in _DRIVERS):
        return 0
    # Another process asks torch, which takes 200 MB, and CUDA, which keeps a context until its process ends.
    command = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_COUNT_SECONDS)  # noqa: S603  # our own interpreter and arguments
        return int(answer.stdout.split()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 0


def _in_turn(learners: Mapping[str, Pool], devices: Sequence[str]) -> dict[str, tuple[str, ...]]:
    turn = cycle(devices)
    dealt = {learner: tuple(islice(turn, _processes(pool, devices))) for learner, pool in learners.items()}
    for learner, its in dealt.items():
        twice = next((device for device, number in Counter(its).items() if number > 1 and device not in _SHARED), None)
        if twice is not None:
            raise DevicesError(
                f"--device: {learner} has {len(its)} processes, and more than one of them would get {twice}; "
                "use cpu, or fewer processesPerNode and nodesPerLearner"
            )
    return dealt


def _processes(pool: Pool, devices: Sequence[str]) -> int:
    """Of a learner, on this machine: one for each accelerator in its limits, if there are so many."""
    given = pool.processes_per_node is not None or pool.processes <= len(set(devices) - _SHARED)
    return pool.ranks if given else pool.nodes_per_learner


def _devices(text: str, devices_text: str, cuda: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
    devices: list[str] = []
    for name in devices_text.split(","):
        match = _DEVICE.fullmatch(name)
        if match is None:
            raise DevicesError(
                f"--device {text!r}: {name!r} is not a device; use cpu, cuda or cuda:N, or several separated by commas"
            )
        if name == "cpu":
            devices.append(name)
            continue
        wanted = cuda() if match["index"] is None else (f"cuda:{int(match['index'])}",)
        if not wanted or not set(wanted) <= set(cuda()):
            raise DevicesError(
                f"--device {text!r}: {name} is not available; this machine has {len(cuda())} CUDA devices"
            )
        devices += wanted
    return tuple(devices)
