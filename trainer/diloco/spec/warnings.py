"""What is valid in a job, but hardly meant. Pure: a function of the spec."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from diloco.spec.errors import Problem
from diloco.spec.kube.values import amount

if TYPE_CHECKING:
    from diloco.spec.job import JobSpec

_NOT_COUNTED: Final = (
    *("*/mig-*", "*/gpu.*", "*/gaudi", "*/tpu", "*/neuron*", "*/npu", "*/xpu", "*/vgpu", "*/dcu"),
    *("gpu.intel.com/*", "huawei.com/ascend*", "*/mlu*"),
)
"""Patterns of accelerators, and of parts of them, that are not `placement.ACCELERATOR`, in lower case."""


def warnings(spec: "JobSpec") -> Iterator[Problem]:
    """All of them, in the manifest's order. Paths begin at ``spec``'s own fields."""
    for i, region in enumerate(spec.regions):
        for j, pool in enumerate(region.pools):
            limits = pool.resources.limits if pool.resources is not None else {}
            for name, value in limits.items():
                several = pool.processes_per_node is None and amount(value) > 1
                if several and any(fnmatchcase(name.lower(), pattern) for pattern in _NOT_COUNTED):
                    yield Problem(
                        f"regions[{i}].pools[{j}].resources.limits",
                        f"{name}: {value} does not count as accelerators (*/gpu do), so each learner is one process "
                        "on its node and uses one; set processesPerNode",
                    )
