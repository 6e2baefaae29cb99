"""Seeded randomness that leaves no trace: whoever builds a model must not shift another's random numbers."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within it torch's CPU generator starts at ``seed``; afterwards it is where it was. No other is touched."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def drawn_by(key: str, device: torch.device) -> Iterator[None]:
    """Within it what torch draws, on the CPU and on ``device``, depends on ``key`` alone.

    The CPU's generator is put back. A device's is not: a look at its state would wait for the device, and nothing else
    of ours draws there.
    """
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest())
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    with seeded(seed):
        yield
