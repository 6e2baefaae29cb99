"""Which device each learner of a local run trains on: a machine's accelerators are dealt out, as its cores are.

The decision is pure; ``cuda_devices`` looks at the machine. It must not import torch: the supervisor does without.
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
"""Files that a driver makes for torch's CUDA devices: NVIDIA's, AMD's, and those of WSL."""
_DEVICE: Final = re.compile(r"cpu|cuda(?::(?P<index>\d{1,4}))?")
_COUNT_SECONDS: Final = 120.0


class DevicesError(ValueError):
    """A ``--device`` that cannot be; the text is one line that names it."""


def deal_devices(texts: Sequence[str], learner_ids: Sequence[str], count: Callable[[], int]) -> dict[str, str]:
    """The device of every learner for which there is a choice; the others take what ``diloco learner`` takes.

    A text is ``DEVICES`` or ``TARGET=DEVICES``, with devices ``cpu``, ``cuda:N``, or ``cuda`` for all there are,
    separated by commas; they are dealt out in turn to the learners that are meant. Where several texts mean a learner,
    the last counts. Learners that none means are dealt all CUDA devices.

    Args:
        texts: What was asked for.
        learner_ids: All learners, in the job's order.
        count: Number of CUDA devices of this machine; asked at most once, and only where it matters.

    Raises:
        DevicesError: a text cannot be read, or names no learner or a device that is not there.
    """
    there: list[int] = []

    def cuda() -> tuple[str, ...]:
        if not there:
            there.append(count())
        return tuple(f"cuda:{index}" for index in range(there[0]))

    dealt: dict[str, str] = {}
    for text in texts:
        target, _, devices_text = text.rpartition("=")
        devices = _devices(text, devices_text, cuda)
        try:
            learners = learners_named(target or EVERY, learner_ids)
        except TargetError as error:
            raise DevicesError(f"--device {text!r}: {error}") from error
        dealt |= _in_turn(learners, devices)
    rest = [learner for learner in learner_ids if learner not in dealt]
    return dealt | (_in_turn(rest, cuda()) if rest and cuda() else {})


def devices_text(dealt: Mapping[str, str]) -> str:
    """Who trains where, in one line; empty where nobody has a choice."""
    learners = Counter(dealt.values())
    return ", ".join(f"{device}: {number} learner{'s' * (number > 1)}" for device, number in sorted(learners.items()))


def cuda_devices() -> int:
    """How many CUDA devices torch shows on this machine; 0 where there is no driver or it cannot be told."""
    if not any(Path(path).exists() for path in _DRIVERS):
        return 0
    # Asked of another process: torch takes 200 MB, and CUDA keeps a context, for as long as a process lives.
    command = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_COUNT_SECONDS)  # noqa: S603  # our own interpreter and words
        return int(told.stdout.split()[-1])
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
