"""How much memory a process may use."""

from pathlib import Path

import pytest
import torch

from diloco.learner.training.devices.memory import memory_bytes

CPU = torch.device("cpu")
MACHINE = 24 << 30
ONE = "0::/pods/one"


def machine(root: Path, groups: dict[str, str], own: str = ONE) -> Path:
    """The files of a machine on which this process is in a control group."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: {MACHINE // 1024} kB\n")
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
    assert memory_bytes(CPU, machine(tmp_path, groups, own)) == limit


def test_a_group_elsewhere_is_not_read(tmp_path: Path) -> None:
    root = machine(tmp_path, {}, own="0::/../../../etc")
    (tmp_path / "memory.max").write_text("1\n")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/memory.max").write_text("1\n")
    assert memory_bytes(CPU, root) == MACHINE


def test_a_machine_that_does_not_say_is_an_error(tmp_path: Path) -> None:
    root = machine(tmp_path, {})
    (root / "proc/meminfo").write_text("MemFree: 1 kB\n")
    with pytest.raises(OSError, match="has no MemTotal"):
        memory_bytes(CPU, root)
