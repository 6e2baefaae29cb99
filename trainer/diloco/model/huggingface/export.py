"""Writes a trained model as a folder that the transformers package loads, or the peft package if it has adapters."""

import os
import shutil
import warnings
from pathlib import Path
from typing import Any, Final

from torch import nn

from diloco.model.entrypoint import one_line
from diloco.model.errors import ModelError
from diloco.runtime.files import fsync, read_json
from diloco.spec.training import HuggingFaceModel

_COPIED: Final = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.*",
)
"""Files of the model's folder that training does not change, as patterns."""


def write_folder(module: nn.Module, model: HuggingFaceModel, target: Path) -> None:
    """Write ``module``, built from ``model`` and trained, to the folder ``target``, completely or not at all.

    Weights are f32 in safetensors. A module with adapters gives a peft folder, which names the base model's.

    Raises:
        ModelError: ``target`` has content, or the libraries refuse the model.
        OSError: it could not be written.
    """
    check_target(target)
    partial = target.absolute().with_name(f".{target.absolute().name}.{os.getpid()}.part")
    source = Path(model.path)
    try:
        partial.mkdir(parents=True)
        try:
            with warnings.catch_warnings(action="ignore", category=FutureWarning):  # peft's, about transformers
                _save(module, source, partial)
        except (ValueError, TypeError, KeyError, RuntimeError) as error:
            raise ModelError(f"--hf: {model.path} cannot be written ({one_line(error)})") from error
        for pattern in _COPIED:
            for path in source.glob(pattern):
                shutil.copyfile(path, partial / path.name)
        for path in partial.iterdir():
            path.chmod(0o644)  # safetensors makes it readable by its owner only
            fsync(path)
        fsync(partial)
        partial.rename(target)  # fails if another process has made a folder with content of it
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    fsync(target.absolute().parent)


def check_target(target: Path) -> None:
    """Refuse a folder with content: nothing is overwritten.

    Raises:
        ModelError: it has content.
        OSError: it is a file.
    """
    if target.exists() and any(target.iterdir()):
        raise ModelError(f"--hf: {target} is not empty; use another folder, or empty it")


def _save(module: Any, source: Path, partial: Path) -> None:
    """By the library's own way, which names tensors as its files do, and writes tied ones once."""
    if hasattr(module, "peft_config"):
        module.peft_config["default"].base_model_name_or_path = str(source.absolute())
        module.save_pretrained(partial, save_embedding_layers=False)
    else:
        module.config.use_cache = read_json(source / "config.json").get("use_cache", True)  # not in training
        module.save_pretrained(partial)
