"""A model of many parameters and little work, as a job's `model.entrypoint`: most of it is copied and merged."""

import torch
from torch import Tensor, nn


class Large(nn.Module):
    """One layer, and blocks of which a step uses one element each, so that every parameter has a gradient."""

    def __init__(self, blocks: int, numel: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 8)
        self.blocks = nn.ParameterList(0.01 * torch.randn(numel) for _ in range(blocks))

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids (batch, sequence) to logits (batch, sequence, vocabulary)."""
        logits: Tensor = self.embedding(tokens) @ self.embedding.weight.T
        return logits * (1 + torch.stack([block[0] for block in self.blocks]).sum())


def make(blocks: int, numel: int, vocabulary: int) -> nn.Module:
    """``blocks`` parameters of ``numel`` elements."""
    return Large(blocks, numel, vocabulary)
