"""The memory that a model takes in a job's processes, in copies of its parameters in f32.

Activations are not in it, nor the parameters of a layer that FSDP gathers for a while.
"""

from dataclasses import dataclass
from typing import Final

from diloco.core.sizes import F32
from diloco.plan.fit.situation import Exchange
from diloco.spec import JobSpec
from diloco.spec.placement import Pool, SyncerSpec

LATER_ON_A_DEVICE: Final = 3
"""Beside parameters and gradients: two moments of each parameter, and the parameters that are evaluated."""
IN_A_PROCESS: Final = 7
"""Beside them, where there is no other device: two moments, twice while a checkpoint is written, the model as it was
received, and fragments on their way in and out."""
OF_FEEDBACK: Final = 2
"""What encodings have lost, twice while a checkpoint is written. In host memory, whatever the device."""
_MOMENTS: Final = 2
_WHILE_WRITTEN: Final = 2
"""Copies of what a checkpoint holds: merges go on meanwhile, into new buffers."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What is needed at least, in bytes."""

    device_bytes: int
    """Of a device of a learner: parameters, gradients, moments (Muon keeps one, AdamW two), the evaluated parameters,
    and frozen parameters; with FSDP its part of them. Of the pool that needs most; so is ``host_bytes``."""
    host_bytes: int
    """Of a learner's first host, if it trains on other devices. The model is made there."""
    syncer_bytes: int
    """Parameters and momentum, twice while a checkpoint is written, and one fragment from every learner; or the model,
    frozen parameters too, while it is made."""
    checkpoint_bytes: int
    """Of the syncer's disk, for each checkpoint."""
    disk_bytes: int
    """Of the syncer's disk, for all of them while one is written, and the tape."""


def memory(spec: JobSpec, exchange: Exchange, learners: int, frozen_bytes: int) -> Memory:
    """The memory of a job with this many learners. ``frozen_bytes``: of parameters that are not trained."""
    copy = F32.payload_bytes(sum(exchange.numels))
    moments = 1 if spec.training.optimizer.type == "Muon" else _MOMENTS
    checkpoint = copy * (2 if exchange.downlink == "F32" else 3)  # what its encoding leaves over is kept
    pools = [pool for pool in spec.pools.values() if pool.size]
    device = copy * (2 + LATER_ON_A_DEVICE - _MOMENTS + moments) + frozen_bytes
    return Memory(
        device_bytes=max(-(-device // pool.parts) for pool in pools),
        host_bytes=max(copy + frozen_bytes, *(_host_bytes(spec, pool, copy) for pool in pools)),
        syncer_bytes=max(_WHILE_WRITTEN * checkpoint + learners * max(exchange.up_bytes), copy + frozen_bytes),
        checkpoint_bytes=checkpoint,
        disk_bytes=checkpoint * _checkpoints(spec.syncer) + spec.syncer.tape_bytes,
    )


def _host_bytes(spec: JobSpec, pool: Pool, copy: int) -> int:
    """Each process writes its moments, and holds its part of the model as received; the first one holds the rest."""
    of_each = (_MOMENTS + (pool.ranks > 1)) * copy * pool.processes // pool.parts
    feedback = OF_FEEDBACK if spec.sync.keeps_residuals else 0
    return of_each + copy * (IN_A_PROCESS - _WHILE_WRITTEN * _MOMENTS + feedback)


def _checkpoints(syncer: SyncerSpec) -> int:
    """Complete ones, one that is written, and one that a backup reads."""
    return max(2, syncer.max_checkpoints - 1) + 1 + (syncer.backup is not None)
