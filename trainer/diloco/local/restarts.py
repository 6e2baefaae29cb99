"""Decides what to do about a process that has ended: restart it and when, leave it, or end the run. Pure."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from diloco.runtime.backoff import Backoff, no_jitter
from diloco.runtime.process.exits import EXIT_BAD_INPUT, EXIT_JOB_FAILED, EXIT_OK, EXIT_REFUSED, how_it_ended

BACKOFF: Final = Backoff(first_seconds=0.5, most_seconds=30.0, random=no_jitter)
"""Before a process is started again: one supervisor does it, for all of them."""
_EARLY_SECONDS = 3.0
"""Delay before a process that exited with 0 is restarted: the job may be over, and the status not say so yet."""

_EARLY_EXITS_LIMIT = 5
"""Ends in a row before a process did anything at all, after which it counts as broken."""


class Verdict(StrEnum):
    """What to do about the process."""

    DONE = "done"
    RESTART = "restart"
    GIVE_UP = "give_up"
    """It is not restarted; the run goes on without it."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class EndedProcess:
    """What is known about a process that has ended."""

    exit_code: int
    """Negative: the signal that ended it."""
    last_line: str
    restarts: int
    early_exits: int
    """Ends in a row, including this one, before it served or made a step."""
    by_chaos: bool = False
    """Fault injection killed it, so it need not wait."""
    early: bool = False
    """The job was not over, as far as is known."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and why."""

    verdict: Verdict
    reason: str
    delay_seconds: float = 0.0


def after_learner_exit(record: EndedProcess, maximum_restarts: int | None) -> Decision:
    """What to do about a learner that has ended; ``maximum_restarts`` is ``failurePolicy.maxRestartsPerLearner``.

    One more start than allowed is made, so that the syncer counts it and gives the learner up itself.
    """
    if record.exit_code == EXIT_OK:
        return _ended_well(record)
    if record.exit_code == EXIT_BAD_INPUT:
        return Decision(Verdict.FAIL, record.last_line or "its input is wrong")
    if record.exit_code == EXIT_REFUSED:
        return Decision(Verdict.GIVE_UP, record.last_line or "the syncer refused it")
    if record.early_exits >= _EARLY_EXITS_LIMIT:
        return Decision(Verdict.GIVE_UP, f"it ended {record.early_exits} times before its first step: {_text(record)}")
    if maximum_restarts is not None and record.restarts > maximum_restarts:
        return Decision(Verdict.GIVE_UP, f"failurePolicy.maxRestartsPerLearner is {maximum_restarts}: {_text(record)}")
    return Decision(Verdict.RESTART, _text(record), _delay(record))


def after_syncer_exit(record: EndedProcess) -> Decision:
    """What to do about a syncer that has ended."""
    if record.exit_code == EXIT_OK:
        return _ended_well(record)
    if record.exit_code == EXIT_JOB_FAILED:
        return Decision(Verdict.DONE, "it ended with the job")
    # If it has served before, its input was valid: the cause, such as a port in use, may be gone next time.
    if record.exit_code in (EXIT_BAD_INPUT, EXIT_REFUSED) and not record.restarts:
        return Decision(Verdict.FAIL, record.last_line or "its input is wrong")
    if record.early_exits >= _EARLY_EXITS_LIMIT:
        return Decision(Verdict.FAIL, f"the syncer ended {record.early_exits} times before it served: {_text(record)}")
    return Decision(Verdict.RESTART, _text(record), _delay(record))


def _ended_well(record: EndedProcess) -> Decision:
    if record.early:
        return Decision(Verdict.RESTART, "something else stopped it before the job was over", _EARLY_SECONDS)
    return Decision(Verdict.DONE, "it ended normally")


def _text(record: EndedProcess) -> str:
    how = how_it_ended(record.exit_code)
    return f"{how}, {record.last_line}" if record.last_line and record.exit_code > 0 else how


def _delay(record: EndedProcess) -> float:
    return BACKOFF.seconds(record.early_exits + 1) if record.early_exits and not record.by_chaos else 0.0
