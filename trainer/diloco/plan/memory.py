"""The memory that a model takes in a job's processes, in copies of its parameters in f32. Activations are not in it."""

from dataclasses import dataclass
from typing import Final

from diloco.core.sizes import F32
from diloco.plan.fit.situation import Exchange
from diloco.spec import JobSpec

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
    """Of a learner's device: parameters, gradients, moments (Muon keeps one, AdamW two), the evaluated parameters, and
    frozen parameters."""
    host_bytes: int
    """Of a learner's host, if it trains on another device. The model is made there."""
    syncer_bytes: int
    """Parameters and momentum, twice while a checkpoint is written, and one fragment from every learner; or the model,
    frozen parameters too, while it is made."""
    checkpoint_bytes: int
    """Of the syncer's disk, for each checkpoint."""


def memory(spec: JobSpec, exchange: Exchange, learners: int, frozen_bytes: int) -> Memory:
    """The memory of a job with this many learners. ``frozen_bytes``: of parameters that are not trained."""
    copy = F32.payload_bytes(sum(exchange.numels))
    moments = 1 if spec.training.optimizer.type == "Muon" else _MOMENTS
    feedback = OF_FEEDBACK if spec.sync.keeps_residuals else 0
    checkpoint = copy * (2 if exchange.downlink == "F32" else 3)  # what its encoding leaves over is kept
    return Memory(
        device_bytes=copy * (2 + LATER_ON_A_DEVICE - _MOMENTS + moments) + frozen_bytes,
        host_bytes=max(copy * (IN_A_PROCESS - _MOMENTS + feedback), copy + frozen_bytes),
        syncer_bytes=max(_WHILE_WRITTEN * checkpoint + learners * max(exchange.up_bytes), copy + frozen_bytes),
        checkpoint_bytes=checkpoint,
    )
