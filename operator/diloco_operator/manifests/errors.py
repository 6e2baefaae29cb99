"""Errors of a job that are found only when its objects are built. Their texts are for users."""

import json
from collections.abc import Sequence
from typing import Final

from diloco.spec.errors import Problem
from diloco_operator.names import PoolKey

_LONGEST_SHOWN: Final = 60


class ManifestError(ValueError):
    """The job's objects cannot be built."""


class InvalidSpecError(ManifestError):
    """The job's spec cannot run in a cluster. As text it is one line per problem."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class NoImageError(ManifestError):
    """No trainer image is known for a pool."""

    def __init__(self, pool: PoolKey) -> None:
        super().__init__(
            f"spec.image: is missing, and so is the image of pool {pool}; set the trainer image in either, "
            "or a default for the operator"
        )
        self.pool = pool


def shown(value: object) -> str:
    """A value of the manifest in an error: one line, shortened."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."
