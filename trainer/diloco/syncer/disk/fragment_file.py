"""One fragment in a checkpoint: a safetensors file that the checkpoints after it share until its next version.

It has the parameters, the outer momentum, the residual if updates to learners are encoded, and the mean of the last
versions once there is one; f32, flat.
"""

from pathlib import Path
from typing import Final, NamedTuple

import torch

from diloco.core.finite_check import problem_with
from diloco.model.tensor_file import TensorType, opened, write_tensor_file
from diloco.runtime.files import UnusableFileError

SUFFIX: Final = ".safetensors"


class FragmentTensors(NamedTuple):
    """What a fragment's file has; each f32, shape (numel,)."""

    parameters: torch.Tensor
    momentum: torch.Tensor
    residual: torch.Tensor | None = None
    """What the encoding of updates has left over; None: they are not encoded."""
    mean: torch.Tensor | None = None
    """Of the fragment's last versions; None: there is none."""


def file_of(fragment: int) -> str:
    """Name of a fragment's file in a checkpoint."""
    return f"{fragment:05d}{SUFFIX}"


def write_fragment_file(path: Path, tensors: FragmentTensors) -> str:
    """Write a fragment's file, and wait until it is on disk; returns its SHA-256.

    Raises:
        OSError: it could not be written; a part of it may be there.
    """
    there = {name: tensor for name, tensor in tensors._asdict().items() if tensor is not None}
    return write_tensor_file(path, there)


def read_fragment_file(path: Path, digest: str, numel: int) -> FragmentTensors:
    """What the file of a fragment of ``numel`` parameters has.

    Raises:
        UnusableFileError: it is not such a file with this SHA-256, or has values that nothing can be trained with.
    """
    one = TensorType(torch.float32, (numel,))
    needed, optional = {"parameters", "momentum"}, {"residual", "mean"}
    with opened(path) as file:
        names = file.tensors.keys()
        if not needed <= names <= needed | optional or any(found != one for found in file.tensors.values()):
            raise UnusableFileError(f"{path}: it does not hold the tensors of a fragment of {numel} parameters")
        found = file.read(dict.fromkeys(file.tensors, ()), digest)
    for name, values in found.items():
        if problem := problem_with(values):
            raise UnusableFileError(f"{path}: {name}: {problem}")
    return FragmentTensors(**found)
