"""The parts of a model that compute one after the other, as its layers do."""

from collections import Counter
from collections.abc import Iterator

from torch import nn


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """Members of the outermost lists, and without any, of sequences.

    One whose parameters are used elsewhere too is none: what is parted twice would be two parameters.
    """
    uses = _uses(module)
    for kind in (nn.ModuleList, nn.Sequential):
        if found := list(_members(module, kind)):
            return [one for one in found if all(uses[key] == count for key, count in _uses(one).items())]
    return []


def _members(module: nn.Module, kind: type[nn.Module]) -> Iterator[nn.Module]:
    for one in module.children():
        if isinstance(module, kind) and not isinstance(one, nn.ModuleList | nn.ModuleDict):
            yield one
        else:
            yield from _members(one, kind)


def _uses(module: nn.Module) -> Counter[int]:
    """How often each parameter is in ``module``."""
    return Counter(id(one) for _, one in module.named_parameters(remove_duplicate=False))
