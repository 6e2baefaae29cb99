"""Takes a fragment's values between two steps with a single copy.

For the inner loop this costs one copy in memory (on CUDA: one on the device; the copy to the host runs beside the next
steps). The outer gradient is computed when it is first needed, in the thread that sends it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diloco.core.buffers import recycled
from diloco.core.fragments import Fragment
from diloco.model.fragments import read_fragment, slot_values


@dataclass(slots=True)
class Capture:
    """A learner's contribution to a merge. For one consumer: ``delta`` is not safe for two threads at once."""

    fragment: int
    base_version: int
    """Version of the fragment that the learner last received, from which the outer gradient is measured."""
    steps: int
    """c_steps: inner steps since it received the fragment. 0: there is nothing to contribute."""
    tokens: int
    """c_tokens: tokens in those steps."""
    _anchor: Tensor
    _values: Tensor
    _copied: torch.cuda.Event | None
    """CUDA event after which ``_values`` can be read; None: it already can."""
    _subtracted: bool = False
    data_from: int = 0
    """Sequences that the learner had taken when it received the fragment, and now."""
    data_to: int = 0

    @property
    def delta(self) -> Tensor:
        """The outer gradient, anchor - parameters, flat f32 in host memory, owned by this capture.

        The first access waits for the copy from the device, and subtracts.
        """
        if not self._subtracted:
            if self._copied is not None:
                self._copied.synchronize()
            torch.sub(self._anchor, self._values, out=self._values)
            self._subtracted = True
        return self._values


class Reader:
    """Copies fragments from a module on ``device`` to the host."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._module = module
        self._device = device
        self._stream = _stream(device) if device.type == "cuda" else None

    def host_buffer(self, fragment: Fragment) -> Tensor:
        """A flat f32 buffer for a fragment, in memory that ``device`` can copy to and from asynchronously."""
        if self._stream is None:
            return recycled(fragment.numel, torch.float32)
        return torch.empty(fragment.numel, dtype=torch.float32, pin_memory=True)  # torch reuses pinned memory itself

    def read(self, fragment: Fragment) -> tuple[Tensor, torch.cuda.Event | None]:
        """A fragment's current parameters, and the event after which they can be read (None: they already can)."""
        host = self.host_buffer(fragment)
        if self._stream is None:
            read_fragment(self._module, fragment, host)
            return host, None
        # The next step must not change what is being copied: gather on the device, in stream order with the steps, then
        # copy to the host on another stream.
        with torch.no_grad():
            gathered = torch.cat([part.reshape(-1) for part in slot_values(self._module, fragment)])
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            host.copy_(gathered, non_blocking=True)
            copied = _event()
            copied.record()
        gathered.record_stream(self._stream)
        return host, copied


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's own


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own
