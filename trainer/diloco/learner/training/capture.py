"""A fragment as it is between two steps, taken off the inner loop with one copy.

Taking it costs the inner loop a copy in memory (on CUDA: one on the device, the way to the host runs beside the next
steps). The outer gradient is worked out where it is first asked for, in the thread that sends it. This module must not
know codecs or the wire.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diloco.core.fragments import Fragment
from diloco.model import read_fragment


@dataclass(slots=True)
class Capture:
    """What a learner brings to a merge. For one consumer: ``delta`` is not guarded against two threads at once."""

    fragment: int
    base_version: int
    """Version of the fragment that the learner last received: what the outer gradient is measured from."""
    steps: int
    """c_steps: inner steps since it received the fragment. 0: there is nothing to bring."""
    tokens: int
    """c_tokens: tokens in those steps."""
    _anchor: Tensor
    _values: Tensor
    _copied: torch.cuda.Event | None
    """CUDA event after which ``_values`` is there; None: it is."""
    _subtracted: bool = False

    @property
    def delta(self) -> Tensor:
        """The outer gradient, anchor - parameters, flat f32 in host memory, this capture's own.

        The first access waits until the copy from the device is there, and subtracts.
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
        """A fresh flat f32 buffer for a fragment, in memory that ``device`` can copy to and from by itself."""
        return torch.empty(fragment.numel, dtype=torch.float32, pin_memory=self._stream is not None)

    def read(self, fragment: Fragment) -> tuple[Tensor, torch.cuda.Event | None]:
        """A fragment's parameters as they are now, and the event after which they are there (None: they are)."""
        host = self.host_buffer(fragment)
        if self._stream is None:
            read_fragment(self._module, fragment, host)
            return host, None
        # The next step may not change what is being copied: gather on the device in the order of the steps, then let
        # the copy to the host run on a stream of its own.
        with torch.no_grad():
            gathered = torch.cat([self._module.get_parameter(slot.tensor.name).reshape(-1) for slot in fragment.slots])
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
