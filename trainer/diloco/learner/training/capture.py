"""Takes a fragment's values between two steps with a single copy.

For the inner loop this costs one copy in memory (on CUDA: one on the device; the copy to the host runs beside the next
steps). The outer gradient is computed when it is first needed, in the thread that sends it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diloco.core.fragments import Fragment
from diloco.learner.training.devices.host_copies import Copied, HostCopies
from diloco.model.fragments import FragmentsInModule


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
    _copied: Copied
    """The event after which ``_values`` can be read; None: it already can."""
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
    """Copies fragments from a module on ``device`` to the host, and back."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._fragments = FragmentsInModule(module)
        self._copies = HostCopies(device)

    def host_buffer(self, fragment: Fragment) -> Tensor:
        """A flat f32 buffer for a fragment, in memory that ``device`` can copy to and from asynchronously."""
        return self._copies.buffer(fragment.numel)

    def read(self, fragment: Fragment) -> tuple[Tensor, Copied]:
        """A fragment's current parameters, and the event after which they can be read (None: they already can)."""
        host = self.host_buffer(fragment)
        if self._copies.at_once:
            self._fragments.read(fragment, host)
            return host, None
        # The next step must not change what is being copied: gather on the device, in stream order with the steps.
        with torch.no_grad():
            gathered = torch.cat([part.reshape(-1) for part in self._fragments.values(fragment)])
        return self._copies.copy(gathered, host)

    def write(self, fragment: Fragment, values: Tensor) -> None:
        """See `write_fragment`."""
        self._fragments.write(fragment, values)
