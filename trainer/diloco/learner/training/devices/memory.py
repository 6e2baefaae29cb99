"""How much memory a process may use for training: of a CUDA device, or of its container or machine, on Linux."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch

_GROUPS: Final = "sys/fs/cgroup"
_KIB: Final = 1024


def memory_bytes(device: torch.device, root: Path = Path("/")) -> int:
    """All that this process may ever use of the memory that tensors on ``device`` are in.

    ``root`` is where the machine's file systems are mounted.

    Raises:
        OSError: the machine does not say.
    """
    if device.type != "cuda":
        return min([_machine_bytes(root / "proc/meminfo"), *_group_limits(root)])
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device)


def _machine_bytes(path: Path) -> int:
    for line in path.read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * _KIB
    raise OSError(f"{path} has no MemTotal")


def _group_limits(root: Path) -> Iterator[int]:
    """The memory limits of this process's control group and of those it is in, in bytes. Of version 1 only its own."""
    paths = [root / _GROUPS / "memory/memory.limit_in_bytes"]
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                own = root / _GROUPS / line.removeprefix("0::").lstrip("/")
                paths += [group / "memory.max" for group in (own, *own.parents) if group.is_relative_to(root / _GROUPS)]
    for path in paths:
        with contextlib.suppress(OSError, ValueError):  # "max" is no limit
            yield int(path.read_text())
