"""Problems of a manifest, as values: the place, and a text that says what to change.

They read alike whether pydantic, YAML or a check found the problem.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Self


class Problem(NamedTuple):
    """One problem. As text it is one line, ``path: message``."""

    path: str
    """Its place: a path in the manifest (``spec.regions[1].name``), or the file and line that could not be read."""
    message: str
    """The value, what is wrong with it and what is allowed."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class SpecError(ValueError):
    """The manifest cannot be used. As text it is one line per problem, ``SOURCE:LINE: path: message`` where known."""

    def __init__(self, problems: Sequence[Problem], source: str, lines: Mapping[str, int] | None = None) -> None:
        """``lines``: the line in ``source`` of each value, by its path."""
        self.problems = tuple(problems)
        self.source = source
        """Where the manifest came from: a file's name, or another word for it."""
        self.lines = dict(lines or {})
        super().__init__("\n".join(self._told(problem) for problem in problems))

    def under(self, place: str) -> Self:
        """The same problems, with their paths below ``place`` and without lines."""
        return type(self)([Problem(f"{place}{path}", message) for path, message in self.problems], self.source)

    def _told(self, problem: Problem) -> str:
        place = problem.path
        while place and place not in self.lines:
            # What is missing has no line: that of what it is missing in.
            place = place[: max(place.rfind("."), place.rfind("["), 0)]
        return f"{self.source}:{self.lines[place]}: {problem}" if place else str(problem)


class PartError(ValueError):
    """Raised in a model's validator: problems whose paths begin at that model (an empty path is the model itself).

    A plain ValueError could carry only one message, for the model itself.
    """

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(str(problem) if problem.path else problem.message for problem in problems))
        self.problems = problems


def refuse(found: Iterable[Problem]) -> None:
    """Raise these problems of a part, if there are any.

    Raises:
        PartError: there are.
    """
    if problems := [*found]:
        raise PartError(*problems)
