"""The memory of tensors that have none (torch's fake tensors), by what they are."""

import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_COLLECTIVES: Final = {"c10d::_allgather_base_": (0, "gathered"), "c10d::_reduce_scatter_base_": (0, "gradients")}
"""Operations and which argument they write."""


class Memory(TorchDispatchMode):
    """Counts inside the bytes of new tensors, each memory once, until nothing refers to it.

    They are of the kind ``now``, unless an operation says more.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.now = "rest"
        self.bytes: Counter[str] = Counter()
        """Now, by kind."""
        self.peak: Counter[str] = Counter()
        """At the time of the most in all."""
        self._known: dict[int, tuple[str, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Do it, and count its results."""
        if any(issubclass(one, DTensor) for one in types):
            return NotImplemented  # the operations on parts come here
        result = func(*args, **(kwargs or {}))
        for one in tree_leaves(result):
            if isinstance(one, Tensor):
                self._see(one, self.now)
        if func.name() in _COLLECTIVES:
            place, kind = _COLLECTIVES[func.name()]
            self._see(args[place], kind, again=True)
        if func.name() == "aten::_to_copy" and result.dtype == torch.bfloat16 and self._is(args[0], "gathered"):
            self._see(result, "casts", again=True)
        return result

    def track(self, tensors: Iterator[Tensor], kind: str) -> None:
        """Count tensors that were there before."""
        for one in tensors:
            self._see(one.to_local() if isinstance(one, DTensor) else one, kind, again=True)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, it sees what storages free by themselves, as FSDP's do, too."""
        resize = torch.UntypedStorage.resize_

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            key = storage._cdata  # noqa: SLF001  # its identity has no public name
            self._as(key, "gathered")
            self._set(key, size)
            return resize(storage, size)

        with patch.object(torch.UntypedStorage, "resize_", resized), self:
            yield

    def _is(self, tensor: Tensor, kind: str) -> bool:
        return self._known.get(tensor.untyped_storage()._cdata, ("", 0))[0] == kind  # noqa: SLF001  # as above

    def _see(self, tensor: Tensor, kind: str, *, again: bool = False) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001  # as above
        if key not in self._known:
            weakref.finalize(storage, self._forget, key).atexit = False
            self._known[key] = kind, 0
            self._set(key, storage.nbytes())
        elif again:
            self._as(key, kind)

    def _as(self, key: int, kind: str) -> None:
        before, size = self._known.get(key, (kind, 0))
        if before != kind:
            self._known[key] = kind, size
            self.bytes[before] -= size
            self.bytes[kind] += size

    def _set(self, key: int, size: int) -> None:
        if key not in self._known:
            return
        kind, before = self._known[key]
        self._known[key] = kind, size
        self.bytes[kind] += size - before
        if self.bytes.total() > self.peak.total():
            self.peak = self.bytes.copy()

    def _forget(self, key: int) -> None:
        self._set(key, 0)
        self._known.pop(key, None)
