"""A model whose layers torch has wrapped, with the names that its parameters had before."""

from collections.abc import Iterator
from typing import Final

from torch import nn

_OF_WRAPPERS: Final = frozenset({"_checkpoint_wrapped_module", "_orig_mod"})
"""What torch's ``checkpoint_wrapper`` and ``torch.compile`` add to names."""


class Unwrapped(nn.Module):
    """Has the model's own layers and parameters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._names = {_unwrapped(name): name for name, _ in model.named_parameters(remove_duplicate=False)}

    def named_modules(
        self,
        memo: set[nn.Module] | None = None,
        prefix: str = "",
        remove_duplicate: bool = True,  # noqa: FBT001, FBT002  # torch's own
    ) -> Iterator[tuple[str, nn.Module]]:
        """As of the model before; all other names come from these."""
        for name, one in self.model.named_modules(memo, prefix, remove_duplicate):
            yield _unwrapped(name), one

    def get_parameter(self, target: str) -> nn.Parameter:
        """By its name before."""
        return self.model.get_parameter(self._names[target])


def unwrapped(model: nn.Module) -> nn.Module:
    """``model``, or what has its parameters by their names before they were wrapped."""
    wrapped = any(_OF_WRAPPERS & set(name.split(".")) for name, _ in model.named_parameters())
    return Unwrapped(model) if wrapped else model


def _unwrapped(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _OF_WRAPPERS)
