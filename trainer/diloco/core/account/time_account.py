"""Accounts for the time that a job is given: every second of a learner belongs to one class, and the classes add up.

An inner step trains every fragment of the model, and is settled for each of them: it is merged, or a newer version is
swapped in without it. So steps are counted by what became of them, each with the fragment's share of the model, and
the time of all steps is divided as the steps are. Time between steps is what the learner reports. Reports are never
believed beyond the time that has passed, and time that no report covers is time away.

Pure arithmetic on one learner's account.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from operator import attrgetter

from diloco.core.account.time_class import TimeClass
from diloco.core.account.time_spent import NO_TIME, TimeSpent

_UNTRAINED: Mapping[str, TimeClass] = {
    "skipped": TimeClass.LOST,
    "paused": TimeClass.WAITING,
    "copying": TimeClass.OVERHEAD,
    "looking": TimeClass.OVERHEAD,
    "evaluating": TimeClass.OVERHEAD,
    "checkpointing": TimeClass.OVERHEAD,
}
"""Kinds of a learner's report that are a class at once: field of ``TimeSpent`` -> class. Loading is time away."""
_kinds = attrgetter("training", *_UNTRAINED)


@dataclass(slots=True)
class Mark:
    """How far the steps on one fragment are settled."""

    version: int
    """Version that the learner trains on; -1: it loads the fragment."""
    step: int
    """The learner's step at which it received that version."""
    captured: int = 0
    """Steps since then that an outer gradient at the syncer has."""
    held: float = 0.0
    """Captured steps that are neither merged nor left out yet."""
    fate: TimeClass = TimeClass.LOST
    """The class of steps that are not captured when the next version is swapped in."""


