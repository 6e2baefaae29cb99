"""Text of Kubernetes: what is quoted in a condition (one line, bounded, the same at each attempt), and times."""

import json
import re
from datetime import datetime

LONGEST_DETAIL = 300
"""Characters kept of one quoted text."""
LONGEST_MESSAGE = 1000
"""Characters of a whole message. Kubernetes allows 32,768; people read less."""

_ADDRESS = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


def one_line(text: str, limit: int = LONGEST_DETAIL) -> str:
    """``text`` on one line, cut to ``limit`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 3].rstrip()}..."


def last_line(output: str) -> str:
    """The last line that a process logged: the ``message`` of a JSON object, or the line itself.

    Memory addresses and pod uids are replaced by dots: they differ from one crash to the next.
    """
    lines = [line for line in output.splitlines() if line.strip()]
    return _ADDRESS.sub("...", one_line(_message(lines[-1]))) if lines else ""


def parsed_time(time: object) -> datetime | None:
    """A time as Kubernetes writes it (RFC 3339); None: it is none."""
    try:
        found = datetime.fromisoformat(time) if isinstance(time, str) else None
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None


def _message(line: str) -> str:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if not isinstance(entry, dict) or not isinstance(entry.get("message"), str):
        return line
    exception = str(entry.get("exception") or "").strip()
    return f"{entry['message']}: {exception.splitlines()[-1]}" if exception else entry["message"]
