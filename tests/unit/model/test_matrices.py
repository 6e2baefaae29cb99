from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from diloco.model.build import build_model
from diloco.model.fragments import hidden_matrices
from tests.support.entrypoints import tiny_model
from tests.support.small_job import small_job

WORDS = 11
WIDTH = 4


class Custom(nn.Module):
    """Parts of its own between an embedding and the logits, in the order in which a test gives them."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, tokens: Tensor) -> Tensor:
        x = tokens
        for part in self.parts:
            x = part(x)
        return x


class Kernel(nn.Module):
    """A convolution over positions, with a bare table of positions: three dimensions, and two."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(WIDTH, WIDTH, 1)
        self.positions = nn.Parameter(torch.zeros(8, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.convolution(x.transpose(1, 2)).transpose(1, 2)
        return mixed + self.positions[: x.shape[1]]


class Experts(nn.Module):
    """A stack of matrices, their biases, and a vector with two dimensions more than it needs."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.zeros(3, WIDTH, WIDTH))
        self.up_bias = nn.Parameter(torch.zeros(3, WIDTH))
        self.first = nn.Parameter(torch.zeros(1, 1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = (torch.einsum("bsi,eoi->bseo", x, self.up) + self.up_bias).sum(2)
        return mixed + self.first


class HeadFirst(nn.Module):
    """Its output layer is registered before the others, and used last."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, WORDS)
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.middle = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.middle(self.embedding(tokens)))
        return logits


def of_blocks(module: nn.Module) -> tuple[str, ...]:
    return tuple(name for name, tensor in module.named_parameters() if name.startswith("blocks.") and tensor.dim() == 2)


@pytest.mark.parametrize("tied", [True, False])
def test_of_the_built_in_model_every_matrix_in_a_block_is_hidden(tied: bool) -> None:
    module = build_model(small_job(model={"builtin": {"preset": "pico", "tieEmbeddings": tied}}))
    assert hidden_matrices(module) == of_blocks(module)
    assert len(of_blocks(module)) == 3 * 6


def test_biases_frozen_parameters_and_tied_embeddings_are_not_hidden() -> None:
    assert hidden_matrices(tiny_model()) == ("middle.weight",)


def test_kernels_norms_and_bare_tables_are_not_hidden() -> None:
    module = Custom(nn.Embedding(WORDS, WIDTH), Kernel(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS))
    assert hidden_matrices(module) == ()


def test_a_stack_of_matrices_is_hidden_and_a_token_of_one_row_is_not() -> None:
    module = Custom(nn.Embedding(WORDS, WIDTH), Experts(), nn.Linear(WIDTH, WORDS))
    assert hidden_matrices(module) == ("parts.1.up",)


@pytest.mark.parametrize(
    ("make", "hidden"),
    [
        (HeadFirst, ("middle.weight",)),
        # As wide as the vocabulary: the last such layer is the output.
        (
            lambda: Custom(nn.Embedding(WORDS, WORDS), nn.Linear(WORDS, WORDS), nn.Linear(WORDS, WORDS)),
            ("parts.1.weight",),
        ),
        # Frozen parameters belong to no optimizer.
        (lambda: Custom(nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS).requires_grad_(requires_grad=False)), ()),
    ],
)
def test_the_output_layer_is_the_last_with_an_output_a_token_id(
    make: Callable[[], nn.Module], hidden: tuple[str, ...]
) -> None:
    assert hidden_matrices(make()) == hidden


def test_looking_leaves_the_model_in_training_and_the_random_state_alone() -> None:
    module = tiny_model().train()
    before = torch.get_rng_state()
    hidden_matrices(module)
    assert module.training
    assert torch.equal(torch.get_rng_state(), before)
