"""Seeded random numbers without side effects on the caller's generators."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Start torch's CPU generator at ``seed`` inside, and restore it afterwards. No other generator is touched."""
    before = torch.get_rng_state()  # torch's fork_rng looks for an accelerator each time
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)


@contextmanager
def seeded_by(key: str, device: torch.device) -> Iterator[None]:
    """Make what torch draws inside, on the CPU and on ``device``, depend on ``key`` alone.

    The CPU's generator is restored. A device's is not: reading its state would wait for the device, and no other code
    of ours draws there.
    """
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest())
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    with seeded(seed):
        yield
