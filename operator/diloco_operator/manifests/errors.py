"""Errors of a job that show only when its objects are built. Their texts are for users."""

from collections.abc import Sequence

from diloco.spec.errors import Problem
from diloco_operator.names import PoolKey


class ManifestError(ValueError):
    """A job whose objects cannot be made."""


class InvalidSpecError(ManifestError):
    """The job's spec cannot be run in a cluster. As text it is one line a problem."""

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
