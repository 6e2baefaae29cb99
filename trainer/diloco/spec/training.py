"""What is trained: the model, the data, the inner optimizer and how the global model is evaluated."""

from collections.abc import Collection, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from diloco.spec.base import ENTRYPOINT, SpecModel
from diloco.spec.errors import PartError, Problem
from diloco.spec.presets import TEXT_VOCABULARY, gpt_shapes
from diloco.spec.words import listed

BATCH_LIMIT: Final = 65_536

Entrypoint = Annotated[str, Field(pattern=ENTRYPOINT, max_length=253)]
"""``package.module:factory``: a callable that is importable where the learner and the syncer run."""

FilePattern = Annotated[str, Field(min_length=1, max_length=255)]
"""A pattern of file names, as a shell has them."""

NamePattern = Annotated[str, Field(min_length=1, max_length=255)]
"""A pattern of parameter names, as a shell has them for files: ``*`` also matches dots."""

OptimizerType = Literal["AdamW", "Muon"]


def exactly_one(sources: Iterable[str]) -> str:
    """The text of an error about fields of which one must be given."""
    return f"needs exactly one of {listed(sources, 'and')}"


def _check_sources(sources: dict[str, object], arguments: dict[str, Any]) -> None:
    if problem := not_one(sources):
        raise PartError(Problem("", problem))
    _check_arguments(sources["entrypoint"], arguments)


def not_one(sources: dict[str, object]) -> str:
    """The problem with fields of which one must be given; empty if one is."""
    given = [name for name, value in sources.items() if value is not None]
    return "" if len(given) == 1 else f"{exactly_one(sources)}; has {listed(given, 'and') or 'none'}"


def _check_arguments(entrypoint: object, arguments: dict[str, Any]) -> None:
    if arguments and not entrypoint:
        raise PartError(Problem("arguments", "has no use without entrypoint; remove it or use entrypoint"))
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
    """Number of token ids. Default: that of the data (text: 257, the bytes and an end of document)."""
    tie_embeddings: bool = True
    """Share the token embedding with the output layer, as GPT-2 does."""

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes of its parameter tensors, in the order in which the module registers them."""
        vocabulary = self.vocabulary_size or TEXT_VOCABULARY  # only with text may a manifest leave it out
        return gpt_shapes(self.preset, vocabulary, tied=self.tie_embeddings)


class ModelSpec(SpecModel):
    """The model: exactly one of ``builtin`` and ``entrypoint``."""

    builtin: BuiltinModel | None = None
    """The GPT that comes with diloco."""
    entrypoint: Entrypoint | None = None
    """Your own: ``package.module:factory``, called with ``arguments``. It returns a ``torch.nn.Module`` that maps int64
    token ids (batch, sequence) to logits (batch, sequence, vocabulary), with f32 parameters and no buffers that
    training changes."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the entrypoint."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        _check_sources({"builtin": self.builtin, "entrypoint": self.entrypoint}, self.arguments)
        return self


class TextData(SpecModel):
    """Plain files: one token per byte, and one at the end of each document."""

    path: str | None = Field(default=None, min_length=1, max_length=4096)
    """A file or a folder (searched recursively). Default: the standard library of the running Python."""
    include: tuple[FilePattern, ...] = Field(default=("*.txt", "*.md", "*.py", "*.rst", "*.json"), max_length=64)
    """Patterns of file names to read inside a folder. Files are read as they are: JSON lines with keys and quotes."""


class TokenData(SpecModel):
    """A token file made by ``diloco tokens``. It is memory-mapped, so it may be larger than memory."""

    path: str = Field(min_length=1, max_length=4096)
    """The token file."""


