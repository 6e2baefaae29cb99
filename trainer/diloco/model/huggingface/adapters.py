"""Reads the adapters that the peft package saved."""

from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from diloco.model.entrypoint import one_line
from diloco.model.errors import ModelError
from diloco.model.fragments import trained_parameters
from diloco.model.tensor_file import check_tensors
from diloco.runtime.files import UnusableFileError, read_json

WEIGHTS: Final = "adapter_model.safetensors"
CONFIG: Final = "adapter_config.json"
_ALIKE: Final = (("r", "model.adapter.rank"), ("lora_alpha", "model.adapter.alpha"))
_UNKNOWN: Final = ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern")
"""Settings of peft that change what an adapter computes, and that `Adapter` has not."""


def fill_adapters(folder: Path, module: nn.Module) -> None:
    """Copy the adapters in ``folder``, its ``WEIGHTS`` and ``CONFIG``, into ``module``, which was built with adapters.

    Raises:
        ModelError: they are others than the module's, or cannot be read; one line.
    """
    configs: Any = getattr(module, "peft_config", None)
    if configs is None:
        raise ModelError(f"{WEIGHTS}: has adapters, and this job trains none; add model.adapter")
    try:
        theirs, ours = read_json(folder / CONFIG), configs["default"]
        for key, field in _ALIKE:
            if theirs.get(key) != getattr(ours, key):
                raise ModelError(f"{CONFIG}: {key} is {theirs.get(key)}; use the same as {field}, {getattr(ours, key)}")
        for key in _UNKNOWN:
            if theirs.get(key):
                raise ModelError(f"{CONFIG}: {key} is {theirs[key]}; use adapters without it")
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
    except (OSError, UnusableFileError, AttributeError, SafetensorError) as error:
        raise ModelError(f"{WEIGHTS}: is not of adapters that peft saved ({one_line(error)})") from error
    wanted = {name.replace(".default.", "."): one for name, one in trained_parameters(module).items()}
    check_tensors(Path(WEIGHTS), wanted, tensors)
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(tensors[name])
