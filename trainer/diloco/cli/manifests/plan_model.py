"""Finds what a plan needs of a job's model: its size, and what its passes compute and hold. Values are never made."""

from pathlib import Path
from typing import TYPE_CHECKING

from diloco.plan import PlanError
from diloco.plan.plan import Counted
from diloco.spec import JobSpec
from diloco.spec.quantities import parse_count
from diloco.spec.training import HuggingFaceModel, ModelSpec

if TYPE_CHECKING:
    from torch import nn


def model_of(
    spec: JobSpec, parameters: str | None, folder: Path | None, *, passes: bool
) -> tuple[int | tuple[int, ...] | None, Counted | None]:
    """The model's size, unless it is the built-in one: the number given, or each fragment's; and what it computes.

    ``parameters``, ``folder``: what `--parameters` and `--hf` give. ``passes``: count those of a built-in model too,
    which takes torch.

    Raises:
        PlanError: the size cannot be found.
    """
    if parameters is not None:
        if folder is not None:
            raise PlanError(f"--parameters: {parameters} is not needed with --hf; remove it")
        return parse_count("--parameters", parameters), None
    if folder is None and spec.model.builtin is not None and not passes:
        return None, None
    from diloco.model import ModelError
    from diloco.model.build import blank_model
    from diloco.model.fragments import layout_of

    if folder is not None:
        adapter = spec.model.adapter
        model = HuggingFaceModel(path=str(folder), weights=adapter is not None)
        spec = spec.model_copy(update={"model": ModelSpec(huggingface=model, adapter=adapter)})
    try:
        blank = blank_model(spec)
        numels = None if spec.model.builtin is not None else layout_of(blank, spec.sync.fragments).numels
    except ModelError as error:
        flag = "--parameters: is missing, and" if folder is None else "--hf:"
        raise PlanError(f"{flag} {error}; use the number of trained parameters") from error
    return numels, _counted(spec, blank)


def _counted(spec: JobSpec, blank: "nn.Module") -> Counted:
    from diloco.learner.training.devices.dry_step import passes_of
    from diloco.model import ModelError
    from diloco.model.counting.products import flops_of_token

    frozen_bytes = sum(one.nbytes for one in blank.parameters() if not one.requires_grad)
    if spec.has_own_code:
        return Counted(frozen_bytes, unknown="they are those of spec.task or spec.loop")
    flops = flops_of_token(blank, spec.training.sequence_length)
    try:
        pools = {name: pool for name, pool in spec.pools.items() if pool.size}
        passes = {name: passes_of(blank, spec.training, pool) for name, pool in pools.items()}
    except ModelError as error:
        return Counted(frozen_bytes, flops, unknown=str(error))
    return Counted(frozen_bytes, flops, passes)
