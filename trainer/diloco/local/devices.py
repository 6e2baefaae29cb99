"""Chooses the device of each learner in a local run: the machine's accelerators are distributed over the learners.

The decision is pure; ``cuda_devices`` looks at the machine. torch is not imported, to keep the supervisor small.
"""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from diloco.local.targets import EVERY, TargetError, learners_named

_DRIVERS: Final = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Device files of the drivers that torch's CUDA devices need: NVIDIA's, AMD's, and those of WSL."""
_DEVICE: Final = re.compile(r"cpu|cuda(?::(?P<index>\d{1,4}))?")
_COUNT_SECONDS: Final = 120.0


class DevicesError(ValueError):
    """An invalid ``--device``; the text is one line that names it."""


def assign_devices(texts: Sequence[str], learner_ids: Sequence[str], count: Callable[[], int]) -> dict[str, str]:
    """The device of every learner for which there is a choice; the others use the default of ``diloco learner``.

    A text is ``DEVICES`` or ``TARGET=DEVICES``, with devices ``cpu``, ``cuda:N``, or ``cuda`` for all there are,
    separated by commas; they are assigned in turn to the learners of the target. If several texts name a learner, the
    last counts. All CUDA devices are assigned in turn to the learners that no text names. ``count`` returns their
    number on this machine; it is called at most once, and only if needed.

    Raises:
        DevicesError: a text cannot be parsed, or names no learner or a device that does not exist.
    """
    there: list[int] = []

    def cuda() -> tuple[str, ...]:
        if not there:
            there.append(count())
        return tuple(f"cuda:{index}" for index in range(there[0]))

    assigned: dict[str, str] = {}
    for text in texts:
        target, _, devices_text = text.rpartition("=")
        devices = _devices(text, devices_text, cuda)
        try:
            learners = learners_named(target or EVERY, learner_ids)
        except TargetError as error:
            raise DevicesError(f"--device {text!r}: {error}") from error
        assigned |= _in_turn(learners, devices)
    rest = [learner for learner in learner_ids if learner not in assigned]
    return assigned | (_in_turn(rest, cuda()) if rest and cuda() else {})


def devices_text(assigned: Mapping[str, str]) -> str:
    """Which learners train on which device, in one line; empty if there is no choice."""
    learners = Counter(assigned.values())
    return ", ".join(f"{device}: {number} learner{'s' * (number > 1)}" for device, number in sorted(learners.items()))


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


def _in_turn(learners: Sequence[str], devices: Sequence[str]) -> dict[str, str]:
    return {learner: devices[index % len(devices)] for index, learner in enumerate(learners)}


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
