"""Seeded randomness that leaves no trace: whoever builds a model must not shift another's random numbers."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within it torch's CPU generator starts at ``seed``; afterwards it is where it was. No other is touched."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
