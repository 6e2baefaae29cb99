"""What a pod requests of its node where the manifest says nothing, how much of its disk it may fill, and for how long.

A node that runs short first evicts pods that use more than they requested. A folder beyond its limit costs its own pod,
not the neighbours. How large a model from an entrypoint is, and what user code writes, is not known here.
"""

import math
from typing import Final

from diloco.runtime.disk_rate import longest_write_seconds
from diloco.spec import JobSpec
from diloco.spec.kube.values import amount
from diloco.spec.pods import Resources
from diloco_operator.manifests.inputs import Manifest

_MILLICORES, _MEMORY_MIB = 100, 256
"""Requests of each process for what the manifest does not mention (ours), enough for a small model."""
_SHARED_MEMORY_MIB: Final = 256
"""Room for each of several processes on a node (ours). Where devices cannot reach each other's memory, NCCL takes 9.2
MiB for each channel between two of them. Without a volume a container has 64 MiB, enough for seven."""
DISK: Final = "ephemeral-storage"
_LOGS_MIB: Final = 64
"""What a kubelet keeps of a container's output, five files of 10 MiB, and some."""
_CHECKPOINTS: Final = 3
"""A learner keeps two and writes the third beside them."""
_CHECKPOINTS_SPARE_MIB: Final = 64
_LONGEST_END_SECONDS: Final = 86_400
"""For a last checkpoint (ours): one of 4 TB."""
_TEMPORARY_MIB: Final = 2048
"""Our code writes nothing there; a device's driver may keep what it has compiled."""


def checkpoints_mib(spec: JobSpec) -> int | None:
    """Room in MiB for the checkpoints of a learner: moments and residuals in f32.

    None: unknown, as is the model's size, or that of documents' tokens, which are kept beside them.
    """
    if spec.model.builtin is None or any(part.documents for part in (spec.data, *(spec.data.mixture or ()))):
        return None
    parameters = sum(math.prod(shape) for _, shape in spec.model.builtin.shapes())
    bytes_each = 12 if spec.sync.keeps_residuals else 8
    return _CHECKPOINTS_SPARE_MIB + math.ceil(_CHECKPOINTS * bytes_each * parameters / (1 << 20))


def temporary_mib(spec: JobSpec) -> int | None:
    """Room in MiB for temporary files. None: code of the user's may write as much as it likes, such as downloads."""
    own = spec.model.entrypoint or spec.data.entrypoint or spec.has_own_code
    return None if own else _TEMPORARY_MIB


def directory(mib: int | None, given: Resources | None) -> Manifest:
    """An empty directory of this room, unless the manifest says how much of the disk the pod may use."""
    return {"emptyDir": {} if mib is None or _named(given, DISK) else {"sizeLimit": f"{mib}Mi"}}


def shared_memory(processes: int) -> Manifest:
    """A volume in memory for so many processes. What they write there counts as the container's memory."""
    return {"emptyDir": {"medium": "Memory", "sizeLimit": f"{processes * _SHARED_MEMORY_MIB}Mi"}}


def resources(given: Resources | None, checkpoints_mib: int | None = None, processes: int = 1) -> Manifest:
    """A container's resources: the given ones, and our requests for those that are not mentioned."""
    found: Manifest = {} if given is None else given.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    # Without a request, Kubernetes uses the limit as the request; it refuses a request above the limit.
    ours = {
        "cpu": f"{processes * _MILLICORES}m",
        "memory": f"{processes * _MEMORY_MIB}Mi",
        DISK: f"{_LOGS_MIB + (checkpoints_mib or 0)}Mi",
    }
    missing = {resource: amount for resource, amount in ours.items() if not _named(given, resource)}
    return {**found, "requests": {**missing, **found.get("requests", {})}} if missing else found


def more_seconds(given: Resources | None, least_seconds: float) -> int:
    """Time that the last checkpoint may take beyond ``least_seconds``: it fits into the memory that the manifest gives.

    Without such a memory, 0: how large it is is not known.
    """
    memory = "0" if given is None else given.limits.get("memory", given.requests.get("memory", "0"))
    seconds = longest_write_seconds(float(amount(memory)), least_seconds)
    return math.ceil(min(seconds, _LONGEST_END_SECONDS) - least_seconds)


def _named(given: Resources | None, resource: str) -> bool:
    return given is not None and resource in {*given.requests, *given.limits}
