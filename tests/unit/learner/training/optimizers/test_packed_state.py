"""Values of Python come back from tensors as they were."""

import random
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from diloco.learner.training.optimizers.packed_state import UnstorableError, packed, unpacked
from diloco.model.tensor_file import opened, write_tensor_file


def through_a_file(value: Any, folder: Path) -> Any:
    path = folder / "state.safetensors"
    digest = write_tensor_file(path, packed(value))
    with opened(path) as file:
        return unpacked(file.read(dict.fromkeys(file.tensors, ()), digest))


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2.5, None, True, "text", float("nan"), float("-inf"), 1 << 200]},
        {1: "one", (2, 3): {}, None: [], "tensor": "0", "": 0},
        (1, (2, [(), {3}]), b"\x00bytes", b""),
        OrderedDict([("z", 1), ("a", OrderedDict())]),
        Counter({30: 1, 60: 2}),
        torch.Size([2, 3]),
        [torch.eye(3), torch.ones(2, 3).T, torch.tensor(7), torch.ones(2, dtype=torch.bfloat16), torch.empty(0)],
        [np.arange(5, dtype=np.uint32), np.float64(2.5), np.int32(3), np.zeros((2, 0)), np.arange(6.0)[::-2]],
        random.Random(3).getstate(),
        np.random.RandomState(3).get_state(),
        np.random.default_rng(3).bit_generator.state,
        torch.get_rng_state(),
        "\ud800 half of a pair",
    ],
)
def test_a_value_comes_back_as_it_was(tmp_path: Path, value: Any) -> None:
    back = through_a_file(value, tmp_path)
    assert same(back, value)


def test_an_optimizers_state_dict_comes_back_as_it_was(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert same(through_a_file(optimizer.state_dict(), tmp_path), optimizer.state_dict())


def endless() -> list[Any]:
    one: list[Any] = []
    one.append(one)
    return one


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (object(), "a object"),
        ({"a": [0, nn.Linear(1, 1)]}, r"a Linear at a\.1"),
        ({"a": lambda: 0}, r"a function at a"),
        ({object(): 1}, r"a object at <object"),
        (torch.ones(2).to_sparse(), "a Tensor"),
        ([torch.empty(2, device="meta")], "a Tensor at 0"),
        ([torch.ones(2, dtype=torch.complex128)], "a Tensor at 0"),
        (np.array(["text"]), "a ndarray"),
        (endless(), r"a list within 100 others at 0\.0\.0\.\.\."),
    ],
)
def test_what_cannot_be_stored_is_named_with_its_place(value: Any, told: str) -> None:
    with pytest.raises(UnstorableError, match=f"^{told}"):
        packed(value)


@pytest.mark.parametrize("text", ['{"object":"0"}', '{"tensor":"9"}', "{}", '{"dict":[1]}', "[", '{"tuple":3}'])
def test_damaged_structure_is_an_error_that_is_expected(text: str) -> None:
    wrong = {"structure": torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8), "0": torch.ones(1)}
    with pytest.raises((KeyError, ValueError, TypeError)):
        unpacked(wrong)
