from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from diloco.model import logits as module
from diloco.model.logits import NOT_COUNTED, cross_entropy

SHAPE = (3, 7, 50)


def operands(dtype: torch.dtype, *, masked: bool = False) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(SHAPE, generator=generator)).to(dtype).requires_grad_()
    targets = torch.randint(SHAPE[2], SHAPE[:2], generator=generator)
    if masked:
        targets[1, 2:5] = NOT_COUNTED
    return logits, targets


@pytest.mark.parametrize("elements", [1, 8 * 50, 10**6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_it_is_torchs_own_however_it_is_cut(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, elements: int, *, masked: bool
) -> None:
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", elements)
    (logits, targets), (wanted, _) = operands(dtype, masked=masked), operands(dtype)
    loss = cross_entropy(logits, targets, masked=masked)
    reference = functional.cross_entropy(wanted.float().flatten(0, 1), targets.flatten(), reduction="sum")
    (loss / 21).backward()  # type: ignore[no-untyped-call]  # torch's own
    (reference / 21).backward()  # type: ignore[no-untyped-call]  # torch's own
    torch.testing.assert_close(loss, reference, rtol=1e-6, atol=0)
    torch.testing.assert_close(logits.grad, wanted.grad, rtol=0 if dtype == torch.float32 else 2**-7, atol=1e-8)
    with torch.no_grad():
        assert cross_entropy(logits, targets, masked=masked) == loss


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """The most elements of an f32 tensor that an operation returns."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        sizes = [one.numel() for one in tree_leaves(made) if isinstance(one, Tensor) and one.dtype == torch.float32]
        self.elements = max(self.elements, *sizes, 0)
        return made


def test_no_whole_f32_copy_of_bf16_logits_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", 4 * 50)
    logits, targets = operands(torch.bfloat16, masked=True)
    with Largest() as seen:  # type: ignore[no-untyped-call]  # torch's own
        cross_entropy(logits, targets, masked=True).backward()  # type: ignore[no-untyped-call]  # torch's own
    assert logits.grad is not None
    assert seen.elements == 4 * 50
