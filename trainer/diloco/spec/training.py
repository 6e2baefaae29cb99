"""What is trained: the model, the data, the inner optimizer and how the global model is evaluated."""

from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from diloco.spec.base import ENTRYPOINT, SpecModel
from diloco.spec.errors import PartError, Problem
from diloco.spec.presets import TEXT_VOCABULARY, gpt_shapes
from diloco.spec.tracking import Tracker
from diloco.spec.words import not_one

BATCH_LIMIT: Final = 65_536

Entrypoint = Annotated[str, Field(pattern=ENTRYPOINT, max_length=253)]
"""``package.module:factory``: a callable that is importable where the learner and the syncer run."""

FilePattern = Annotated[str, Field(min_length=1, max_length=255)]
"""A pattern of file names, as a shell has them."""

NamePattern = Annotated[str, Field(min_length=1, max_length=255)]
"""A pattern of parameter names, as a shell has them for files: ``*`` also matches dots."""

NEEDS_WEIGHTS: Final = "needs huggingface with weights: true; add that or remove it"

OptimizerType = Literal["AdamW", "Muon"]
Precision = Literal["Auto", "F32", "BF16"]
ActivationCheckpointing = Literal["None", "Selective", "Full"]


def _check_sources(sources: dict[str, object], arguments: dict[str, Any]) -> None:
    if problem := not_one(sources):
        raise PartError(Problem("", problem))
    _check_arguments(sources.get("entrypoint"), arguments)


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


class HuggingFaceModel(SpecModel):
    """A causal language model of the transformers package, from a folder that ``save_pretrained`` wrote."""

    path: str = Field(min_length=1, max_length=4096)
    """The folder, with ``config.json``; every process of the job needs it."""
    weights: bool = False
    """true: begin with the folder's weights (safetensors). false: new parameters."""


class Adapter(SpecModel):
    """Low-rank adapters (LoRA): they alone are trained and synchronized."""

    rank: int = Field(default=16, ge=1, le=4096)
    """Rank of each update."""
    alpha: int = Field(default=32, ge=1, le=65_536)
    """Updates are scaled by ``alpha`` over ``rank``."""
    dropout: float = Field(default=0, ge=0, lt=1)
    """Dropout before each adapter."""
    targets: tuple[Annotated[str, Field(min_length=1, max_length=255)], ...] = Field(min_length=1, max_length=64)
    """Names of the layers that get one, or the ends of their names (``q_proj``)."""


