"""Variables by which launchers (torchrun, srun, mpirun, Kubeflow) tell a process its place among others.

Lightning, accelerate and torch.distributed read them. Left in the environment of a learner, its loop would wait for
processes that do not exist. A loop in several processes finds them as torchrun sets them.
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


def as_torchrun(rank: int, ranks: int, processes: int, host: str, port: int) -> dict[str, str]:
    """The variables of process ``rank`` of ``ranks``, of which ``processes`` are on each machine.

    ``host``, ``port``: of a store that is already served there. By two of the variables torch makes none of its own.
    """
    node, place = divmod(rank, processes)
    numbers = {
        **dict.fromkeys(("RANK", "ROLE_RANK"), rank),
        **dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE"), ranks),
        "LOCAL_RANK": place,
        "LOCAL_WORLD_SIZE": processes,
        "GROUP_RANK": node,
        "GROUP_WORLD_SIZE": ranks // processes,
        "MASTER_PORT": port,
        **dict.fromkeys(("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"), 0),
    }
    texts = {
        "ROLE_NAME": "default",
        "MASTER_ADDR": host,
        "TORCHELASTIC_RUN_ID": "diloco",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    return {name: str(number) for name, number in numbers.items()} | texts
