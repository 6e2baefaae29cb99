"""What is trained: the model, the data, the inner optimizer and how the global model is evaluated."""

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from diloco.spec.base import ENTRYPOINT, SpecModel
from diloco.spec.errors import PartError, Problem
from diloco.spec.words import listed

BATCH_LIMIT: Final = 65_536

Entrypoint = Annotated[str, Field(pattern=ENTRYPOINT, max_length=253)]
"""``package.module:factory``: a callable that is importable where the learner and the syncer run."""

FilePattern = Annotated[str, Field(min_length=1, max_length=255)]
"""A pattern of file names, as a shell has them."""

NamePattern = Annotated[str, Field(min_length=1, max_length=255)]
"""A pattern of parameter names, as a shell has them for files: ``*`` also matches dots."""

OptimizerKind = Literal["AdamW", "Muon"]


def _exactly_one(kinds: dict[str, object], arguments: dict[str, Any]) -> None:
    given = [name for name, value in kinds.items() if value is not None]
    if len(given) != 1:
        has = f"has {listed(given, 'and')}" if given else f"has none of {listed(kinds, 'and')}"
        raise PartError(Problem("", f"{has}; use exactly one of {listed(kinds, 'and')}"))
    if arguments and given != ["entrypoint"]:
        raise PartError(Problem("arguments", f"has no use with {given[0]}; remove it or use entrypoint"))
    if nulls := list(_nulls(arguments, "arguments")):
        # `kubectl apply` removes nulls before an API server sees them.
        raise PartError(*(Problem(path, "null cannot be passed on; leave it out") for path in nulls))


