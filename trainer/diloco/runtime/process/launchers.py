"""Variables by which launchers (torchrun, srun, mpirun, Kubeflow) tell a process its place among others.

Left in the environment of a learner, its loop would wait for processes that do not exist: Lightning, accelerate and
torch.distributed read them.
"""

from collections.abc import MutableMapping
from typing import Final

_NAMES: Final = frozenset(
    (
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK"),
        *("ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NPROCS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
        *("LSB_DJOB_RANKFILE", "PMI_RANK", "PMI_SIZE"),
    )
)
_BEGINNINGS: Final = ("TORCHELASTIC_", "OMPI_COMM_WORLD_", "MV2_COMM_WORLD_", "JSM_NAMESPACE_", "PET_")


def forget_launchers(environment: MutableMapping[str, str]) -> tuple[str, ...]:
    """Take these variables out of ``environment``; returns their names, sorted."""
    found = sorted(name for name in environment if name in _NAMES or name.startswith(_BEGINNINGS))
    for name in found:
        del environment[name]
    return tuple(found)
