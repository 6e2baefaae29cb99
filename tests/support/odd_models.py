"""Models whose parameters have two names, or lie in memory in another order than their elements'."""

import torch
from torch import Tensor, nn

VOCABULARY = 257
WIDTH = 8


class _Layers(nn.Module):
    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = layers
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers.children():
            x = x + torch.tanh(layer(x))
        logits: Tensor = self.output(x)
        return logits


class _Thrice(nn.ModuleList):
    """One layer under three names, all of which run."""

    def children(self) -> list[nn.Module]:  # type: ignore[override]  # children() gives a shared module once
        return [self[0], self[1], self[2]]


def one_layer_three_times() -> nn.Module:
    return _Layers(_Thrice([nn.Linear(WIDTH, WIDTH)] * 3))


class _Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.normal_(torch.empty(4 * WIDTH, WIDTH), std=0.2).t())

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.weight.t()[:WIDTH])


class _Convolution(nn.Conv2d):
    """Over positions and features, as an image of one channel."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, None].expand(-1, 2, -1, -1)).mean(1)


def strided(contiguous: bool = False) -> nn.Module:  # noqa: FBT002  # from a manifest
    layers = nn.ModuleList([_Transposed(), _Convolution(2, 3, 3, padding=1).to(memory_format=torch.channels_last)])
    if contiguous:
        for parameter in layers.parameters():
            parameter.data = parameter.data.contiguous()
    return _Layers(layers)