class ModelSpec(SpecModel):
    """The model: exactly one of ``builtin``, ``huggingface`` and ``entrypoint``."""

    builtin: BuiltinModel | None = None
    """The GPT that comes with diloco."""
    huggingface: HuggingFaceModel | None = None
    """A folder of Hugging Face's format."""
    adapter: Adapter | None = None
    """Train adapters of ``huggingface`` with ``weights``. Default: train all of the model."""
    entrypoint: Entrypoint | None = None
    """Your own: ``package.module:factory``, called with ``arguments``. It returns a ``torch.nn.Module`` that maps int64
    token ids (batch, sequence) to logits (batch, sequence, vocabulary), with f32 parameters and no buffers that
    training changes."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the entrypoint."""
    parallelize: Entrypoint | None = None
    """Your own parallelism for learners of several processes, called in each of them with the model and the
    ``DeviceMesh`` of all. It makes trained parameters ``DTensor`` and returns the mesh whose ranks share out a batch.
    Default: ``parallelism`` of the pool."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        sources: dict[str, object] = {
            "builtin": self.builtin,
            "huggingface": self.huggingface,
            "entrypoint": self.entrypoint,
        }
        _check_sources(sources, self.arguments)
        if self.adapter is not None and not (self.huggingface is not None and self.huggingface.weights):
            raise PartError(Problem("adapter", NEEDS_WEIGHTS))
        return self

    @property
    def name(self) -> str:
        """The preset, folder or entrypoint."""
        if self.builtin is not None:
            return self.builtin.preset
        return self.huggingface.path if self.huggingface is not None else self.entrypoint or ""


class TextData(SpecModel):
    """Plain files: one token per byte, and one at the end of each document."""

    path: str | None = Field(default=None, min_length=1, max_length=4096)
    """A file or a folder (searched recursively). Default: the standard library of the running Python."""
    include: tuple[FilePattern, ...] = Field(default=("*.txt", "*.md", "*.py", "*.rst"), max_length=64)
    """Patterns of file names to read inside a folder. Files are read as they are."""


class TokenData(SpecModel):
    """A token file made by ``diloco tokens``. It is memory-mapped, so it may be larger than memory."""

    path: str = Field(min_length=1, max_length=4096)
    """The token file."""


class DocumentsData(SpecModel):
    """Documents, tokenized once into a token file in a cache.

    By the names of the files, in any case: Parquet (``.parquet``), JSON lines (``.jsonl``, ``.ndjson``, ``.json``), a
    folder that ``datasets`` saved (``.arrow``), or plain text in UTF-8, one document a file (any other). JSON lines and
    text may be compressed (gzip, zstd, bzip2, xz).
    """

    path: str = Field(min_length=1, max_length=4096)
    """A file, a pattern such as ``/corpus/*.parquet``, a folder (searched recursively), or files of one folder of a
    bucket: ``s3://bucket/corpus/*.parquet``."""
    column: str | None = Field(default=None, min_length=1, max_length=255)
    """Column of a table, or key of a JSON object, that holds the text; no file may be plain text then. Default: text,
    in files that have columns."""
    bad_rows: float = Field(default=0.001, ge=0, le=1)
    """Largest fraction of the rows that may have no usable text: null, no such key, broken JSON or not UTF-8. They are
    left out, counted and named in the log (ours). 0: none may."""
    tokenizer: str | None = Field(default=None, min_length=1, max_length=4096)
    """A folder with ``tokenizer.json``, such as a model's. Default: one token per byte."""


class Sources(SpecModel):
    """Kinds of data, of which one is given."""

    text: TextData | None = None
    """Plain files, read as bytes."""
    tokens: TokenData | None = None
    """A memory-mapped token file."""
    documents: DocumentsData | None = None
    """Documents in Parquet, JSON lines, Arrow or plain text."""


class MixturePart(Sources):
    """A part of a mixture: exactly one of ``text``, ``tokens`` and ``documents``."""

    weight: float = Field(ge=0.001, le=1000)
    """Its share of the tokens, relative to the other parts' weights."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        _check_sources({"text": self.text, "tokens": self.tokens, "documents": self.documents}, {})
        return self


class DataSpec(Sources):
    """One of ``text``, ``tokens``, ``documents``, ``mixture`` and ``entrypoint``; none with ``task`` or ``loop``."""

    mixture: tuple[MixturePart, ...] | None = Field(default=None, min_length=1, max_length=32)
    """Several sources, each with its share of the tokens. An epoch takes the largest part, relative to its weight,
    once, and the others as often as their shares need."""
    entrypoint: Entrypoint | None = None
    """Your own: ``package.module:factory``, called with ``arguments``; it returns a
    ``diloco.learner.data.TokenSource``."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the entrypoint."""
    document_mask: bool = False
    """true: tokens attend to their own document only, positions begin at 0 in each, and the loss leaves out the token
    after an end of document. Model and data have to support it. false: a sequence is one text."""
    holdout_fraction: float = Field(default=0.05, gt=0, le=0.5)
    """Fraction of the sequences (or the task's examples), the last ones, held out from training to evaluate the global
    model."""

    @property
    def sources(self) -> dict[str, object]:
        """The fields of which one is the source, with their values."""
        names = ("text", "tokens", "documents", "mixture", "entrypoint")
        return {name: getattr(self, name) for name in names}

    @model_validator(mode="after")
    def _arguments_fit(self) -> Self:
        _check_arguments("entrypoint" if self.entrypoint is not None else "", self.arguments)
        return self


class EntrypointSpec(SpecModel):
    """Code of your own."""

    entrypoint: Entrypoint
    """``package.module:factory``, called with ``arguments``."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the entrypoint."""

    @model_validator(mode="after")
    def _arguments_fit(self) -> Self:
        _check_arguments("entrypoint", self.arguments)
        return self


class TaskSpec(EntrypointSpec):
    """What an inner step computes, by code of your own: examples, their loss and, if you like, their optimizer."""

    entrypoint: Entrypoint
    """``package.module:factory``, called with ``arguments``; it returns a ``diloco.learner.data.Task``. An example
    counts as ``training.sequenceLength`` tokens in the budget and in every clock, whatever its loss counts."""


class LoopSpec(EntrypointSpec):
    """The whole training loop, by code of your own: data, loss, optimizer and evaluation."""

    entrypoint: Entrypoint
    """``package.module:function``, called with the model and ``arguments`` in every process of every learner. It trains
    inside of ``with diloco.session(...)`` until that ends."""


class MuonOptions(SpecModel):
    """Muon for the hidden matrices, with Nesterov momentum and updates scaled to the size of AdamW's."""

    learning_rate: float = Field(default=0.016, gt=0, le=10)
    """Peak learning rate of the hidden matrices (ours: best for nano; for pico 0.032, four times AdamW's best)."""
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the momentum; 0.95 is torch's."""
    weight_decay: float = Field(default=0.1, ge=0, le=10)
    """Decoupled weight decay of the hidden matrices; 0.1 is torch's."""


class ParameterGroup(SpecModel):
    """Parameters that are trained unlike the rest."""

    match: tuple[NamePattern, ...] = Field(min_length=1, max_length=64)
    """Patterns of parameter names (``*.norm.*``). Each must match a parameter."""
    optimizer: OptimizerType | None = None
    """With type Muon: what trains them, such as AdamW for embeddings other than ``nn.Embedding``, or Muon for bare
    matrices. Default: Muon for hidden matrices, AdamW for the rest."""
    learning_rate_scale: float = Field(default=1, gt=0, le=1000)
    """Factor of their optimizer's learning rate."""
    weight_decay: float | None = Field(default=None, ge=0, le=10)
    """Decoupled weight decay, whatever their dimensions. Default: their optimizer's."""


class InnerOptimizer(SpecModel):
    """The optimizer of every learner, with warm-up by the learner's own steps and decay by the job's progress."""

    type: OptimizerType = "AdamW"
    """AdamW: trains all parameters. Muon: trains the hidden matrices, AdamW the rest. Muon keeps one f32 value for each
    parameter, AdamW two."""
    muon: MuonOptions | None = None
    """Options of type Muon. ``learningRate``, the betas, ``epsilon`` and ``weightDecay`` beside it are AdamW's; the
    rest is for both. Default: Muon's defaults."""
    groups: tuple[ParameterGroup, ...] = Field(default=(), max_length=32)
    """Parameters that are trained unlike the rest; the first group that matches a name has it."""
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
    decay: Literal["Cosine", "Linear", "WSD", "Constant"] = "Cosine"
    """How the learning rates decay with the job's progress (merged tokens over ``training.tokens``). WSD: constant
    until the last part of it (``decayFraction``), then by 1 less the root (arXiv 2405.18392)."""
    decay_fraction: float = Field(default=0.2, gt=0, le=1)
    """WSD: the last part of the progress, in which the learning rates decay."""
    final_fraction: float = Field(default=0.1, ge=0, le=1)
    """Final learning rates, as a fraction of their peaks."""
    clip_norm: float = Field(default=1.0, ge=0)
    """Largest global norm of gradients; larger ones are scaled down. 0: no limit."""

    @property
    def muon_options(self) -> MuonOptions | None:
        """``muon`` or its defaults where ``type`` is Muon; None where it is AdamW."""
        return (self.muon or MuonOptions()) if self.type == "Muon" else None

    def group_of(self, name: str) -> ParameterGroup | None:
        """The first group that matches the name of a parameter."""
        return next((one for one in self.groups if any(fnmatchcase(name, pattern) for pattern in one.match)), None)

    def idle_patterns(self, names: Collection[str]) -> Iterator[tuple[str, str]]:
        """The patterns of ``groups`` that match none of the parameters, each with its path."""
        for i, group in enumerate(self.groups):
            for j, pattern in enumerate(group.match):
                if not any(fnmatchcase(name, pattern) for name in names):
                    yield f"training.optimizer.groups[{i}].match[{j}]", pattern


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
    """Budget (tokens): the job is complete when this many are merged into the global model. A complete job goes on if
    it is raised above what is merged."""
    sequence_length: int = Field(default=128, ge=1, le=1_048_576)
    """Tokens in a sequence: at least 2, or with ``task`` or ``loop`` 1."""
    batch_size: int = Field(default=16, ge=1, le=BATCH_LIMIT)
    """Sequences in an inner step; a pool may set its own."""
    micro_batch_size: int | None = Field(default=None, ge=1, le=BATCH_LIMIT)
    """Most sequences in a process's forward and backward pass: its share of a batch is made in parts of so many, whose
    gradients add up. Default: all of it."""
    optimizer: InnerOptimizer = InnerOptimizer()
    """The inner optimizer."""
    precision: Precision = "Auto"
    """Arithmetic of the forward and backward pass. BF16: autocast; parameters and optimizer stay f32. F32: on NVIDIA
    devices matrices are multiplied in TF32. Auto: BF16 on a CUDA device that computes in it, else F32."""
    compile: bool = False
    """true: torch compiles the model's blocks before the first step, which takes a minute or more and makes the steps
    of a GPU faster. On a CPU it needs a C++ compiler."""
    activation_checkpointing: ActivationCheckpointing = "None"
    """What the model's blocks compute again in the backward pass in place of keeping it in memory. Selective: all but
    the results of attention and of every second matrix product. Full: all but what goes into a block. It needs a model
    with blocks, in an ``nn.ModuleList`` or ``nn.Sequential``."""
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    """Seed of the initial model, of the order of the data, and of torch's random numbers (dropout). Other
    sources of randomness must be seeded by your code."""
    evaluation: Evaluation = Evaluation()
    """Evaluation of the global model."""
    checkpoint_every_steps: int = Field(default=50, ge=1, le=10**9)
    """Inner steps between a learner's own checkpoints (inner optimizer, data position)."""
    tracking: tuple[Tracker, ...] = Field(default=(), max_length=3)
    """Trackers that the syncer writes the curves to while the job runs, at most one of each kind."""
