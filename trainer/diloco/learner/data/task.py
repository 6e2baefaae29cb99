"""What an inner step computes, as training uses it: examples by number, and the loss of a batch of them.

The job's own is ``diloco.learner.data.own_task``; without one it is a language model over the job's tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from diloco.learner.data.digest import digest_of
from diloco.learner.data.source import DataError, TokenSource, check_ids, read_unchecked
from diloco.model import ModelError
from diloco.model.logits import NOT_COUNTED, cross_entropy, logits_of
from diloco.model.probe import check_documents, looks_ahead, vocabulary_size_of

_PROBE_TOKENS: Final = 8


@runtime_checkable
class Task(Protocol):
    """A task of the user's own. It must be the same in every process of a job, because positions refer to examples.

    It may also have ``optimizer(parameters)``, which gets the trained parameters by name and returns a
    ``torch.optim.Optimizer``, and ``metrics(module, batch)``, which returns further sums and counts by name.
    """

    def __len__(self) -> int:
        """Number of examples; the last ``data.holdoutFraction`` of them are held out."""
        ...

    def batch(self, numbers: NDArray[np.int64]) -> Mapping[str, Tensor]:
        """The examples of these numbers, on the CPU."""
        ...

    def loss(self, module: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor | float]:
        """Sum of the losses in a batch, a scalar that needs a gradient, and the number of losses in it."""
        ...


class Total(NamedTuple):
    """A sum over a batch, and over how much."""

    summed: Tensor | float
    """A number or a scalar tensor."""
    counted: Tensor | float


class JobTask(ABC):
    """A job's task as its learners use it."""

    field: str
    """The manifest field that names the examples, for messages."""
    examples: str
    """What an example is called, in the plural."""
    unit: str
    """What the mean loss is measured in."""
    reads_anywhere = False
    """Whether ``batch`` may be called in any thread, and draws no random numbers, which are a step's own."""
    usual_count = 1
    """How many losses an example has, about."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of examples."""

    @abstractmethod
    def batch(self, numbers: NDArray[np.int64]) -> Mapping[str, Tensor]:
        """These examples, on the CPU.

        Raises:
            DataError: they cannot be read.
        """

    @abstractmethod
    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> Total:
        """The losses of a batch that is on the module's device; the sum is a tensor."""

    def digest(self) -> str:
        """Of all examples, the same wherever they are the same; empty: there is none.

        Raises:
            DataError: they cannot be read.
        """
        return ""

    def metrics(self, module: nn.Module, batch: Mapping[str, Tensor]) -> Mapping[str, Total]:  # noqa: ARG002  # none here
        """What else an evaluation shows, by name."""
        return {}

    def optimizer(self, parameters: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer | None:  # noqa: ARG002  # as above
        """Its own optimizer of the trained parameters; None: that of the manifest."""
        return None

    def check(self, module: nn.Module) -> None:  # noqa: B027  # most tasks need none
        """Check that the module and the examples go together, before anything else is done with them.

        Raises:
            ModelError, DataError: they do not.
        """

    def mistake(self, text: str) -> ValueError:
        """The error to raise about its loss."""
        return ModelError(f"model: {text}")


def on(device: torch.device, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``batch`` on ``device``, which copies from pinned memory while the caller goes on."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


class LanguageModel(JobTask):
    """Next-token prediction. Example i is the tokens from i * ``length`` on; its last target begins example i + 1."""

    examples = "sequences"
    unit = "nats per token"
    reads_anywhere = True

    def __init__(self, source: TokenSource, length: int, field: str, end_of_document: int | None = None) -> None:
        """``end_of_document``: the id after which another document begins, unseen. None: a sequence is one."""
        self.field = field
        self._source, self._length, self._end = source, length, end_of_document
        self.usual_count = length

    def __len__(self) -> int:
        return max(0, len(self._source) - 1) // self._length

    def batch(self, numbers: NDArray[np.int64]) -> Mapping[str, Tensor]:
        """Token ids, int64, shape (sequences, length): ``inputs``, and ``targets``, each the token after its input.

        With documents also ``positions`` in them; what follows an end is no target.
        """
        tokens = np.empty((len(numbers), self._length + 1), dtype=np.int64)
        starts = [int(number) * self._length for number in numbers]
        for row, start in zip(tokens, starts, strict=True):
            read_unchecked(self._source, start, row)
        if tokens.min() < 0 or tokens.max() >= self._source.vocabulary_size:
            for row, start in zip(tokens, starts, strict=True):
                check_ids(self._source, start, row)
        batch = {"inputs": torch.from_numpy(tokens[:, :-1].copy()), "targets": torch.from_numpy(tokens[:, 1:].copy())}
        if self._end is not None:
            ends = tokens[:, :-1] == self._end
            batch["positions"] = torch.from_numpy(_positions(ends))
            ends[0, 0] &= not ends.all()  # in a batch of ends alone, one target counts: a mean needs one
            batch["targets"][torch.from_numpy(ends)] = NOT_COUNTED
        return batch

    def digest(self) -> str:
        """Of the tokens."""
        return digest_of(self._source)

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> Total:
        """Cross-entropy of each target."""
        targets, masked = batch["targets"], self._end is not None
        summed = cross_entropy(logits_of(module, batch["inputs"], batch.get("positions")), targets, masked=masked)
        return Total(summed, (targets != NOT_COUNTED).sum() if masked else targets.numel())

    def check(self, module: nn.Module) -> None:
        """Check that the module gives logits of what comes next, for every token id and position, and what it masks."""
        length = min(self._length, _PROBE_TOKENS)
        most = getattr(getattr(module, "config", None), "max_position_embeddings", None)
        if isinstance(most, int) and 0 < most < self._length:
            raise ModelError(
                f"training.sequenceLength: {self._length} is above the model's {most} positions "
                "(max_position_embeddings in config.json); use at most as many"
            )
        known = vocabulary_size_of(module, length)
        if self._source.vocabulary_size > known:
            raise DataError(
                f"{self.field}: has a vocabulary of {self._source.vocabulary_size}, but the model's is {known}; "
                "the model's (model.builtin.vocabularySize) must not be smaller"
            )
        if looks_ahead(module, length):
            raise ModelError(
                "model: sees the tokens that it is to predict, so its loss would mean nothing; use a causal model (for "
                "BERT and its like, is_decoder: true in config.json), or spec.task"
            )
        if self._end is not None:
            check_documents(module, length)


def _positions(ends: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Each token's position in its document, or in the part of it that its row has; ``ends`` are documents' last."""
    places = np.arange(ends.shape[1])
    begins = np.zeros(ends.shape, dtype=np.int64)
    begins[:, 1:] = ends[:, :-1] * places[1:]
    return places - np.maximum.accumulate(begins, axis=1)
