"""Copies of a device's tensors in host memory, made beside what the device does next."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from diloco.core.buffers import recycled

Copied = torch.cuda.Event | None
"""After which a copy can be read; None: it already can."""


class HostCopies:
    """Makes them on a stream of its own, into pinned memory; on a CPU at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = _stream(device) if device.type == "cuda" else None

    @property
    def at_once(self) -> bool:
        """Whether what was copied may be changed at once."""
        return self._stream is None

    def buffer(self, numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Flat host memory that the device can copy to and from asynchronously."""
        if self._stream is None:
            return recycled(numel, dtype)
        return torch.empty(numel, dtype=dtype, pin_memory=True)  # torch reuses pinned memory itself

    def copy(self, values: Tensor, out: Tensor | None = None) -> tuple[Tensor, Copied]:
        """A copy of ``values``, in ``out`` or in new memory, once what the device has been told so far is done.

        Nothing may write to ``values`` before the event.
        """
        host = self.buffer(values.numel(), values.dtype).view(values.shape) if out is None else out
        return host, self._fill([(host, values)])

    def copy_all(self, values: Mapping[str, Tensor]) -> "HostTensors":
        """The same of several, each contiguous in new memory."""
        if self._stream is None:
            contiguous = torch.contiguous_format
            return HostTensors(
                {name: one.to("cpu", copy=True, memory_format=contiguous) for name, one in values.items()}
            )
        made = HostTensors({name: self.buffer(one.numel(), one.dtype).view(one.shape) for name, one in values.items()})
        made.copied = self._fill([(made[name], one) for name, one in values.items()])
        return made

    def _fill(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Copied:
        if self._stream is None:
            for host, values in pairs:
                host.copy_(values)
            return None
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for host, values in pairs:
                host.copy_(values, non_blocking=True)
                values.record_stream(self._stream)
            copied = _event()
            copied.record()
        return copied


class HostTensors(dict[str, Tensor]):
    """Copies by name."""

    copied: Copied = None
    """The event after which all can be read."""


def whole_copies(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """``tensors``, once they can be read."""
    if isinstance(tensors, HostTensors) and tensors.copied is not None:
        tensors.copied.synchronize()
    return tensors


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's own


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own
