"""Language models of every kind that users bring, by the name of their factory.

Each is as small as its kind allows. ``KINDS`` are trained, ``REFUSED`` are refused with the words that say why.
"""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tests.support import models_with_buffers as buffered

VOCABULARY: Final = 257
WIDTH: Final = 8


class Chain(nn.Module):
    """Embedding, parts in a row, output."""

    def __init__(self, *parts: nn.Module, bias: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.parts = nn.ModuleList(parts)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=bias)

    def forward(self, tokens: Tensor) -> Any:
        """Logits."""
        x = self.embedding(tokens)
        for part in self.parts:
            x = x + torch.tanh(part(x))
        return self.output(x)


def linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(requires_grad=False)


def plain() -> Chain:
    return Chain(linear(), nn.LayerNorm(WIDTH))


def tied() -> nn.Module:
    model = Chain(linear())
    model.output.weight = model.embedding.weight
    return model


# One module or parameter under several names ------------------------------------------------------------------------


def listed_three_times() -> nn.Module:
    return Chain(*[linear()] * 3)


class _Alias(Chain):
    def __init__(self) -> None:
        super().__init__(linear())
        self.again = self.parts[0]


def module_with_an_alias() -> nn.Module:
    return _Alias()


def parameter_in_two_modules() -> nn.Module:
    first, second = linear(), linear()
    second.weight = first.weight
    return Chain(first, second)


def shared_container() -> nn.Module:
    part = nn.Sequential(linear(), nn.GELU(), linear())
    return Chain(part, nn.Sequential(part, linear()))


def tied_and_aliased() -> nn.Module:
    model = _Alias()
    model.output.weight = model.embedding.weight
    return model


# How parameters lie in memory -----------------------------------------------------------------------------------------


class _Strided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH).mul_(0.3).t())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def transposed() -> nn.Module:
    return Chain(_Strided())


class _Causal(nn.Module):
    """A kernel over a position and the one before."""

    def __init__(self, kernel: nn.Module) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.kernel(nn.functional.pad(x.transpose(1, 2), (1, 0)))
        return made.transpose(1, 2)


def kernels() -> nn.Module:
    return Chain(_Causal(nn.Conv1d(WIDTH, WIDTH, 2)), _Causal(nn.Conv1d(WIDTH, WIDTH, 2, groups=WIDTH)), linear())


