"""Copies of a device's tensors in host memory, made beside what the device does next."""

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
        if self._stream is None:
            host.copy_(values)
            return host, None
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            host.copy_(values, non_blocking=True)
            copied = _event()
            copied.record()
        values.record_stream(self._stream)
        return host, copied


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's own


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own
