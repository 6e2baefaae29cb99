"""Logging of a process: lines for people, or one JSON object a line for a collector. To stderr; stdout is for results.

It must not know what is logged. A record may carry plain values in ``extra={"fields": {...}}``: they become keys of the
JSON object, and ``key=value`` at the end of a line for people.
"""

import json
import logging
import sys
import time
from typing import Any


def set_up_logging(*, json: bool = False, process: str, level: int = logging.INFO) -> None:
    """Send every logger of this process to stderr, each line with ``process`` in it. Replaces an earlier set-up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter(process) if json else _PlainFormatter(process))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)


class _PlainFormatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        fields = "".join(f" {key}={value}" for key, value in _fields(record).items())
        text = f"{clock}.{int(record.msecs):03d} {self._process} {level}{record.getMessage()}{fields}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class _JsonFormatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname,
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}