class _Image(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Conv2d(2, 2, (1, 3), padding=(0, 1)).to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        sequences, length, _ = x.shape
        rows = x.view(sequences, length, 2, WIDTH // 2).transpose(1, 2).reshape(sequences, 2, 1, -1)
        made: Tensor = self.kernel(rows).view(sequences, 2, length, WIDTH // 2)
        return made.transpose(1, 2).flatten(2)


def channels_last() -> nn.Module:
    return Chain(_Image(), linear())


class _Scalar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.shift = nn.Parameter(torch.zeros(1, 1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


def scalars() -> nn.Module:
    return Chain(_Scalar(), linear())


class _Experts(nn.Module):
    """Stacked experts, of which some get no gradient in a step."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.Parameter(torch.randn(4, WIDTH, WIDTH) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(self.router(x), -1)
        return torch.einsum("bse,eio,bsi->bso", weights, self.experts, x)


def stacked_experts() -> nn.Module:
    return Chain(_Experts())


class _Sometimes(nn.Module):
    """Uses one of its parts in some batches only, so that their optimizer counts differ."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = linear(), linear()

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.always(x)
        if float(x.detach().sum()) * 1e3 % 2 < 1:
            made = made + self.sometimes(x)
        return made


def used_in_some_batches() -> nn.Module:
    return Chain(_Sometimes())


class _Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = linear(), linear()

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.used(x)
        return made


def never_used() -> nn.Module:
    return Chain(_Unused())


# Frozen parts -------------------------------------------------------------------------------------------------------


def frozen_layer() -> nn.Module:
    return Chain(frozen(linear()), linear())


def frozen_bias() -> nn.Module:
    model = plain()
    model.get_parameter("parts.0.bias").requires_grad = False
    return model


# State dicts that are not the model -----------------------------------------------------------------------------------


def _drop(_module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    state.pop(f"{prefix}parts.0.weight")


def state_dict_that_drops() -> nn.Module:
    model = plain()
    model.register_state_dict_post_hook(_drop)  # type: ignore[no-untyped-call]
    return model


def _renamed(_module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    state[f"{prefix}weight_of_the_part"] = state.pop(f"{prefix}parts.0.weight")


def state_dict_that_renames() -> nn.Module:
    model = plain()
    model.register_state_dict_post_hook(_renamed)  # type: ignore[no-untyped-call]
    return model


class _Zeros(Chain):
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Of other values."""
        return {name: torch.zeros_like(value) for name, value in super().state_dict(*args, **kwargs).items()}


def state_dict_of_zeros() -> nn.Module:
    return _Zeros(linear())


# Wrappers -----------------------------------------------------------------------------------------------------------


class _Recomputed(Chain):
    def forward(self, tokens: Tensor) -> Any:
        """Logits, with activations computed again in the backward pass."""
        return checkpoint(super().forward, tokens, use_reentrant=False)


def recomputed() -> nn.Module:
    return _Recomputed(linear(), nn.Dropout(0.3))


def dropout() -> nn.Module:
    return Chain(nn.Dropout(0.5), linear())


def weight_norm() -> nn.Module:
    return Chain(parametrizations.weight_norm(linear()), linear())


def orthogonal() -> nn.Module:
    return Chain(parametrizations.orthogonal(linear()), linear())


def forward_hooks() -> nn.Module:
    model = plain()
    model.parts[0].register_forward_hook(lambda _module, _inputs, output: output * 1.5)
    model.parts[0].register_full_backward_hook(lambda *_: None)
    return model


def gradient_hooks() -> nn.Module:
    model = plain()
    model.get_parameter("output.weight").register_hook(lambda gradient: gradient * 0.5)  # type: ignore[no-untyped-call]
    return model


def recurrent() -> nn.Module:
    class _First(nn.GRU):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            made: Tensor = super().forward(x)[0]
            return made

    return Chain(_First(WIDTH, WIDTH, batch_first=True))


def looking_ahead() -> nn.Module:
    return Chain(nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True))


class _Masked(nn.TransformerEncoderLayer):
    def forward(self, src: Tensor, *_: Any, **__: Any) -> Tensor:
        """With a causal mask."""
        mask = nn.Transformer.generate_square_subsequent_mask(src.shape[1])
        return super().forward(src, mask, is_causal=True)


def attention() -> nn.Module:
    return Chain(_Masked(WIDTH, 2, 16, batch_first=True))


class _Evaluating(Chain):
    """Keeps one part in evaluation mode, as fine-tuning with fixed statistics does."""

    def __init__(self) -> None:
        super().__init__(nn.Dropout(0.9), linear())
        self.parts[0].eval()


def part_kept_in_evaluation() -> nn.Module:
    return _Evaluating()


def batch_norm_kept_in_evaluation() -> nn.Module:
    class _Norm(nn.BatchNorm1d):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            return super().forward(input.transpose(1, 2)).transpose(1, 2)

    return Chain(_Norm(WIDTH).eval(), linear())


class _Output(Chain):
    def forward(self, tokens: Tensor) -> Any:
        """An object with logits."""
        return SimpleNamespace(logits=super().forward(tokens), loss=None)


class _Deaf(Chain):
    """Its values go through a model that gets no positions, and whose new output layer gives zeros."""

    def __init__(self) -> None:
        super().__init__(_Masked(WIDTH, 2, 16, batch_first=True))
        nn.init.zeros_(self.output.weight)

    def forward(self, tokens: Tensor, position_ids: Tensor | None = None) -> Any:
        """Logits, whatever the positions."""
        del position_ids
        return super().forward(tokens)


def deaf_to_positions() -> nn.Module:
    return _Deaf()


def object_with_logits() -> nn.Module:
    return _Output(linear())


def function_transform() -> nn.Module:
    """Looks its parameters up anew in each call."""

    class _Looked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = linear()

        def forward(self, x: Tensor) -> Tensor:
            values: dict[str, Tensor] = dict(self.inner.named_parameters())
            made: Tensor = torch.func.functional_call(self.inner, values, (x,))
            return made

    return Chain(_Looked())


# What Hugging Face's package builds ---------------------------------------------------------------------------------

_SMALL: Final = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": VOCABULARY}
_EXPERTS: Final = {"num_key_value_heads": 1, "intermediate_size": 16}


def hugging_face(kind: str, **changes: Any) -> nn.Module:
    """A causal language model of a kind that transformers knows."""
    import transformers  # noqa: PLC0415  # loads for seconds

    sizes = (_SMALL | changes) if kind not in ("gpt2", "mamba") else changes | {"vocab_size": VOCABULARY}
    config = transformers.AutoConfig.for_model(kind, **sizes, use_cache=False)
    made: nn.Module = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return made


HUGGING_FACE: Final[Mapping[str, Mapping[str, Any]]] = {
    "llama": _EXPERTS,
    "qwen3": _EXPERTS | {"head_dim": 4, "tie_word_embeddings": True},
    "gemma3_text": _EXPERTS | {"head_dim": 4},
    "gpt2": {"n_embd": 8, "n_layer": 1, "n_head": 2},
    "mixtral": _EXPERTS | {"num_local_experts": 2},
    "qwen3_moe": _EXPERTS | {"head_dim": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8},
    "mamba": {"hidden_size": 8, "num_hidden_layers": 1, "state_size": 4},
    "gpt_neox": {"intermediate_size": 16},
}

# Refused -------------------------------------------------------------------------------------------------------------


def sparse_gradients() -> nn.Module:
    model = plain()
    model.embedding = nn.Embedding(VOCABULARY, WIDTH, sparse=True)
    return model


def lazy() -> nn.Module:
    return Chain(nn.LazyLinear(WIDTH))


class _Views(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        whole = torch.randn(2 * WIDTH, WIDTH)
        self.upper, self.lower = nn.Parameter(whole[:WIDTH]), nn.Parameter(whole[: WIDTH + 2][2:])

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.upper + x @ self.lower


def two_parameters_on_one_storage() -> nn.Module:
    return Chain(_Views())


class _Expanded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, WIDTH).expand(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def stride_zero() -> nn.Module:
    return Chain(_Expanded())


class _Teacher(nn.Module):
    """Follows its trained part by a moving average, which is a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = linear(), frozen(linear())

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.teacher.get_parameter("weight").lerp_(self.student.get_parameter("weight"), 0.1)
        made: Tensor = self.student(x) + self.teacher(x)
        return made


def teacher() -> nn.Module:
    return Chain(_Teacher())


class _Attribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.seen = linear(), 0.0

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.seen += 0.1
        made: Tensor = self.inner(x) * (1 + self.seen)
        return made


def state_in_an_attribute() -> nn.Module:
    return Chain(_Attribute())


class _Late(nn.Module):
    """A buffer that begins to change after some steps."""

    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = linear(), 0
        self.register_buffer("average", torch.zeros(WIDTH), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.inner(x)
        if torch.is_grad_enabled():
            self.calls += 1
            if self.calls > 2:
                self.average.lerp_(made.detach().mean((0, 1)), 0.1)
        return made + self.average


def buffer_that_changes_late() -> nn.Module:
    return Chain(_Late())


class _List(Chain):
    def forward(self, tokens: Tensor) -> Any:
        """Not logits."""
        return [super().forward(tokens)]


def list_of_logits() -> nn.Module:
    return _List(linear())


def half() -> nn.Module:
    return plain().bfloat16()


def nothing_trained() -> nn.Module:
    return frozen(plain())


KINDS: Final[tuple[Callable[[], nn.Module], ...]] = (
    plain,
    tied,
    listed_three_times,
    module_with_an_alias,
    parameter_in_two_modules,
    shared_container,
    tied_and_aliased,
    transposed,
    kernels,
    channels_last,
    scalars,
    stacked_experts,
    used_in_some_batches,
    never_used,
    frozen_layer,
    frozen_bias,
    state_dict_that_drops,
    state_dict_that_renames,
    state_dict_of_zeros,
    recomputed,
    dropout,
    weight_norm,
    orthogonal,
    forward_hooks,
    gradient_hooks,
    recurrent,
    attention,
    part_kept_in_evaluation,
    batch_norm_kept_in_evaluation,
    object_with_logits,
    function_transform,
    buffered.float_mask,
    buffered.whole_numbers,
    buffered.bool_mask,
    buffered.bf16_table,
    buffered.drawn_table,
    buffered.not_saved,
    buffered.growing_cache,
    buffered.frozen_embedding,
    buffered.lora,
)

REFUSED: Final[Mapping[Callable[[], nn.Module], str]] = {
    sparse_gradients: "sparse",
    lazy: "parts.0",
    two_parameters_on_one_storage: "parts.0.upper",
    stride_zero: "parts.0.weight",
    teacher: "parts.0.teacher.weight",
    state_in_an_attribute: "neither a parameter nor a buffer",
    buffer_that_changes_late: "parts.0.average",
    list_of_logits: "list",
    half: "bfloat16",
    nothing_trained: "no parameter that requires a gradient",
    buffered.batch_norm: "running",
    buffered.spectral_norm: "middle",
    buffered.average: "average",
    buffered.counter: "steps",
    buffered.extra_state: "extra state",
}
