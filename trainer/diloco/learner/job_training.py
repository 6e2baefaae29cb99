"""Makes what trains a job's model on its task and data. With a loop of the user's own, that does."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from diloco.core.fragments import Layout
from diloco.learner.data.opening import open_data, open_task
from diloco.learner.data.sampler import Hand
from diloco.learner.exchange.orders import Orders, Wakeup
from diloco.learner.options import LearnerOptions
from diloco.learner.training.devices.device import choose_device, peak_flops, set_up
from diloco.learner.training.fragment_trainer import FragmentTrainer, LateResult, StepResult
from diloco.learner.training.trainer import InnerTrainer
from diloco.learner.unit.joining import await_others, facts_of, joined, store_at
from diloco.learner.unit.starting import Unit
from diloco.model.build import build_model
from diloco.model.counting.products import flops_of_token
from diloco.model.fragments import layout_of
from diloco.spec import JobSpec

TOKENS_FOLDER = "tokens"
"""Where documents are kept as tokens, unless ``DILOCO_CACHE`` names a folder."""


class Training(NamedTuple):
    """What trains in a learner."""

    trainer: FragmentTrainer
    step: Callable[[float], StepResult | LateResult] | None
    """Makes or begins an inner step, given the job's progress; None: a loop of the user's own does."""
    flops_of_token: float
    """0: not known, or of no use."""
    processes: int = 1
    end: Callable[[], object] = lambda: None
    """Ends the learner's other processes, once nothing more is to be done with them."""


def built(options: LearnerOptions, *, values: bool = True) -> tuple[nn.Module, Layout, torch.device]:
    """The job's model, on the learner's device, and its layout. ``values``: see `build_model`.

    Raises:
        ModelError, LayoutError, DeviceError: this machine lacks what the job asks for.
    """
    spec, device = options.job.spec, choose_device(options.device or "auto")
    module = build_model(spec, values=values)
    layout = layout_of(module, spec.sync.fragments)
    set_up(spec.training, device, options.directory)
    return module.to(device), layout, device


def training_of(options: LearnerOptions, orders: Orders, wakeup: Wakeup, unit: Unit | None = None) -> Training:
    """Build the model and open the data of a job; for what it raises see `Learner`."""
    if unit is not None:
        return _training_in(unit, options, orders, wakeup)
    spec, (module, layout, device) = options.job.spec, built(options, values=False)
    flops = _flops_of_token(spec, module, device)
    task = open_task(spec, options.directory / TOKENS_FOLDER, lambda: orders.stopping)
    data = open_data(spec, options.learner, task, hand=Hand(wakeup.notify))
    trainer = InnerTrainer(spec, module, layout, data, device)
    return Training(trainer, trainer.begin, flops)


def _training_in(unit: Unit, options: LearnerOptions, orders: Orders, wakeup: Wakeup) -> Training:
    """The first process has the model whole in host memory, and its part of it on the device."""
    # torch's FSDP, which they import, takes a third as long to load as the rest of torch.
    from diloco.learner.unit.rank import Rank  # noqa: PLC0415
    from diloco.learner.unit.sharding import parted_model  # noqa: PLC0415
    from diloco.learner.unit.unit_trainer import UnitTrainer  # noqa: PLC0415

    spec, pool = options.job.spec, options.job.spec.pool_of(options.learner)
    device, module = choose_device(options.device_of(0), 0), build_model(spec, values=False)
    set_up(spec.training, device, options.directory)
    layout = layout_of(module, spec.sync.fragments)
    task = open_task(spec, options.directory / TOKENS_FOLDER, lambda: orders.stopping)
    unit.joining = True
    store = store_at(unit.store, unit.ranks, unit.listening)
    await_others(store, unit.ranks, lambda: orders.stopping)
    unit.joining = False
    world = joined(store, 0, unit.ranks, device, facts_of(spec, layout))
    parted = parted_model(spec, pool, world, module)
    data = open_data(spec, options.learner, task, hand=Hand(wakeup.notify))
    trainer = UnitTrainer(spec, module, Rank(spec, parted, layout, data, world))

    def leave() -> None:
        trainer.end()
        world.leave()

    flops = _flops_of_token(spec, module, device)
    return Training(trainer, trainer.begin, flops, unit.ranks, lambda: unit.end(leave))


def _flops_of_token(spec: JobSpec, module: nn.Module, device: torch.device) -> int:
    """They are counted only where MFU can be told; with a task or a loop they are not known."""
    if spec.has_own_code or peak_flops(device, spec.training.precision) is None:
        return 0
    return flops_of_token(module, spec.training.sequence_length)
