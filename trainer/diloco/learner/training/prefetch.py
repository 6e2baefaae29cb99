"""Reads the next batch while the device makes a step."""

import threading
from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[np.int64]


class Prefetch:
    """One thread at a time reads: another one for the next batch, or the caller's own. Called by one thread.

    It knows nothing of what was dealt or used: a batch that was read ahead serves only who asks for the same numbers.
    """

    def __init__(self, read: Callable[[Numbers], Mapping[str, Tensor]], device: torch.device) -> None:
        """``read``: reads a batch, in any thread. For a CUDA ``device`` it is then put into pinned memory."""
        self._read, self._device = read, device
        self._ahead: _Reading | None = None

    def begin(self, numbers: Numbers) -> None:
        """Begin to read the batch of ``numbers``."""
        self.wait()
        self._ahead = _Reading(self._read, numbers, self._device)

    def batch(self, numbers: Numbers) -> Mapping[str, Tensor]:
        """The batch of ``numbers``; raises as reading it does."""
        self.wait()
        ahead, self._ahead = self._ahead, None
        if ahead is not None and np.array_equal(ahead.numbers, numbers):
            return ahead.result()
        return self._read(numbers)

    def wait(self) -> None:
        """Wait until no other thread reads."""
        if self._ahead is not None:
            self._ahead.thread.join()


class _Reading:
    """One batch."""

    def __init__(self, read: Callable[[Numbers], Mapping[str, Tensor]], numbers: Numbers, device: torch.device) -> None:
        self.numbers, self._call, self._device = numbers, read, device
        self._batch: Mapping[str, Tensor] = {}
        self._error: BaseException | None = None
        # One that hangs in a read must not hold up the end of the process.
        self.thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self.thread.start()

    def result(self) -> Mapping[str, Tensor]:
        if self._error is not None:
            raise self._error
        return self._batch

    def _run(self) -> None:
        torch.set_num_threads(1)  # more would take cores from the step
        try:
            batch = self._call(self.numbers)
            if self._device.type == "cuda":
                with torch.cuda.device(self._device):  # else pinning begins to use the first one
                    batch = {name: one.pin_memory() for name, one in batch.items()}
            self._batch = batch
        except BaseException as error:  # noqa: BLE001  # raised in the step of which this batch is
            self._error = error