@dataclass(slots=True)
class Account:
    """One learner's account. Times are seconds of its allotted time, which stands still while it does not count."""

    seconds: dict[TimeClass, float] = field(default_factory=dict)
    """By class: what was reported besides training, and the time away of processes that have ended."""
    trained_seconds: float = 0.0
    """Time of inner steps."""
    steps: int = 0
    """Inner steps made in that time."""
    settled: dict[TimeClass, float] = field(default_factory=dict)
    """Those that are settled, by class; one of a fragment counts as the fragment's share of the model."""
    accounted_seconds: float = 0.0
    """Allotted time at the last report or join."""
    step: int = 0
    """The learner's step at its last report."""
    spent: TimeSpent = NO_TIME
    """What its process had reported by then."""
    shares: tuple[float, ...] = ()
    marks: list[Mark] = field(default_factory=list)
    """By fragment; empty before the first join since the syncer started."""

    def joined(
        self, allotted_seconds: float, step: int, held: Sequence[int], shares: tuple[float, ...], *, same_process: bool
    ) -> None:
        """Begin a session.

        Args:
            allotted_seconds: The learner's allotted time so far.
            step: Inner steps that it has made.
            held: The version that it holds of each fragment; -1: it must load it.
            shares: Each fragment's share of the model.
            same_process: It has only lost its connection, so what it has trained is still there.
        """
        self.shares = shares
        if not same_process:
            for fragment, mark in enumerate(self.marks):
                self._settle(fragment, self.step - mark.step - mark.captured, TimeClass.LOST)
                self.marks[fragment] = Mark(-1, step, held=mark.held)
            self._add(TimeClass.AWAY, self._unexplained(allotted_seconds))
            self.spent = NO_TIME
        self.accounted_seconds = allotted_seconds
        if not same_process or not self.marks:  # steps made while the syncer was away are of no allotted time
            self.step = step
        if not self.marks:
            self.marks = [Mark(version, step) for version in held]
        for fragment, version in enumerate(held):
            if version < 0:
                self.marks[fragment].version, self.marks[fragment].fate = -1, TimeClass.LOST
            else:  # its notice went to the previous session
                self.received(fragment, version, step)

    def reported(self, allotted_seconds: float, step: int, spent: TimeSpent) -> None:
        """Account for the steps up to ``step``; ``spent``: how the learner's process has spent its time so far.

        No more is believed than the time that no report of this process has covered yet.
        """
        room = self._unexplained(allotted_seconds)
        before, self.spent = self.spent, spent
        trained, *others = [
            min(now - was, room) if now > was else 0.0 for was, now in zip(_kinds(before), _kinds(spent), strict=True)
        ]
        total = sum(others, trained)
        believed = room / total if total > room else 1.0
        for into, seconds in zip(_UNTRAINED.values(), others, strict=True):
            if seconds:
                self._add(into, believed * seconds)
        self.trained_seconds += believed * trained
        self.accounted_seconds = max(self.accounted_seconds, allotted_seconds)
        self.steps += max(0, step - self.step)
        self.step = max(self.step, step)

    def received(self, fragment: int, version: int, step: int) -> None:
        """Note that a newer version was swapped in after ``step``, which ends the training on the one before."""
        mark = self.marks[fragment]
        if version <= mark.version:
            return
        self._settle(fragment, step - mark.step - mark.captured, mark.fate)
        self.marks[fragment] = Mark(version, max(step, mark.step), held=mark.held, fate=mark.fate)

    def captured(self, fragment: int, base_version: int, steps: int) -> None:
        """Note that the syncer has an outer gradient of ``steps`` steps since ``base_version``."""
        if base_version > self.marks[fragment].version:  # the notice of its receipt is still on its way
            self.received(fragment, base_version, self.step - steps)
        mark = self.marks[fragment]
        if base_version == mark.version:
            mark.held += max(0, steps - mark.captured)
            mark.captured = max(steps, mark.captured)
            return
        for into in (TimeClass.LATE, TimeClass.LOST):  # settled when the next version was received, but it may count
            back = min(steps * self.shares[fragment], self.settled.get(into, 0.0))
            if back > 0:
                self.settled[into] -= back
                mark.held += back / self.shares[fragment]
                return

    def decided(self, fragment: int, into: TimeClass) -> None:
        """Note that the captured steps are merged, or never will be."""
        mark = self.marks[fragment]
        self._settle(fragment, mark.held, into)
        mark.held = 0.0

    def split(self, allotted_seconds: float, *, since: TimeClass, gone: bool) -> dict[TimeClass, float]:
        """Seconds by class; every class is there, none is negative, and together they are ``allotted_seconds``.

        Args:
            allotted_seconds: The learner's allotted time so far.
            since: The class of the time since the last report.
            gone: The process will not return: its pending time is lost.
        """
        split = {one: self.seconds.get(one, 0.0) for one in TimeClass}
        settled = fsum(self.settled.values())
        steps = max(self.steps, settled)  # a swap-in may be known before the report of its steps
        for one, count in self.settled.items():
            split[one] += self.trained_seconds * (count / steps) if steps else 0.0
        split[TimeClass.LOST if gone else TimeClass.PENDING] += self.trained_seconds * (
            1 - settled / steps if steps else 1.0
        )
        latest = min(self._unexplained(allotted_seconds), max(0.0, allotted_seconds - self.accounted_seconds))
        split[since] += latest
        split[TimeClass.AWAY] += self._unexplained(allotted_seconds) - latest
        return split

    def close(self, allotted_seconds: float, *, since: TimeClass, gone: bool) -> None:
        """Fix everything as ``split`` returns it now, as the job is over."""
        seconds = self.split(allotted_seconds, since=since, gone=gone)
        self.seconds, self.accounted_seconds = seconds, allotted_seconds
        self.trained_seconds, self.steps, self.settled, self.marks = 0.0, 0, {}, []

    def at_rest(self) -> "Account":
        """The account for a restarted syncer: learners will load the model again, so what is pending is lost."""
        settled, pending = dict(self.settled), self.steps - fsum(self.settled.values())
        if pending > 0:
            settled[TimeClass.LOST] = settled.get(TimeClass.LOST, 0.0) + pending
        return Account(
            self.seconds, self.trained_seconds, self.steps, settled, self.accounted_seconds, self.step, self.spent
        )

    def _unexplained(self, allotted_seconds: float) -> float:
        return max(0.0, allotted_seconds - fsum((*self.seconds.values(), self.trained_seconds)))

    def _add(self, into: TimeClass, seconds: float) -> None:
        self.seconds[into] = self.seconds.get(into, 0.0) + seconds

    def _settle(self, fragment: int, steps: float, into: TimeClass) -> None:
        if steps > 0:
            self.settled[into] = self.settled.get(into, 0.0) + steps * self.shares[fragment]
