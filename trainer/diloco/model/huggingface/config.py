"""Builds the causal language model that a folder's `config.json` describes, without its weights."""

import importlib
from pathlib import Path
from typing import Any

from torch import nn

from diloco.model.entrypoint import one_line
from diloco.model.errors import ModelError
from diloco.runtime.file_kind import head_of, problem_of_pointer


def model_from_config(folder: Path, field: str) -> nn.Module:
    """The model of ``folder``, newly initialized, f32, on torch's current device; ``field`` names the folder's place.

    Under ``torch.device("meta")`` it takes no memory. ``forward(tokens)`` returns an object with ``logits``.

    Raises:
        ModelError: the packages are missing, or the folder describes no causal language model of the transformers
            package; one line that names ``field``.
    """
    try:
        transformers: Any = importlib.import_module("transformers")  # optional, and takes a second to load
    except ImportError as error:
        raise ModelError(f"{field}: needs the package transformers; run pip install '.[hf]' in a clone") from error
    transformers.utils.logging.set_verbosity_error()  # what is wrong, we say
    transformers.utils.logging.disable_progress_bar()
    if not (folder / "config.json").is_file():
        raise ModelError(f"{field}: {folder} has no config.json; use a folder that save_pretrained wrote")
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        config.use_cache = False
        made = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False, dtype="float32")
    except Exception as error:  # the library may raise anything for a wrong file: show it to the user in one line
        if problem := problem_of_pointer(head_of(folder / "config.json")):
            raise ModelError(f"{field}: {folder / 'config.json'} {problem}") from error
        raise ModelError(
            f"{field}: {folder / 'config.json'} describes no causal language model ({one_line(error)})"
        ) from error
    if hasattr(config, "quantization_config"):
        raise ModelError(f"{field}: {folder / 'config.json'} is of a quantized model; use one of f32, bf16 or f16")
    assert isinstance(made, nn.Module)
    return made
