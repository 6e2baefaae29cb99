"""Builds the model of a folder: new, or with the folder's weights, and with adapters on top."""

import warnings
from collections import Counter
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from diloco.model.entrypoint import one_line
from diloco.model.errors import ModelError
from diloco.model.huggingface.config import model_from_config
from diloco.runtime.file_kind import head_of, problem_of_pointer
from diloco.runtime.files import UnusableFileError, read_json
from diloco.spec.training import Adapter, HuggingFaceModel

_FIELD = "model.huggingface.path"
_WHOLE = "model.safetensors"
_ENDING = ".safetensors"
_WRAPPERS: Final = ("_orig_mod.", "module.")
"""Begin all names in a file that was saved from a compiled or a wrapped (DDP) model."""
_COMPUTED: Final = (
    *(".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias", ".position_ids"),
    *(".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached"),
)
"""End the names of buffers that older transformers saved, and that a model computes."""


def huggingface_model(model: HuggingFaceModel, adapter: Adapter | None) -> nn.Module:
    """The manifest's model, f32, on torch's current device. On the meta device the folder's weights are not read.

    Raises:
        ModelError: a package is missing, the folder or its weights cannot be used, or a target of ``adapter`` matches
            no layer; one line that names the field.
    """
    folder = Path(model.path)
    if model.weights and torch.get_default_device().type != "meta":
        made = _with_weights(folder)
    else:
        made = model_from_config(folder, _FIELD)
    return made if adapter is None else _with_adapter(made, adapter)


def _with_weights(folder: Path) -> nn.Module:
    """Tensors are read here rather than by transformers, which also reads pickled files if `config.json` names them.

    What it does do is to map names of a file to those of the model, such as of experts that it keeps in one tensor.
    """
    with torch.device("meta"):
        blank = model_from_config(folder, _FIELD)
    tensors = _tensors(folder)
    try:
        made, found = type(blank).from_pretrained(  # type: ignore[attr-defined]  # a class of transformers
            None,
            config=blank.config,
            state_dict=tensors,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # found has them
            output_loading_info=True,
        )
    except Exception as error:  # the library may raise anything: show it to the user in one line
        raise ModelError(f"{_FIELD}: the weights in {folder} cannot be used ({one_line(error)})") from error
    for name in sorted(found["missing_keys"]):
        raise ModelError(f"{_FIELD}: {folder} has no tensor {name}, which the model of config.json has")
    for name in sorted(name for name in found["unexpected_keys"] if not name.endswith(_COMPUTED)):
        raise ModelError(f"{_FIELD}: {folder} has a tensor {name}, which the model of config.json has not")
    for name, *_ in sorted(found["mismatched_keys"]):
        raise ModelError(f"{_FIELD}: in {folder}, {name} has another shape than in the model of config.json")
    assert isinstance(made, nn.Module)
    tied = {name for name, _ in blank.named_parameters()}
    if own := sorted(name for name, _ in made.named_parameters() if name not in tied):
        raise ModelError(
            f"{_FIELD}: {folder} has a tensor {own[0]} of its own, which config.json ties to another one; set "
            "tie_word_embeddings to false there, or remove the tensor"
        )
    return made.train()  # transformers hands it over in evaluation mode


def _tensors(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name in _files(folder):
        try:
            if problem := problem_of_pointer(head_of(folder / name)):
                raise ModelError(f"{_FIELD}: {folder / name} {problem}")
            with safe_open(folder / name, framework="pt") as file:
                tensors |= {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  # not a mapping
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{_FIELD}: {folder / name} cannot be read as safetensors ({one_line(error)})") from error
    while wrapper := next((one for one in _WRAPPERS if tensors and all(key.startswith(one) for key in tensors)), ""):
        tensors = {key.removeprefix(wrapper): tensor for key, tensor in tensors.items()}
    return tensors


def _files(folder: Path) -> list[str]:
    index = folder / f"{_WHOLE}.index.json"
    if (folder / _WHOLE).is_file():
        return [_WHOLE]
    if not index.is_file():
        raise ModelError(
            f"{_FIELD}: {folder} has no {_WHOLE}, whole or in parts (pickled files, *.bin, are not read); "
            "use a folder that save_pretrained wrote, or weights: false"
        )
    try:
        names = sorted({str(name) for name in read_json(index)["weight_map"].values()})
    except (UnusableFileError, AttributeError, KeyError, TypeError) as error:
        raise ModelError(f"{_FIELD}: {index} is no index of weights ({one_line(error)})") from error
    for name in names:
        if name != Path(name).name or not name.endswith(_ENDING):
            raise ModelError(f"{_FIELD}: {index} names {name!r}; use files of the same folder that end in {_ENDING}")
    return names


def _with_adapter(base: nn.Module, adapter: Adapter) -> nn.Module:
    try:
        import peft  # noqa: PLC0415  # an optional package
    except ImportError as error:
        raise ModelError("model.adapter: needs the package peft; run pip install '.[hf]' in a clone") from error
    names = [name for name, part in base.named_modules() if isinstance(getattr(part, "weight", None), nn.Parameter)]
    users = Counter(id(base.get_submodule(name).weight) for name in names)
    for target in adapter.targets:
        matching = [name for name in names if f".{name}".endswith(f".{target}")]
        if not matching:
            raise ModelError(
                f"model.adapter.targets: {target} is the name of no layer; use names such as {names[len(names) // 2]}"
            )
        if any(users[id(base.get_submodule(name).weight)] > 1 for name in matching):
            raise ModelError(
                f"model.adapter.targets: {target} shares its weight with another layer (tie_word_embeddings), so that "
                "its adapter cannot be merged into it; leave it out"
            )
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=list(adapter.targets),
    )
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # peft's, about transformers
            made = peft.get_peft_model(base, config)
    except Exception as error:  # the library may raise anything: show it to the user in one line
        raise ModelError(f"model.adapter: cannot be put on this model ({one_line(error)})") from error
    assert isinstance(made, nn.Module)
    return made