class DataSpec(SpecModel):
    """The data: exactly one of ``text``, ``tokens`` and ``entrypoint``; with ``task`` none of them."""

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
    """Fraction of the sequences (or the task's examples), the last ones, held out from training to evaluate the global
    model."""

    @property
    def sources(self) -> dict[str, object]:
        """The fields of which one is the source, with their values."""
        return {"text": self.text, "tokens": self.tokens, "entrypoint": self.entrypoint}

    @model_validator(mode="after")
    def _arguments_fit(self) -> Self:
        _check_arguments("entrypoint" if self.entrypoint is not None else "", self.arguments)
        return self


class TaskSpec(SpecModel):
    """What an inner step computes, by code of your own: examples, their loss and, if you like, their optimizer."""

    entrypoint: Entrypoint
    """``package.module:factory``, called with ``arguments``; it returns a ``diloco.learner.data.Task``. An example
    counts as ``training.sequenceLength`` tokens in the budget and in every clock, whatever its loss counts."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the entrypoint."""

    @model_validator(mode="after")
    def _arguments_fit(self) -> Self:
        _check_arguments("entrypoint", self.arguments)
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
    """Patterns of names of matrices that AdamW trains instead (``router.*``): embeddings other than ``nn.Embedding``,
    output layers other than the last ``nn.Linear``. Each must match a parameter."""

    def excludes(self, name: str) -> bool:
        """Whether a pattern of ``exclude`` matches the name of a parameter."""
        return any(fnmatchcase(name, pattern) for pattern in self.exclude)

    def idle_excludes(self, names: Collection[str]) -> Iterator[tuple[int, str]]:
        """The patterns of ``exclude`` that match none of the parameters, each with its place."""
        for index, pattern in enumerate(self.exclude):
            if not any(fnmatchcase(name, pattern) for name in names):
                yield index, pattern


class InnerOptimizer(SpecModel):
    """The optimizer of every learner, with warm-up by the learner's own steps and decay by the job's progress."""

    type: OptimizerType = "AdamW"
    """AdamW: trains all parameters. Muon: trains the hidden matrices, AdamW the rest; needs torch 2.9. Muon keeps one
    f32 value for each parameter, AdamW two."""
    muon: MuonOptions | None = None
    """Options of type Muon. ``learningRate``, the betas, ``epsilon`` and ``weightDecay`` beside it are AdamW's; the
    rest is for both. Default: Muon's defaults."""
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
        """``muon`` or its defaults where ``type`` is Muon; None where it is AdamW."""
        return (self.muon or MuonOptions()) if self.type == "Muon" else None


class Evaluation(SpecModel):
    """How the global (outer) model is evaluated: by a learner, on held-out data."""

    every_tokens: int | None = Field(default=None, ge=1, le=10**15)
    """Merged tokens between evaluations; the first and the last model are always evaluated. Default: a tenth of
    ``training.tokens``."""
    sequences: int = Field(default=64, ge=1, le=1_000_000)
    """Held-out sequences per evaluation (the same ones every time)."""


class TrainingSpec(SpecModel):
    """Budget, batch, inner optimizer and evaluation."""

    tokens: int = Field(ge=1, le=10**15)
    """Budget (tokens): the job is complete when this many are merged into the global model."""
    sequence_length: int = Field(default=128, ge=1, le=1_048_576)
    """Tokens in a sequence: at least 2, or with ``task`` 1."""
    batch_size: int = Field(default=16, ge=1, le=BATCH_LIMIT)
    """Sequences in an inner step; a pool may set its own."""
    optimizer: InnerOptimizer = InnerOptimizer()
    """The inner optimizer."""
    precision: Literal["F32", "BF16"] = "F32"
    """Arithmetic of the forward and backward pass. BF16: autocast; parameters and optimizer stay f32."""
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    """Seed of the initial model, of each learner's order of data, and of torch's random numbers (dropout). Other
    sources of randomness must be seeded by your code."""
    evaluation: Evaluation = Evaluation()
    """Evaluation of the global model."""
    checkpoint_every_steps: int = Field(default=50, ge=1, le=10**9)
    """Inner steps between a learner's own checkpoints (inner optimizer, data position)."""
