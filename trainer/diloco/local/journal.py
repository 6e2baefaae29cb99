"""``supervisor.jsonl``: what the supervisor did and saw, one JSON object a line, appended across resumes.

Every entry has ``event``, ``process`` (a learner's id, ``syncer``, a region, or empty) and ``time`` (Unix, seconds).
It must not know what entries mean: ``incidents`` does.
"""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diloco.runtime.json_text import parse_json

LIMIT_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the journal."""

    event: str
    """``run``, ``alive`` (now and then), ``start``, ``exit``, ``kill``, ``pause``, ``continue``, ``cut``, ``heal``,
    ``give_up`` or ``end``."""
    process: str
    time: float
    details: dict[str, Any] = field(default_factory=dict)


class Journal:
    """Appends entries to the file, each flushed: what stands there survives the supervisor."""

    def __init__(self, path: Path) -> None:
        """Open ``path`` for appending.

        Raises:
            OSError: it cannot be written.
        """
        self._file = path.open("a", encoding="utf-8")

    def write(self, event: str, process: str = "", **details: Any) -> Entry:
        """Append an entry with the time of now."""
        entry = Entry(event, process, time.time(), details)
        line = {
            "event": entry.event,
            "process": entry.process,
            "time": round(entry.time, 3),
            **details,
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        return entry

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_journal(path: Path) -> list[Entry]:
    """The entries of a journal; none if there is no file. A torn or foreign line is passed over."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", errors="replace") as file:
        lines = file.read(LIMIT_BYTES).splitlines()
    return [entry for line in lines if (entry := _entry(line)) is not None]


def _entry(line: str) -> Entry | None:
    try:
        value = parse_json(line)
        details = {key: value[key] for key in value if key not in ("event", "process", "time")}
        return Entry(str(value["event"]), str(value["process"]), float(value["time"]), details)
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
