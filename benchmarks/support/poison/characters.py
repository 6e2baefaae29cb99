"""The training of `benchmarks/poison.py`: M small networks side by side that predict the next character of source text.

Their parameters are stacked, shape (M, ...), so that one pass trains all learners.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor

from diloco.core.fragments import Fragment, Layout, TensorSpec, partition
from diloco.learner.data.text import standard_library

CONTEXT, EMBEDDING, WIDTH, DEPTH, CHARACTERS = 10, 16, 64, 3, 96
"""Characters read, size of their embedding, width and number of residual blocks, characters told apart."""
FRAGMENTS = 12
TEXT_BYTES, HELD_OUT = 4 << 20, 0.1
EVALUATED = 8192
"""Held-out characters that a loss is the mean of."""


def shapes() -> dict[str, tuple[int, ...]]:
    """Of one network's tensors."""
    found: dict[str, tuple[int, ...]] = {"embedding": (CHARACTERS, EMBEDDING), "in": (CONTEXT * EMBEDDING, WIDTH)}
    for block in range(DEPTH):
        found |= {f"up{block}": (WIDTH, WIDTH), f"bias{block}": (WIDTH,), f"down{block}": (WIDTH, WIDTH)}
    return found | {"out": (WIDTH, CHARACTERS), "out_bias": (CHARACTERS,)}


def layout() -> Layout:
    """The network, cut as a job's model is."""
    return partition([TensorSpec(name, shape, name == "embedding") for name, shape in shapes().items()], FRAGMENTS)


def initial(seed: int) -> dict[str, Tensor]:
    """One network."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in shapes().items():
        zero = len(shape) == 1 or name.startswith("down")
        scale = 0.0 if zero else (0.3 if name == "embedding" else shape[0] ** -0.5)
        made[name] = torch.randn(shape, generator=generator) * scale
    return made


@dataclass
class Text:
    """Characters to train on and to hold out."""

    train: Tensor
    held: Tensor

    @classmethod
    def open(cls) -> "Text":
        """The standard library's sources, rare characters as one."""
        read = bytearray()
        for document in standard_library():
            if len(read) < TEXT_BYTES:
                read += document.path.read_bytes()
        raw = torch.frombuffer(read, dtype=torch.uint8).long()
        common = torch.bincount(raw, minlength=256).argsort(descending=True, stable=True)[: CHARACTERS - 1]
        number = torch.full((256,), CHARACTERS - 1)
        number[common] = torch.arange(CHARACTERS - 1)
        data = number[raw]
        cut = int(len(data) * (1 - HELD_OUT))
        return cls(data[:cut], data[cut:])

    def batch(self, generator: torch.Generator, count: int, *, held: bool = False) -> Tensor:
        """Rows of a context and the character after it, shape (count, CONTEXT + 1)."""
        source = self.held if held else self.train
        starts = torch.randint(0, len(source) - CONTEXT, (count,), generator=generator)
        return source[starts.unsqueeze(1) + torch.arange(CONTEXT + 1)]


def losses(networks: dict[str, Tensor], rows: Tensor) -> Tensor:
    """Of each row, in nats, shape (M, rows); ``rows``: shape (M, rows, CONTEXT + 1)."""
    members, count, _ = rows.shape
    read = rows[..., :-1].reshape(members, -1, 1).expand(-1, -1, EMBEDDING)
    hidden = torch.gather(networks["embedding"], 1, read).reshape(members, count, -1) @ networks["in"]
    for block in range(DEPTH):
        inner = F.layer_norm(hidden, (WIDTH,)) @ networks[f"up{block}"] + networks[f"bias{block}"].unsqueeze(1)
        hidden = hidden + F.gelu(inner) @ networks[f"down{block}"]
    logits = F.layer_norm(hidden, (WIDTH,)) @ networks["out"] + networks["out_bias"].unsqueeze(1)
    return F.cross_entropy(logits.flatten(0, 1), rows[..., -1].flatten(), reduction="none").view(members, count)


def part_of(networks: dict[str, Tensor], fragment: Fragment, member: int) -> Tensor:
    """A network's parameters of a fragment, flat."""
    return torch.cat([networks[slot.tensor.name][member].detach().flatten() for slot in fragment.slots])


def put(networks: dict[str, Tensor], fragment: Fragment, values: Tensor, member: int) -> None:
    """Overwrite a network's parameters of a fragment."""
    for slot in fragment.slots:
        piece = values[slot.offset : slot.offset + slot.tensor.numel]
        networks[slot.tensor.name].data[member].copy_(piece.view(slot.tensor.shape))


@dataclass
class AdamW:
    """AdamW of M learners that need not make the same steps."""

    networks: dict[str, Tensor]
    members: int
    learning_rate: float = 3e-3
    warmup_steps: int = 20
    steps: list[int] = field(init=False)
    """By learner, since its optimizer began."""
    _moments: dict[str, tuple[Tensor, Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        self.steps = [0] * self.members
        self._moments = {name: (torch.zeros_like(one), torch.zeros_like(one)) for name, one in self.networks.items()}

    def restart(self, member: int) -> None:
        """A learner's optimizer begins anew, and warms up again."""
        self.steps[member] = 0
        for first, second in self._moments.values():
            first[member].zero_()
            second[member].zero_()

    def step(self, acting: list[int], rate: float) -> None:
        """Of the learners ``acting``, with gradients clipped at norm 1; ``rate``: share of the learning rate."""
        acts = torch.zeros(self.members)
        acts[acting] = 1.0
        for member in acting:
            self.steps[member] += 1
        count = torch.tensor(self.steps).clamp(min=1)
        lr = acts * self.learning_rate * rate * (count / self.warmup_steps).clamp(max=1.0)
        grads = {name: one.grad.flatten(1) for name, one in self.networks.items() if one.grad is not None}
        norm = torch.stack([grad.norm(dim=1) for grad in grads.values()]).norm(dim=0)
        clip, lr = (acts / norm.clamp(min=1.0)).unsqueeze(1), lr.unsqueeze(1)
        keeps = 1 - 0.1 * acts.unsqueeze(1), 1 - 0.01 * acts.unsqueeze(1)
        unbias = (1 - 0.9**count).unsqueeze(1), (1 - 0.99**count).unsqueeze(1)
        for name, grad in grads.items():
            mine = grad * clip
            first, second = (one.flatten(1) for one in self._moments[name])
            first.mul_(keeps[0]).add_(mine, alpha=0.1)
            second.mul_(keeps[1]).addcmul_(mine, mine, value=0.01)
            moved = first / unbias[0] / (second / unbias[1]).sqrt_().add_(1e-8)
            values = self.networks[name].data.flatten(1)
            values.mul_(1 - 0.1 * lr).sub_(moved.mul_(lr))
