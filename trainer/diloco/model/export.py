"""Writes and reads a trained model as a safetensors file, with what is needed to rebuild it in the metadata.

Nothing is unpickled, and reading a file never imports code: for an entrypoint's model, the caller must pass the
manifest's entrypoint.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from diloco.model.build import make_model
from diloco.model.constants import constants_digest, saved_buffers
from diloco.model.entrypoint import one_line
from diloco.model.errors import ModelError
from diloco.model.fragments import trained_parameters
from diloco.model.tensor_file import check_tensors, write_tensor_file
from diloco.runtime.file_kind import head_of, problem_of_pointer
from diloco.runtime.files import fsync, open_regular
from diloco.runtime.json_text import parse_json
from diloco.spec.training import ModelSpec

_METADATA_KEY = "diloco"
_VOCABULARY_SIZE_LIMIT = 1_000_000  # as in the manifest; bounds the memory that a wrong file can ask for


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """An exported file's metadata."""

    job: str
    """``metadata.name`` of the job."""
    model: ModelSpec
    vocabulary_size: int
    """Of the built-in model; 0 for others."""
    sequence_length: int
    layout_digest: str
    tokens: int
    """Merged tokens it was trained on."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model read from a file."""

    module: nn.Module
    info: ModelInfo


def export_model(module: nn.Module, path: Path, info: ModelInfo) -> str:
    """Write a model's tensors and ``info`` to ``path``, completely or not at all; returns the file's SHA-256.

    Tied weights are written once.

    Of a model with adapters only these are written: the rest is in the folder of the base model.

    Raises:
        OSError: it could not be written; a file that was at ``path`` before is unchanged.
    """
    return export_tensors({name: tensor.detach() for name, tensor in _in_file(module, info).items()}, path, info)


def export_tensors(tensors: Mapping[str, Tensor], path: Path, info: ModelInfo) -> str:
    """``export_model`` of a model's ``tensors``, by name.

    Raises:
        OSError: as ``export_model``.
    """
    described = json.dumps(
        {
            "format": 1,
            "job": info.job,
            "model": info.model.model_dump(by_alias=True, mode="json", exclude_defaults=True),
            "vocabularySize": info.vocabulary_size,
            "sequenceLength": info.sequence_length,
            "layoutDigest": info.layout_digest,
            "tokens": info.tokens,
        }
    )
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        digest = write_tensor_file(partial, tensors, {"format": "pt", _METADATA_KEY: described})
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    fsync(path.parent)
    return digest


def info_of(path: Path) -> ModelInfo:
    """The metadata of a model that ``export_model`` wrote.

    Raises:
        ModelError: there is none that can be read.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return _info(path, file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, str(path), error) from error


def load_model(path: Path, model: ModelSpec | None = None) -> LoadedModel:
    """Read a model that ``export_model`` wrote. ``model`` is needed, and trusted, if it came from an entrypoint.

    Raises:
        ModelError: the file is missing, damaged, not an exported model, or of another model; one line that names it.
    """
    try:
        open_regular(path).close()
        with safe_open(path, framework="pt") as file:
            info = _info(path, file.metadata() or {})
            module = _empty_model(path, info, model)
            _fill(path, module, info, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118  # not a mapping
    except OSError as error:
        reason = (error.strerror or one_line(error)).lower()
        raise ModelError(f"{path}: cannot be read: {reason}") from error
    except SafetensorError as error:
        raise _unreadable(path, str(path), error) from error
    return LoadedModel(module.eval(), info)


def fill_trained(path: Path, module: nn.Module) -> None:
    """Copy the trained parameters of a model that ``export_model`` wrote into ``module``, whose model it must be.

    Raises:
        ModelError: the file is damaged or not an exported model, or its names, shapes or frozen parameters and buffers
            are not those of ``module``.
    """
    trained = {id(parameter) for parameter in trained_parameters(module).values()}
    try:
        with safe_open(path, framework="pt") as file:
            info = _info(path, file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, path.name, error) from error
    wanted = _in_file(module, info)
    check_tensors(path, wanted, tensors)
    _check_base(path, module, info)
    for name, tensor in wanted.items():
        if id(tensor) in trained:
            with torch.no_grad():
                tensor.copy_(tensors[name])
        elif not torch.equal(tensor, tensors[name].to(tensor.dtype)):
            raise ModelError(f"{path.name}: {name} is not trained, and differs from that of the job's own base model")


def _unreadable(path: Path, name: str, error: Exception) -> ModelError:
    with suppress(OSError):
        if problem := problem_of_pointer(head_of(path)):
            return ModelError(f"{name}: {problem}")
    return ModelError(f"{name}: cannot be read as safetensors ({one_line(error)})")


def _empty_model(path: Path, info: ModelInfo, model: ModelSpec | None) -> nn.Module:
    if info.model.entrypoint is not None and model is None:
        raise ModelError(f"{path}: its model comes from the entrypoint {info.model.entrypoint}; use its manifest too")
    return make_model(model or info.model, info.vocabulary_size, 0, values=False)


def _info(path: Path, metadata: Mapping[str, str]) -> ModelInfo:
    described = metadata.get(_METADATA_KEY)
    if described is None:
        raise ModelError(f"{path}: was not written by diloco (no {_METADATA_KEY!r} in its metadata)")
    try:
        plain = parse_json(described)
        info = ModelInfo(
            job=str(plain["job"]),
            model=ModelSpec.model_validate(plain["model"]),
            vocabulary_size=int(plain["vocabularySize"]),
            sequence_length=int(plain["sequenceLength"]),
            layout_digest=str(plain["layoutDigest"]),
            tokens=int(plain["tokens"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, ValidationError) as error:
        raise ModelError(f"{path}: its metadata is not diloco's ({one_line(error)})") from error
    if not 0 <= info.vocabulary_size <= _VOCABULARY_SIZE_LIMIT:
        raise ModelError(
            f"{path}: its vocabulary size is {info.vocabulary_size}, allowed are 0 to {_VOCABULARY_SIZE_LIMIT}"
        )
    if info.sequence_length < 1:
        raise ModelError(f"{path}: its sequence length is {info.sequence_length}, it must be above 0")
    return info


def _fill(path: Path, module: nn.Module, info: ModelInfo, tensors: dict[str, Tensor]) -> None:
    wanted = _in_file(module, info)
    check_tensors(path, wanted, tensors)
    _check_base(path, module, info)
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(tensors[name])


def _check_base(path: Path, module: nn.Module, info: ModelInfo) -> None:
    """The part of a model that its file lacks has to be the same as in training."""
    if info.model.adapter is not None and constants_digest(module) != info.layout_digest.partition(".")[2]:
        raise ModelError(
            f"{path}: its adapters are of another base model than {info.model.name}; use the one of the job"
        )


def _in_file(module: nn.Module, info: ModelInfo) -> Mapping[str, Tensor]:
    return stored_tensors(module) if info.model.adapter is None else trained_parameters(module)


def stored_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and saved buffers, each once. Hooks on the state dict play no part."""
    return {**dict(module.named_parameters()), **saved_buffers(module)}
