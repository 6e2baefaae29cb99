"""How much memory a process may use, and how much of it some work takes."""

from pathlib import Path

import pytest
import torch

from diloco.learner.training.devices.memory import MemoryExhaustedError, ProcessMemory, memory_of

MIB = 1 << 20
MACHINE = 24 << 30
ONE = "0::/pods/one"


def machine(root: Path, groups: dict[str, str], own: str = ONE) -> Path:
    """The files of a machine on which this process is in a control group."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: {MACHINE // 1024} kB\nMemAvailable: 4096 kB\n")
    (root / "proc/self/status").write_text("VmSize: 9 kB\nVmRSS: 2048 kB\n")
    (root / "proc/self/cgroup").write_text(f"{own}\n")
    for path, limit in groups.items():
        file = root / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{limit}\n")
    return root


@pytest.mark.parametrize(
    ("groups", "own", "limit"),
    [
        ({}, ONE, MACHINE),
        ({"pods/one/memory.max": "max"}, ONE, MACHINE),
        ({"pods/one/memory.max": "1000000000"}, ONE, 10**9),
        ({"pods/one/memory.max": "max", "pods/memory.max": "3000000000"}, ONE, 3 * 10**9),
        ({"pods/one/memory.max": "5000000000", "memory.max": "4000000000"}, ONE, 4 * 10**9),
        ({"memory/memory.limit_in_bytes": "2000000000"}, ONE, 2 * 10**9),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, ONE, MACHINE),
        ({"memory.max": "1234567890"}, "0::/", 1234567890),  # in a container
    ],
)
def test_the_limit_is_the_least_of_its_groups_and_the_machine(
    tmp_path: Path, groups: dict[str, str], own: str, limit: int
) -> None:
    assert ProcessMemory(machine(tmp_path, groups, own)).limit_bytes == limit


def test_a_group_elsewhere_is_not_read(tmp_path: Path) -> None:
    root = machine(tmp_path, {}, own="0::/../../../etc")
    (tmp_path / "memory.max").write_text("1\n")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/memory.max").write_text("1\n")
    assert ProcessMemory(root).limit_bytes == MACHINE


def test_what_others_of_the_machine_use_is_not_free(tmp_path: Path) -> None:
    memory = ProcessMemory(machine(tmp_path, {}))
    assert (memory.limit_bytes, memory.free_bytes()) == (MACHINE, 6 * MIB)


def test_a_kernel_that_does_not_tell_the_peak_tells_another_way(tmp_path: Path) -> None:
    assert ProcessMemory(machine(tmp_path, {})).peak_bytes(lambda: allocate(16)) > 16 * MIB


def test_the_peak_is_of_the_work_and_not_of_what_was_before() -> None:
    memory = memory_of(torch.device("cpu"))
    assert memory.limit_bytes > memory.used_bytes() > 0
    memory.peak_bytes(lambda: allocate(256))
    before = memory.used_bytes()
    grown = memory.peak_bytes(lambda: allocate(64)) - before
    assert 48 * MIB < grown < 128 * MIB


def allocate(mib: int) -> None:
    torch.ones(mib * MIB // 4).sum()


def test_memory_that_the_system_refuses_is_told_apart_from_other_errors() -> None:
    memory = memory_of(torch.device("cpu"))
    with pytest.raises(MemoryExhaustedError):
        memory.peak_bytes(lambda: torch.empty(1 << 60))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="of the model"):
        memory.peak_bytes(fail)


def fail() -> None:
    raise RuntimeError("an error of the model")
