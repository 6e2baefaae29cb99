"""How much memory there is for training, and how much of it some work takes: of a CUDA device, or of this process.

A process may use what its control group allows (a container's memory limit), or else what the machine has. What it
holds is its resident set; Linux keeps the peak, and lets a process reset its own.
"""

import contextlib
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

import torch

_PROC: Final = "proc/self"
_GROUPS: Final = "sys/fs/cgroup"
_RESET_PEAK: Final = "5"
"""Written to `clear_refs` (proc_pid_clear_refs(5))."""
_KIB: Final = 1024


class MemoryExhaustedError(RuntimeError):
    """The device has no memory left for it."""


class Memory(Protocol):
    """Memory that training takes its tensors from."""

    @property
    def limit_bytes(self) -> int:
        """All that this process may ever use of it."""

    def free_bytes(self) -> int:
        """What it may use of it now, with what it uses already."""

    def used_bytes(self) -> int:
        """What it uses now."""

    def peak_bytes(self, work: Callable[[], None]) -> int:
        """The most that it uses while ``work`` runs.

        Raises:
            MemoryExhaustedError: the work found no memory.
        """


def memory_of(device: torch.device) -> Memory:
    """The memory that tensors on ``device`` are in."""
    return DeviceMemory(device) if device.type == "cuda" else ProcessMemory()


class DeviceMemory:
    """The memory of a CUDA device that no other process uses."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(device)
        self.limit_bytes = free + torch.cuda.memory_reserved(device)
        """All that this process may use of it."""

    def free_bytes(self) -> int:
        """The same: others that come to use it later are not known."""
        return self.limit_bytes

    def used_bytes(self) -> int:
        """What its tensors use now."""
        return torch.cuda.memory_allocated(self._device)

    def peak_bytes(self, work: Callable[[], None]) -> int:
        """The most that its tensors use while ``work`` runs.

        Raises:
            MemoryExhaustedError: the work found no memory.
        """
        torch.cuda.empty_cache()  # what is cached in pieces of other sizes would be in the way
        torch.cuda.reset_peak_memory_stats(self._device)
        try:
            work()
            torch.cuda.synchronize(self._device)
        except torch.cuda.OutOfMemoryError as error:
            raise MemoryExhaustedError(str(error).partition("\n")[0]) from None
        return torch.cuda.max_memory_allocated(self._device)


class ProcessMemory:
    """The memory of this process, on Linux. ``root`` is where its file systems are mounted."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._status, self._clear = root / _PROC / "status", root / _PROC / "clear_refs"
        self._machine = root / "proc/meminfo"
        self.limit_bytes = min([_kib(self._machine, "MemTotal"), *_group_limits(root)])
        """All that this process may use: its container's limit, or what the machine has."""

    def free_bytes(self) -> int:
        """The limit, or what other processes of the machine leave of it."""
        return min(self.limit_bytes, self.used_bytes() + _kib(self._machine, "MemAvailable"))

    def used_bytes(self) -> int:
        """What it has in memory now."""
        return _kib(self._status, "VmRSS")

    def peak_bytes(self, work: Callable[[], None]) -> int:
        """The most that it has in memory while ``work`` runs; where the peak cannot be reset, since its start.

        Raises:
            MemoryExhaustedError: the work found no memory.
        """
        with contextlib.suppress(OSError):
            self._clear.write_text(_RESET_PEAK)
        try:
            work()
        except (MemoryError, RuntimeError) as error:
            # If the system refuses memory, as it does beyond a limit of the address space, torch raises the latter.
            if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
                raise MemoryExhaustedError("the system has no memory left") from None
            raise
        try:
            return _kib(self._status, "VmHWM")
        except OSError:  # some kernels, such as gVisor's, do not say it there
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB


def _kib(path: Path, name: str) -> int:
    """A value that a file of `proc` gives in KiB, in bytes."""
    for line in path.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * _KIB
    raise OSError(f"{path} has no {name}")


def _group_limits(root: Path) -> Iterator[int]:
    """The memory limits of this process's control group and of those it is in, in bytes. Of version 1 only its own."""
    paths = [root / _GROUPS / "memory/memory.limit_in_bytes"]
    with contextlib.suppress(OSError):
        for line in (root / _PROC / "cgroup").read_text().splitlines():
            if line.startswith("0::"):
                own = root / _GROUPS / line.removeprefix("0::").lstrip("/")
                paths += [group / "memory.max" for group in (own, *own.parents) if group.is_relative_to(root / _GROUPS)]
    for path in paths:
        with contextlib.suppress(OSError, ValueError):  # "max" is no limit
            yield int(path.read_text())
