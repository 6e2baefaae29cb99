"""What to do about a process that has ended: start it again and when, leave it, or end the run. Pure."""

import signal
from dataclasses import dataclass
from enum import StrEnum

from diloco.runtime.exits import EXIT_BAD_INPUT, EXIT_JOB_FAILED, EXIT_OK, EXIT_REFUSED

_FIRST_SECONDS = 0.5
_LONGEST_SECONDS = 30.0
_EARLY_SECONDS = 3.0
"""Before a process that ended well is started again: the job may be over, and the news of it not here yet."""

_STILLBORN_LIMIT = 5
"""Ends in a row before the process did anything at all: then it is taken for broken rather than unlucky."""


class Verdict(StrEnum):
    """What becomes of the process."""

    DONE = "done"
    """It ended as it should."""
    RESTART = "restart"
    GIVE_UP = "give_up"
    """It is not started again; the run goes on without it."""
    FAIL = "fail"
    """The run cannot go on."""


@dataclass(frozen=True, slots=True)
class EndedProcess:
    """What is known of the process when it ended."""

    exit_code: int
    """Negative: the signal that ended it."""
    last_line: str
    """The last line it wrote."""
    restarts: int
    """Times it was started again in this run."""
    stillborn: int
    """Ends in a row, this one included, before it served or made a step."""
    by_chaos: bool = False
    """It was killed on purpose: no reason to wait longer each time."""
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

    One start more than allowed is made, so that the syncer hears of it and gives the learner up itself.
    """
    if record.exit_code == EXIT_OK:
        return _ended_well(record)
    if record.exit_code == EXIT_BAD_INPUT:
        return Decision(Verdict.FAIL, record.last_line or "its input is wrong")
    if record.exit_code == EXIT_REFUSED:
        return Decision(Verdict.GIVE_UP, record.last_line or "the syncer refused it")
    if record.stillborn >= _STILLBORN_LIMIT:
        return Decision(Verdict.GIVE_UP, f"it ended {record.stillborn} times before its first step: {_told(record)}")
    if maximum_restarts is not None and record.restarts > maximum_restarts:
        return Decision(Verdict.GIVE_UP, f"failurePolicy.maxRestartsPerLearner is {maximum_restarts}: {_told(record)}")
    return Decision(Verdict.RESTART, _told(record), _delay(record))


def after_syncer_exit(record: EndedProcess) -> Decision:
    """What to do about a syncer that has ended."""
    if record.exit_code == EXIT_OK:
        return _ended_well(record)
    if record.exit_code == EXIT_JOB_FAILED:
        return Decision(Verdict.DONE, "it ended with the job")
    # Where it has served before, its input was good: a port that is taken for a moment, say, may be free the next time.
    if record.exit_code in (EXIT_BAD_INPUT, EXIT_REFUSED) and not record.restarts:
        return Decision(Verdict.FAIL, record.last_line or "its input is wrong")
    if record.stillborn >= _STILLBORN_LIMIT:
        return Decision(Verdict.FAIL, f"the syncer ended {record.stillborn} times before it served: {_told(record)}")
    return Decision(Verdict.RESTART, _told(record), _delay(record))


def how_it_ended(exit_code: int) -> str:
    """An exit code in words."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


def _ended_well(record: EndedProcess) -> Decision:
    if record.early:
        return Decision(Verdict.RESTART, "something else stopped it before the job was over", _EARLY_SECONDS)
    return Decision(Verdict.DONE, "it ended normally")


def waiting_seconds(failures: int) -> float:
    """Seconds before the next attempt, after so many in a row that led to nothing."""
    return float(min(_LONGEST_SECONDS, _FIRST_SECONDS * 2 ** min(16, max(0, failures))))


def _told(record: EndedProcess) -> str:
    how = how_it_ended(record.exit_code)
    return f"{how}, {record.last_line}" if record.last_line and record.exit_code > 0 else how


def _delay(record: EndedProcess) -> float:
    if record.by_chaos:
        return _FIRST_SECONDS
    return waiting_seconds(record.stillborn)
