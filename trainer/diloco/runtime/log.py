"""Logging of a process, to stderr: lines for people, or one JSON object per line for a collector.

Log text may come from another process: control characters are escaped, so that no line can be forged. If the log
cannot be written, lines are lost and counted. A record may carry plain values in ``extra={"fields": {...}}``: they
become keys of the JSON object, and ``key=value`` at the end of a plain line. Inside of ``about`` each JSON object says
what it is about.
"""

import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from diloco.runtime.last_error import write_last_error
from diloco.runtime.output import LastingOutput, escaped

_ABOUT: ContextVar[Mapping[str, str]] = ContextVar("about", default=MappingProxyType({}))  # read-only


@contextmanager
def about(**names: str) -> Iterator[None]:
    """Have the lines that this task logs inside say what they are about (job, namespace), as JSON objects."""
    before = _ABOUT.set(names)
    try:
        yield
    finally:
        _ABOUT.reset(before)


def set_up_logging(
    *, json: bool = False, process: str, level: int = logging.INFO, of: Mapping[str, str] | None = None
) -> None:
    """Send every logger of this process to stderr, each line with ``process`` in it. Replaces an earlier set-up.

    ``of`` says what the process belongs to (job, namespace, learner), for JSON objects.
    """
    handler = _Handler()
    handler.setFormatter(_JsonFormatter(process, of or {}) if json else _PlainFormatter(process))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)


class _Handler(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self._output = LastingOutput(sys.stderr, self._note)
        self._problem = ""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + "\n"
        except Exception:  # noqa: BLE001  # a wrong argument of a log call: the base class reports it
            self.handleError(record)
            return
        if record.levelno >= logging.ERROR:
            write_last_error(escaped(record.getMessage()))
        lost, problem = self._output.lost, self._problem
        self._output.write(line)
        if lost and self._output.lost == lost:
            self._output.lost, self._problem = 0, ""
            told = logging.LogRecord(
                __name__, logging.WARNING, "", 0, "%d earlier lines were lost: %s", (lost, problem), None
            )
            self._output.write(self.format(told) + "\n")

    def _note(self, problem: str) -> None:
        self._problem = problem


class _PlainFormatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        fields = "".join(f" {key}={value}" for key, value in _fields(record).items())
        told = escaped(f"{record.getMessage()}{fields}")
        text = f"{clock}.{int(record.msecs):03d} {self._process} {level}{told}"
        if not record.exc_info:
            return text
        # Indented, so that an exception's text cannot look like a line of its own.
        trace = "\n".join(f"    {escaped(line)}" for line in self.formatException(record.exc_info).split("\n"))
        return f"{text}\n{trace}"


class _JsonFormatter(logging.Formatter):
    def __init__(self, process: str, of: Mapping[str, str]) -> None:
        super().__init__()
        self._process, self._of = process, of

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname,
            "process": self._process,
            **self._of,
            **_ABOUT.get(),
            "logger": record.name,
            "message": escaped(record.getMessage()),  # escaped also for those who extract the text again
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}
