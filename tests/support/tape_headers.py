"""The header of a tape, with defaults for everything that a test does not set."""

from typing import Any

from diloco.core.engine.options import RULES
from diloco.tape.reader import TapeHeader


def tape_header(**changes: Any) -> TapeHeader:
    """Of the first epoch of a job without a model, under today's rules."""
    plain: dict[str, Any] = {
        "job": {},
        "layout": "",
        "epoch": 1,
        "base_checkpoint": "",
        "record": False,
        "engine": {},
        "started_at": 0.0,
        "rules": RULES,
        "tensors": (),
    }
    return TapeHeader(**plain | changes)
