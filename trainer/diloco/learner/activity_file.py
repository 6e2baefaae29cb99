"""The file in which a learner's process tells the report how it spent its time."""

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Final, NamedTuple

from diloco.core.account.time_spent import TimeSpent
from diloco.learner.exchange.orders import Ending
from diloco.learner.exchange.transfers import TransferCounts
from diloco.runtime.files import write_json_atomically

ACTIVITY_FILE: Final = "activity.json"

_log = logging.getLogger(__name__)


class Told(NamedTuple):
    """What a process did."""

    learner: str
    ending: Ending
    sessions: int
    steps: int
    tokens: int


def write_activity(path: Path, told: Told, spent: TimeSpent, counts: TransferCounts) -> None:
    """Write it; if that is not possible, log why."""
    value = {
        "learner": told.learner,
        "ending": told.ending.kind.value,
        "reason": told.ending.reason,
        "steps": told.steps,
        "tokens": told.tokens,
        "sessions": told.sessions,
        "seconds": asdict(spent),
        "blocked_fraction": spent.fraction(spent.blocked_seconds),
        "waited_fraction": spent.fraction(spent.waited_seconds),
        "evaluating_fraction": spent.fraction(spent.evaluating),
        "checkpointing_fraction": spent.fraction(spent.checkpointing),
        "bytes_pushed": counts.bytes_pushed,
        "bytes_pulled": counts.bytes_pulled,
        "pushes": counts.pushes,
        "pulls": counts.pulls,
        "pulls_posted": counts.posted,
        "updates": counts.updates,
        "updates_wrong": counts.updates_wrong,
        "pulls_refused": counts.refused,
        "pushes_refused": counts.pushes_refused,
        "retries": counts.retries,
    }
    try:
        write_json_atomically(path, value)
    except OSError as error:
        _log.warning("cannot write %s: %s", path, error.strerror or error)
