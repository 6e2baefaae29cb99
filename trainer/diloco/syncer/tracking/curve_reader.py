"""Reads the curves of a run, also while its syncer writes them."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from diloco.spec.status.curves import CurveRow

_LONGEST_ROW: Final = 1 << 20


class CurveError(ValueError):
    """The file cannot be read as curves; the text names it."""


class CurveReader:
    """Reads each row once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0

    def rows(self) -> Iterator[CurveRow]:
        """The rows that were completed since the last call; none as long as there is no file.

        A row that a crash or a full disk has cut is passed over.

        Raises:
            CurveError: the file cannot be read, or is of something else.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                while (line := file.readline(_LONGEST_ROW)).endswith(b"\n"):
                    self._read_bytes += len(line)
                    try:
                        yield CurveRow.model_validate_json(line)
                    except ValidationError:
                        continue
        except FileNotFoundError:
            return
        except OSError as error:
            raise CurveError(f"{self._path}: cannot be read: {error.strerror or error}") from error
        if len(line) == _LONGEST_ROW:
            raise CurveError(f"{self._path}: has a line of {_LONGEST_ROW} bytes and more; use the file of a run")


def points(row: CurveRow) -> Iterator[tuple[str, float]]:
    """A row's values by the name of their curve: ``job/eval_loss``, ``learners/east/a/0/loss``."""
    values = row.model_dump(include={"tokens_per_second", "eval_loss", "learners", "fragments"})
    yield from _numbers("learners", values.pop("learners"))
    yield from _numbers("fragments", values.pop("fragments"))
    yield from _numbers("job", values)


def _numbers(place: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _numbers(f"{place}/{name}", inner)
    elif value is not None and math.isfinite(value):
        yield place, value
