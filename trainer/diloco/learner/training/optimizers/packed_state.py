"""Python values as tensors: what code of the user's own keeps, in a file of which nothing is unpickled.

Numbers, text, bytes, tensors, arrays, and lists, tuples, sets and dictionaries of these come back as they were. That
covers a schedule's ``state_dict()``, the state of a random generator, and an optimizer's.
"""

import json
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from diloco.core.buffers import bytes_of
from diloco.model.tensor_file import fits_a_file


@dataclass(frozen=True, slots=True)
class Part:
    """This process's part of a tensor that is parted as the parameter that it belongs to."""

    values: Tensor


_STRUCTURE: Final = "structure"
"""Name of a tensor whose bytes are JSON: the values, with its name in place of each tensor."""
_DEEPEST: Final = 100
"""Most containers within each other (ours): one that holds itself has no end."""
_SEQUENCES: Final[Mapping[type, Callable[[Iterable[Any]], Any]]] = {tuple: tuple, torch.Size: torch.Size, set: set}
_MAPPINGS: Final[Mapping[type, Callable[[Iterable[Any]], Any]]] = {
    dict: dict,
    OrderedDict: OrderedDict,
    Counter: lambda pairs: Counter(dict(pairs)),
}
_CONTAINERS: Final = {kind.__name__: make for kind, make in (*_SEQUENCES.items(), *_MAPPINGS.items())}
_FROM_TENSOR: Final[Mapping[str, Callable[[Tensor], Any]]] = {
    "tensor": lambda tensor: tensor,
    "part": Part,
    "array": lambda tensor: tensor.numpy(),
    "scalar": lambda tensor: tensor.numpy()[()],
    "bytes": lambda tensor: bytes(bytes_of(tensor)),
}


class UnstorableError(ValueError):
    """A value is of another kind; the text names that and its place."""


def packed(value: object) -> dict[str, Tensor]:
    """``value`` as tensors by name. They are the value's own, not copies, each on its device.

    Raises:
        UnstorableError: it has something else.
    """
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_structure(value, tensors, ()), separators=(",", ":"))
    return {_STRUCTURE: _bytes(text.encode()), **tensors}


def unpacked(tensors: Mapping[str, Tensor]) -> Any:
    """The value that ``packed`` was given, with ``tensors`` in it, which are in host memory.

    Raises:
        KeyError, ValueError, TypeError: ``tensors`` are something else.
    """
    return _value(json.loads(bytes(bytes_of(tensors[_STRUCTURE]))), tensors)


def _structure(value: Any, tensors: dict[str, Tensor], place: tuple[str, ...]) -> Any:
    """JSON of ``value``, whose tensors it puts into ``tensors``."""
    kind = type(value)
    if len(place) > _DEEPEST:
        raise UnstorableError(f"a {kind.__name__} within {_DEEPEST} others at {'.'.join(place[:3])}...")

    def inside(part: object, name: object) -> Any:
        return _structure(part, tensors, (*place, str(name)))

    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [inside(part, index) for index, part in enumerate(value)]
    if kind in _SEQUENCES:
        return {kind.__name__: [inside(part, index) for index, part in enumerate(value)]}
    if kind in _MAPPINGS:
        return {kind.__name__: [[inside(key, key), inside(part, key)] for key, part in value.items()]}
    made = ("part", value.values) if kind is Part else _tensor(value)
    if made is None:
        raise UnstorableError(f"a {kind.__name__}" + f" at {'.'.join(place)}" * bool(place))
    told, tensor = made
    tensors[name := str(len(tensors))] = tensor
    return {told: name}


def _tensor(value: Any) -> tuple[str, Tensor] | None:
    """What the value is, and a tensor of it; None: there is none."""
    if isinstance(value, bytes | bytearray):
        return "bytes", _bytes(value)
    if isinstance(value, np.ndarray | np.generic):
        told = "array" if isinstance(value, np.ndarray) else "scalar"
        try:
            value = torch.from_numpy(np.array(value))
        except TypeError:  # a type that torch lacks
            return None
    else:
        told = "tensor"
    plain = type(value) in (Tensor, torch.nn.Parameter) and fits_a_file(value)
    return (told, value.detach()) if plain else None


def _value(said: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(said, list):
        return [_value(part, tensors) for part in said]
    if not isinstance(said, dict):
        return said
    ((kind, content),) = said.items()
    if kind in _CONTAINERS:
        return _CONTAINERS[kind](_value(part, tensors) for part in content)
    return _FROM_TENSOR[kind](tensors[content])


def _bytes(data: bytes | bytearray) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(data), dtype=np.uint8))
