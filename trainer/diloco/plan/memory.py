"""The memory that a model takes in a job's processes: copies of its parameters in f32, and what its passes hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from diloco.core.sizes import F32
from diloco.plan.situation import Exchange
from diloco.spec import JobSpec
from diloco.spec.placement import Pool, SyncerSpec

LATER_ON_A_DEVICE: Final = 3
"""Beside parameters and gradients: two moments of each parameter, and the parameters that are evaluated."""
IN_A_PROCESS: Final = 7
"""Beside them, where there is no other device: two moments, twice while a checkpoint is written, the model as it was
received, and fragments on their way in and out."""
OF_FEEDBACK: Final = 2
"""What encodings have lost, twice while a checkpoint is written. In host memory, whatever the device."""
OF_PASSES_OF_FSDP: Final = (2, 3)
"""Copies, in what a step computes in, of the parameters outside of blocks and of the largest block: FSDP has the former
whole, and the gradient of the output layer until the end; of blocks it has one, the next one and a gradient."""
_MOMENTS: Final = 2
_WHILE_WRITTEN: Final = 2
"""Copies of what a checkpoint holds: merges go on meanwhile, into new buffers."""


@dataclass(frozen=True, slots=True)
class Passes:
    """What a process's forward and backward pass holds for a while, in bytes."""

    sequences: int
    activation_bytes: int
    gathered_bytes: int = 0
    """Layers that FSDP has whole: see ``gathered_bytes``."""

    @property
    def all_bytes(self) -> int:
        """Both."""
        return self.activation_bytes + self.gathered_bytes


@dataclass(frozen=True, slots=True)
class Memory:
    """What is needed at least, in bytes."""

    device_bytes: int
    """Of a device of a learner: parameters, gradients, moments (Muon keeps one, AdamW two), the evaluated parameters,
    and frozen parameters; with FSDP its part of them. Of the pool that needs most with ``passes``; ``host_bytes`` too
    is of the pool that needs most."""
    passes: Passes | None
    """On that device besides; None: not known."""
    host_bytes: int
    """Of a learner's first host, if it trains on other devices: fragments are in pinned memory, which torch gives out
    in powers of two. The model is made there."""
    syncer_bytes: int
    """Parameters, momentum and mean, twice while a checkpoint is written, and one fragment from every learner; or the
    model, frozen parameters too, while it is made."""
    checkpoint_bytes: int
    """Of the syncer's disk, for each checkpoint."""
    disk_bytes: int
    """Of the syncer's disk, for all of them while one is written, and the tape."""

    @property
    def step_bytes(self) -> int:
        """All that is known to be needed of a device in a step."""
        return self.device_bytes + (self.passes.all_bytes if self.passes else 0)


def memory(spec: JobSpec, exchange: Exchange, learners: int, frozen_bytes: int, passes: Mapping[str, Passes]) -> Memory:
    """The memory of a job with this many learners. ``frozen_bytes``: of parameters that are not trained.

    ``passes``: by pool, where known.
    """
    copy = F32.payload_bytes(sum(exchange.numels))
    moments = 1 if spec.training.optimizer.type == "Muon" else _MOMENTS
    kept = 2 + (exchange.downlink != "F32") + (spec.sync.average_last > 0)  # what encodings leave over; means
    checkpoint = copy * kept
    pools = {name: pool for name, pool in spec.pools.items() if pool.size}
    device = copy * (2 + LATER_ON_A_DEVICE - _MOMENTS + moments) + frozen_bytes
    devices = [(-(-device // pool.parts), passes.get(name)) for name, pool in pools.items()]
    most = max(devices, key=lambda one: one[0] + (one[1].all_bytes if one[1] else 0))
    return Memory(
        device_bytes=most[0],
        passes=most[1],
        host_bytes=max(copy + frozen_bytes, *(_host_bytes(spec, pool, exchange.numels) for pool in pools.values())),
        syncer_bytes=max(_WHILE_WRITTEN * checkpoint + learners * max(exchange.up_bytes), copy + frozen_bytes),
        checkpoint_bytes=checkpoint,
        disk_bytes=checkpoint * _checkpoints(spec.syncer) + spec.syncer.tape_bytes,
    )


def _host_bytes(spec: JobSpec, pool: Pool, numels: Sequence[int]) -> int:
    """Each process writes its moments, and holds its part of the model as received; the first one holds the rest."""
    copy = F32.payload_bytes(sum(numels))
    of_each = (_MOMENTS + (pool.ranks > 1)) * copy * pool.processes // pool.parts
    feedback = OF_FEEDBACK if spec.sync.keeps_residuals else 0
    pinned = sum(1 << (F32.payload_bytes(numel) - 1).bit_length() for numel in numels)
    return of_each + pinned * (IN_A_PROCESS - _WHILE_WRITTEN * _MOMENTS) + copy * feedback


def gathered_bytes(others: int, largest_block: int, bytes_each: int) -> int:
    """What FSDP has whole at once, of a model with so many parameters outside of blocks, and in the largest block.

    ``bytes_each``: of a value in what the step computes in. Gradients are summed in f32.
    """
    of_others, of_a_block = OF_PASSES_OF_FSDP
    return bytes_each * (of_others * others + of_a_block * largest_block) + F32.payload_bytes(largest_block)


def _checkpoints(syncer: SyncerSpec) -> int:
    """Those that share no file, the newest, one that is written, and one that a backup reads."""
    return max(2, syncer.max_checkpoints - 1) + 2 + (syncer.backup is not None)
