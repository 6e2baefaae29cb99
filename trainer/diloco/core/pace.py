"""When the next syncer step is due, counted in inner steps, so that H neither collapses nor stretches.

A syncer that starts a round as soon as learners answer would make H collapse on a fast link. Here a syncer step is due
when the quorum's slowest learner has made the inner steps for it: every learner has a clock, which only its own steps
advance. Clocks are kept near the schedule at both ends: one that is ahead (a fast learner, or one that is back from a
cut link with many steps to report) is held at the overlap, so that a burst of reports does not make many rounds due;
one that is behind (a slow learner, or a late joiner) is moved along one stride behind, so that it can drive the
schedule alone as soon as the fast ones are gone. A learner that is moved along still needs a step of its own to become
due, so M learners never launch M times as often as one.

Steps beyond the hold are forgotten, and a learner that waits at its staleness bound makes none. So, whatever its clock,
a learner that has gone an interval and the overlap since a fragment had its turn is due for its next: otherwise all
could wait for each other, after a cut link or in lock-step.
"""

from collections.abc import MutableMapping

from diloco.core.schedule import Schedule


def start(schedule: Schedule, launched: int) -> int:
    """The clock of a learner that begins to train after ``launched`` syncer steps."""
    return schedule.due(launched)


def advance(schedule: Schedule, launched: int, clock: int, steps: int) -> int:
    """The clock after ``steps`` more inner steps, held at the overlap beyond the next syncer step."""
    return max(clock, min(clock + steps, schedule.due(launched + 1) + schedule.overlap))


def reached(schedule: Schedule, launched: int, clock: int) -> bool:
    """Whether a learner's clock has reached the next syncer step."""
    return clock >= schedule.due(launched + 1)


def overdue(schedule: Schedule, staleness_bound: int, steps: int) -> bool:
    """Whether so many inner steps of a learner since a fragment's turn make the next one due, whatever its clock."""
    return steps >= min(schedule.interval + schedule.overlap, staleness_bound)


def pull_along(schedule: Schedule, launched: int, clocks: MutableMapping[str, int]) -> None:
    """After a launch (``launched`` counts it): no clock is more than a stride behind the schedule."""
    stride = max(1, -(-schedule.interval // schedule.fragments))
    floor = schedule.due(launched) - stride
    for learner, clock in clocks.items():
        clocks[learner] = max(clock, floor)
