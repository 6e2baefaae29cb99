"""The bandwidth that training needs for a utilization of its accelerators: a step as a graph of its layers.

A step of L layers has L forward nodes, 2 L - 1 backward nodes (gradients of activations, but for the first layer, and
of parameters) and one exchange for each layer that is due. Compute nodes take equally long and run one after the other,
exchanges too, each as soon as its layer's gradient is there. A layer's forward node waits for the layer's exchange: of
the step before, or of an earlier one with overlap.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

GRID_GBITS: Final = tuple(10 ** (-1 + 4 * place / 49) for place in range(50))
"""The values that the published table chooses from."""
BITS: Final = 13.4
"""Bits that a parameter costs at a width of 16: fitted to the 30 cells of data-parallel training and DiLoCo."""
INTERVAL: Final = 100
FRAGMENT_LAYERS: Final = 3
_PERIODS: Final = 4


@dataclass(frozen=True, slots=True)
class Model:
    """What is trained."""

    parameters: float
    layers: int
    step_seconds: float


@dataclass(frozen=True, slots=True)
class Exchange:
    """What is exchanged, and when."""

    bits: float
    """Of a parameter on the wire, each way."""
    interval: int = 1
    """H: steps between two exchanges of a layer."""
    fragments: int = 1
    """P: layers p, p + P, p + 2 P, ... are exchanged together, fragments at even distances."""
    overlap_steps: int = 0
    """Whole steps that an exchange may take beyond its own without stopping any."""


MODELS: Final = {"1B": Model(1e9, 24, 0.1), "10B": Model(1e10, 48, 0.8), "100B": Model(1e11, 108, 4.9)}
"""Of the published table. Layers are inferred."""


def published_exchange(method: str, model: Model, bits: float = BITS) -> Exchange:
    """The exchange of a row of the published table; ``bits`` of a parameter at a width of 16."""
    fragments = model.layers // FRAGMENT_LAYERS
    return {
        "data-parallel": Exchange(bits),
        "DiLoCo": Exchange(bits, INTERVAL),
        "streaming": Exchange(bits, INTERVAL, fragments),
        "streaming, overlap": Exchange(bits, INTERVAL, fragments, 1),
        "streaming, overlap, FP4": Exchange(bits / 4, INTERVAL, fragments, 1),
    }[method]


def utilization(model: Model, exchange: Exchange, gbits: float) -> float:
    """Share of time in which the accelerators compute, over some intervals and until the last exchange is over."""
    node_seconds = model.step_seconds / (3 * model.layers - 1)
    exchange_seconds = model.parameters / model.layers * exchange.bits / (gbits * 1e9)
    due = _due(model.layers, exchange)
    awaited: dict[int, dict[int, float]] = {}  # by the step that waits: layer -> when its exchange is over
    now = wire_free = 0.0
    steps = exchange.interval * _PERIODS
    for step in range(steps):
        layers, over = due.get(step % exchange.interval, ()), awaited.pop(step, {})
        now = _forward(now, node_seconds, model.layers, over)
        sent = awaited.setdefault(step + 1 + exchange.overlap_steps, {})
        backward = now
        for layer in layers:  # the last layer first, as backward
            # Two nodes a layer, but one of the first.
            done = backward + node_seconds * (2 * (model.layers - layer) - (layer == 0))
            wire_free = sent[layer] = max(wire_free, done) + exchange_seconds
        now += node_seconds * (2 * model.layers - 1)
    end = max([now, *(when for over in awaited.values() for when in over.values())])
    return steps * model.step_seconds / end


def _forward(now: float, node_seconds: float, layers: int, over: Mapping[int, float]) -> float:
    """When the forward nodes of a step are done."""
    before = 0
    for layer, when in sorted(over.items()):
        now = max(now + node_seconds * (layer - before), when)
        before = layer
    return now + node_seconds * (layers - before)


def _due(layers: int, exchange: Exchange) -> Mapping[int, Iterable[int]]:
    """Layers that are exchanged, from the last to the first, by step of the interval."""
    due: dict[int, list[int]] = {}
    for fragment in range(exchange.fragments):
        step = fragment * exchange.interval // exchange.fragments
        due.setdefault(step, []).extend(range(fragment, layers, exchange.fragments))
    return {step: sorted(found, reverse=True) for step, found in due.items()}


def grid_gbits(model: Model, exchange: Exchange, wanted: float) -> float:
    """The least rate of the published grid that reaches a utilization; the grid's last one if none does."""
    low, high = 0, len(GRID_GBITS) - 1
    while low < high:
        middle = (low + high) // 2
        if utilization(model, exchange, GRID_GBITS[middle]) >= wanted:
            high = middle
        else:
            low = middle + 1
    return GRID_GBITS[low]


def needed_gbits(model: Model, exchange: Exchange, wanted: float) -> float:
    """The rate at which a utilization is reached, to a thousandth."""
    low, high = 1e-3, 1e6
    while high > low * 1.0005:
        middle = (low * high) ** 0.5
        if utilization(model, exchange, middle) >= wanted:
            high = middle
        else:
            low = middle
    return high


def grid_steps(printed: float, ours: float) -> int:
    """Steps of the grid between a rate as printed, which is rounded, and one of ours."""

    def place(gbits: float) -> int:
        return min(range(len(GRID_GBITS)), key=lambda number: abs(GRID_GBITS[number] / gbits - 1))

    return place(ours) - place(printed)
