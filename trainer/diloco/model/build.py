"""Builds the model that the manifest describes: the same one, to the bit, in every process that has the same torch.

A model is built on the CPU; the caller that trains it moves it to its device.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from diloco.core.fragments import Layout
from diloco.model.constants import constants_digest
from diloco.model.entrypoint import EntrypointError, call_entrypoint, load_entrypoint
from diloco.model.errors import ModelError
from diloco.model.fragments import layout_of, write_fragment
from diloco.model.gpt import GPT, GPTConfig
from diloco.model.huggingface.pretrained import huggingface_model
from diloco.model.probe import check_model, put_in_training
from diloco.model.randomness import seeded
from diloco.runtime.files import sha256_bytes
from diloco.spec import JobSpec
from diloco.spec.presets import PRESETS, TEXT_VOCABULARY
from diloco.spec.training import ModelSpec


def build_model(spec: JobSpec, *, values: bool = True) -> nn.Module:
    """The job's initial model, on the CPU, in training mode, seeded by ``training.seed``. No forward pass is made.

    ``values`` false: for a caller that overwrites every trained parameter; where no other value depends on them they
    are zeros, as drawing them takes longer than all else.

    Parts that an entrypoint has put into evaluation mode stay in it, unless the whole model is.

    torch's global generator is used and restored. An entrypoint that draws from another source must seed it itself;
    this matters only for frozen parameters, because learners receive the others from the syncer before they train.

    Raises:
        ModelError: the model cannot be built or trained; the text names the field.
    """
    vocabulary = vocabulary_of_builtin(spec)
    return make_model(spec.model, vocabulary, spec.training.seed, values=values)


def make_model(model: ModelSpec, vocabulary_size: int, seed: int, *, values: bool = True) -> nn.Module:
    """``build_model`` from the parts it needs. ``vocabulary_size`` is for the built-in model only.

    Raises:
        ModelError: the model cannot be built or trained.
    """
    # Code of the user's own may compute with them; a folder's weights are not drawn.
    drawn = model.builtin is not None or (model.huggingface is not None and not model.huggingface.weights)
    with seeded(seed), nullcontext() if values or not drawn else _WithoutInitialValues():
        module = _make(model, vocabulary_size)
    if drawn and not values:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
    kind = "builtin" if model.builtin else "entrypoint" if model.entrypoint else "huggingface"
    check_model(module, f"model.{kind}")
    put_in_training(module)
    return module


def vocabulary_of_builtin(spec: JobSpec) -> int:
    """Vocabulary size of a job's built-in model: the manifest's, or that of text; 0 if it has another model.

    Raises:
        ModelError: the manifest does not give it, and the data is not text.
    """
    builtin = spec.model.builtin
    if builtin is None:
        return 0
    if builtin.vocabulary_size is not None:
        return builtin.vocabulary_size
    if spec.data.text is not None:
        return TEXT_VOCABULARY
    raise ModelError("model.builtin.vocabularySize: is missing; give it unless the data is text")


def blank_model(spec: JobSpec) -> nn.Module:
    """The job's model, for callers that need sizes but no values: it is built on torch's meta device.

    That takes no memory and draws no random numbers. An entrypoint that needs values is called once more and builds the
    whole model. Weights of a Hugging Face folder are not read.

    Raises:
        ModelError: the model cannot be built.
    """
    vocabulary = vocabulary_of_builtin(spec)
    try:
        if spec.model.entrypoint is not None:  # its module's own tensors are to have values
            load_entrypoint(spec.model.entrypoint, "model.entrypoint")
        with seeded(spec.training.seed), torch.device("meta"), _WithoutInitialValues():
            return _make(spec.model, vocabulary)
    except (EntrypointError, ModelError):
        if spec.model.entrypoint is None:
            raise
        return build_model(spec)


def layout_of_job(spec: JobSpec) -> Layout:
    """The layout of the job's ``blank_model``.

    Only if that has values, or no constants, does the layout include the digest of constants.

    Raises:
        ModelError: the model cannot be built, or has nothing to train.
        LayoutError: more fragments than parameter tensors.
    """
    return layout_of(blank_model(spec), spec.sync.fragments)


def model_identity(spec: JobSpec) -> str:
    """SHA-256 over all that the job says of its model and how it is cut, hexadecimal: it decides the layout.

    Raises:
        ModelError: the built-in model's vocabulary is not known.
    """
    plain = [spec.model.model_dump(mode="json"), vocabulary_of_builtin(spec), spec.training.seed, spec.sync.fragments]
    return sha256_bytes(json.dumps(plain, sort_keys=True).encode())


class _WithoutInitialValues(TorchFunctionMode):
    """Leaves parameters as they are made: torch.nn.init does nothing.

    On the meta device they have no values anyway, but the first random one loads torch's compiler, which takes as long
    as loading torch itself.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if getattr(func, "__module__", None) == nn.init.__name__:
            return given["tensor"] if "tensor" in given else args[0]
        return func(*args, **given)


def model_from_fragments(spec: JobSpec, layout: Layout, fragments: Sequence[Tensor]) -> nn.Module:
    """The job's model with the parameters of ``fragments``, flat f32 buffers in the layout's order.

    Raises:
        ModelError: the model cannot be built, or its frozen parameters or buffers differ from the layout's.
        ValueError: a buffer is of another size or type than its fragment.
    """
    module = build_model(spec, values=False)
    if layout.constants is not None and constants_digest(module) != layout.constants:
        raise ModelError("model: has other frozen parameters or buffers than in training; use the same base model")
    for fragment, values in zip(layout.fragments, fragments, strict=True):
        write_fragment(module, fragment, values)
    return module


def _make(model: ModelSpec, vocabulary_size: int) -> nn.Module:
    if model.builtin is not None:
        return GPT(GPTConfig(PRESETS[model.builtin.preset], vocabulary_size, model.builtin.tie_embeddings))
    if model.huggingface is not None:
        return huggingface_model(model.huggingface, model.adapter)
    assert model.entrypoint is not None, "ModelSpec holds exactly one of the three"
    field = "model.entrypoint"
    try:
        made = call_entrypoint(model.entrypoint, model.arguments, field)
    except EntrypointError as error:
        raise ModelError(str(error)) from error
    if not isinstance(made, nn.Module):
        raise ModelError(f"{field}: {model.entrypoint} returned a {type(made).__name__}, not a torch.nn.Module")
    return made