def _nulls(value: object, path: str) -> Iterator[str]:
    """The paths of nulls in ``value``, which is itself at ``path``."""
    if value is None:
        yield path
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _nulls(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _nulls(inner, f"{path}[{index}]")


class BuiltinModel(SpecModel):
    """The small GPT that comes with diloco."""

    preset: Literal["pico", "nano", "micro", "mini", "gpt2"] = "nano"
    """Size: pico 0.1M, nano 0.8M, micro 5M, mini 25M, gpt2 124M parameters (byte vocabulary; gpt2 with its own)."""
    vocabulary_size: int | None = Field(default=None, ge=2, le=1_000_000)
    """Number of token ids. Default: that of the data (257 for text: the bytes and an end of document)."""
    tie_embeddings: bool = True
    """Share the token embedding with the output layer, as GPT-2 does."""


class ModelSpec(SpecModel):
    """The model: exactly one of ``builtin`` and ``entrypoint``."""

    builtin: BuiltinModel | None = None
    """The GPT that comes with diloco."""
    entrypoint: Entrypoint | None = None
    """Your own: ``package.module:factory``, called with ``arguments``; it returns a ``torch.nn.Module`` whose
    ``forward(tokens)`` maps int64 token ids of shape (batch, sequence) to logits (batch, sequence, vocabulary).
    Trained parameters are f32. A buffer that training changes (running statistics) is refused."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the entrypoint."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        _exactly_one({"builtin": self.builtin, "entrypoint": self.entrypoint}, self.arguments)
        return self


class TextData(SpecModel):
    """Plain files: one token per byte, and one at the end of each document."""

    path: str | None = Field(default=None, min_length=1, max_length=4096)
    """A file or a folder (searched recursively). Default: the standard library sources of the running Python."""
    include: tuple[FilePattern, ...] = Field(default=("*.txt", "*.md", "*.py", "*.rst", "*.json"), max_length=64)
    """Patterns of file names to read inside a folder. Files are read as they are: for JSON lines, including keys and
    quotes."""


class TokenData(SpecModel):
    """A token file made by ``diloco tokens``. It is memory-mapped, so it may be larger than memory."""

    path: str = Field(min_length=1, max_length=4096)
    """The token file."""


class DataSpec(SpecModel):
    """The data: exactly one of ``text``, ``tokens`` and ``entrypoint``."""

    text: TextData | None = None
    """Plain files, read as bytes."""
    tokens: TokenData | None = None
    """A memory-mapped token file."""
    entrypoint: Entrypoint | None = None
    """Your own: ``package.module:factory``, called with ``arguments``; it returns a
    ``diloco.learner.data.TokenSource``."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the entrypoint."""
    holdout_fraction: float = Field(default=0.05, gt=0, le=0.5)
    """Fraction of the tokens held out from training to evaluate the global model."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        _exactly_one({"text": self.text, "tokens": self.tokens, "entrypoint": self.entrypoint}, self.arguments)
        return self


class MuonOptions(SpecModel):
    """Muon for the hidden matrices: torch's own, with Nesterov momentum and updates scaled to the size of AdamW's."""

    learning_rate: float = Field(default=0.016, gt=0, le=10)
    """Peak learning rate of the hidden matrices (ours: best for nano; for pico 0.032, four times AdamW's best)."""
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the momentum; 0.95 is torch's."""
    weight_decay: float = Field(default=0.1, ge=0, le=10)
    """Decoupled weight decay of the hidden matrices; 0.1 is torch's."""
    exclude: tuple[NamePattern, ...] = Field(default=(), max_length=64)
    """Matrices that AdamW trains instead, as patterns of parameter names (``router.*``). Needed if your own model
    has an embedding that is not an ``nn.Embedding``, or an output layer that is not the last ``nn.Linear`` with one
    output for each token id. A pattern that matches no parameter is an error."""


class InnerOptimizer(SpecModel):
    """The optimizer of every learner, with warm-up by the learner's own steps and decay by the job's progress."""

    kind: OptimizerKind = "AdamW"
    """AdamW: trains all parameters. Muon: trains the hidden matrices, and AdamW trains embeddings, the output layer and
    whatever does not have two dimensions; it needs torch 2.9 or later. Muon keeps one f32 value for each of its
    parameters in memory and in checkpoints, AdamW two."""
    muon: MuonOptions | None = None
    """Options of Muon, for kind Muon only. ``learningRate``, the betas, ``epsilon`` and ``weightDecay`` next to it are
    AdamW's; ``warmupSteps``, ``decay``, ``finalFraction`` and ``clipNorm`` are for both. Default: Muon's defaults."""
    learning_rate: float = Field(default=2e-3, gt=0, le=10)
    """Peak learning rate of AdamW."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of AdamW's first moment."""
    beta2: float = Field(default=0.99, ge=0, lt=1)
    """Decay of AdamW's second moment."""
    epsilon: float = Field(default=1e-8, gt=0, le=1)
    """Added to the root of the second moment."""
    weight_decay: float = Field(default=0.1, ge=0, le=10)
    """Decoupled weight decay of AdamW, for tensors of two and more dimensions only."""
    warmup_steps: int = Field(default=20, ge=0, le=10**9)
    """Inner steps of warm-up of the learning rates, counted by each learner's optimizer."""
    decay: Literal["Cosine", "Constant"] = "Cosine"
    """How the learning rates decay with the job's progress (merged tokens over ``training.tokens``)."""
    final_fraction: float = Field(default=0.1, ge=0, le=1)
    """Final learning rates, as a fraction of their peaks."""
    clip_norm: float = Field(default=1.0, ge=0)
    """Largest global norm of gradients; larger ones are scaled down. 0: no limit."""

    @property
    def muon_options(self) -> MuonOptions | None:
        """``muon`` or its defaults where ``kind`` is Muon; None where it is AdamW."""
        return (self.muon or MuonOptions()) if self.kind == "Muon" else None


class Evaluation(SpecModel):
    """How the global (outer) model is evaluated: by a learner, on held-out data."""

    every_tokens: int | None = Field(default=None, ge=1, le=10**15)
    """Merged tokens between evaluations. Default: a tenth of ``training.tokens``. The first and the final model are
    always evaluated."""
    sequences: int = Field(default=64, ge=1, le=1_000_000)
    """Held-out sequences per evaluation (the same ones every time)."""


class TrainingSpec(SpecModel):
    """Budget, batch, inner optimizer and evaluation."""

    tokens: int = Field(ge=1, le=10**15)
    """Budget (tokens): the job is complete when this many are merged into the global model."""
    sequence_length: int = Field(default=128, ge=2, le=1_048_576)
    """Tokens in a sequence."""
    batch_size: int = Field(default=16, ge=1, le=BATCH_LIMIT)
    """Sequences in an inner step; a pool may set its own."""
    optimizer: InnerOptimizer = InnerOptimizer()
    """The inner optimizer."""
    precision: Literal["F32", "BF16"] = "F32"
    """Arithmetic of the forward and backward pass. BF16: autocast; parameters and optimizer stay f32."""
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    """Seed of the initial model, of each learner's order of data, and of torch's random numbers in an inner step
    (dropout). Code that uses another source of randomness must seed it itself."""
    evaluation: Evaluation = Evaluation()
    """Evaluation of the global model."""
    checkpoint_every_steps: int = Field(default=50, ge=1, le=10**9)
    """Inner steps between a learner's own checkpoints (inner optimizer, data position)."""
