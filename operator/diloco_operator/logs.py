"""Logging of the operator: lines for people, or one JSON object a line for a collector. To stderr.

The keys of the JSON are those of the other diloco processes. It must not know what is logged.
"""

import json
import logging
import sys
import time
from typing import Any, Final

PROCESS: Final = "operator"
_QUIET: Final = {
    # Says at each start that it is not in the main thread; it is meant not to be.
    "kopf._core.reactor.running": logging.ERROR,
    "kopf": logging.WARNING,
    "asyncio": logging.WARNING,
    # What is wrong with a kubeconfig is told once, by whoever asked for it.
    "kubernetes": logging.ERROR,
}


def set_up_logging(*, as_json: bool, level: int = logging.INFO) -> None:
    """Send every logger of this process to stderr. Replaces an earlier set-up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if as_json else _PlainFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name, quiet_level in _QUIET.items():
        logging.getLogger(name).setLevel(max(quiet_level, level))


class _PlainFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        text = f"{clock}.{int(record.msecs):03d} {PROCESS} {level}{record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname,
            "process": PROCESS,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)
