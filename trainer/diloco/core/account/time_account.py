"""Accounts for the time that a job is given: every second of a learner belongs to one class, and the classes add up.

A second of an inner step trains every fragment of the model. Whether it was useful is known later, and separately for
each fragment: it counts with the fragment's share of the model. So trained time is pending until a newer version of the
fragment is merged with it or is swapped in without it. Time without training is what the learner reports. A learner's
reports are never believed beyond the time that has passed, and time that no report covers is a class of its own.

Pure arithmetic on one learner's account.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from operator import attrgetter

from diloco.core.account.time_class import TimeClass
from diloco.core.account.time_spent import NO_TIME, TimeSpent

_UNTRAINED: Mapping[str, TimeClass] = {
    "skipped": TimeClass.UNUSABLE,
    "paused": TimeClass.WAITING,
    "copying": TimeClass.BETWEEN_STEPS,
    "looking": TimeClass.BETWEEN_STEPS,
    "evaluating": TimeClass.OVERHEAD,
    "checkpointing": TimeClass.OVERHEAD,
}
"""Kinds of a learner's report that are a class at once: field of ``TimeSpent`` -> class."""
_kinds = attrgetter("training", *_UNTRAINED)
_MOST_BEFORE = 4
"""How many versions behind an outer gradient may be to be found: ``sync.maxVersionLag`` is 1 unless set."""
_MOST_DUE = 4
"""Settlements of one fragment that may wait for the report of their steps: a correct learner has two."""


@dataclass(slots=True)
class _Interval:
    """What a learner trained on one version of a fragment and had not sent when it received the next."""

    version: int
    received_step: int
    start: int
    stop: int
    """Steps after ``start``, up to ``stop``."""
    seconds: float
    into: TimeClass
    """The class that they became."""


@dataclass(slots=True)
class Mark:
    """How far one fragment's part of the trained time is settled."""

    version: int
    """Version that the learner trains on; -1: it loads the fragment."""
    received_step: int
    """The learner's step at which it received that version."""
    step: int
    """Up to this step the trained time is settled."""
    seconds: float
    """Trained time up to that step."""
    held_seconds: float = 0.0
    """Captured and received by the syncer; whether it is merged is not known yet."""
    fate: TimeClass = TimeClass.LOST
    """The class of the unsettled steps if a newer version is swapped in now."""
    fate_version: int = -1
    """The version whose round decided that."""
    before: tuple[_Interval, ...] = ()
    """Intervals of older versions, not captured: an outer gradient measured from one may still be on its way."""


@dataclass(slots=True)
class _Due:
    """A settlement that waits for the report of its steps."""

    fragment: int
    step: int
    into: TimeClass
    ends: tuple[int, int] | None = None
    """Version whose interval ends with this settlement, and the step at which that version was received."""


@dataclass(slots=True)
class Account:
    """One learner's account. Times are seconds of its allotted time, which stands still while it does not count."""

    seconds: dict[TimeClass, float] = field(default_factory=dict)
    """Settled time by class. What the current process left unexplained is kept apart, as it may still explain it."""
    accounted_seconds: float = 0.0
    """Allotted time up to the last report or join."""
    absent_seconds: float = 0.0
    """Part of that between the last report of one session and the beginning of the next, not explained since."""
    unexplained_seconds: float = 0.0
    """Part of that beyond what the reports of this process cover."""
    trained_seconds: float = 0.0
    """Time of inner steps, since the syncer started."""
    settled_seconds: float = 0.0
    """Part of the trained time that is settled."""
    step: int = 0
    """The learner's step at its last report."""
    spent: TimeSpent = NO_TIME
    """What its process had reported by then."""
    shares: tuple[float, ...] = ()
    again: bool = False
    """The learner had an earlier session: what it loads now, it loads to rejoin."""
    marks: list[Mark] = field(default_factory=list)
    """By fragment; empty before the first join since the syncer started."""
    due: list[_Due] = field(default_factory=list)

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
        passed = max(0.0, allotted_seconds - self.accounted_seconds)
        self.accounted_seconds += passed
        self.shares, self.again = shares, allotted_seconds > 0  # its time counts from its first join
        if not same_process:
            self._end_process(step)
        self.absent_seconds += passed
        if len(self.marks) != len(held):
            self.marks = [Mark(version, self.step, self.step, self.trained_seconds) for version in held]
        for fragment, version in enumerate(held):
            if version < 0:
                self.marks[fragment].version = -1
            else:  # its notice went to the previous session
                self.received(fragment, version, step)

    def reported(self, allotted_seconds: float, step: int, spent: TimeSpent) -> None:
        """Account for the steps up to ``step``; ``spent``: how the learner's process has spent its time so far.

        Together with what was left unexplained, no more is believed than the time that has passed.
        """
        passed = max(0.0, allotted_seconds - self.accounted_seconds)
        room = passed + self.unexplained_seconds + self.absent_seconds
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
        explained = believed * total
        if spent.loading > before.loading and room > explained:
            # Last, and not scaled with the rest: what a process loads before its first session is not allotted time.
            loading = min(spent.loading - before.loading, room - explained)
            self._add(TimeClass.AWAY if self.again else TimeClass.LOADING, loading)
            explained += loading
        older = explained - passed
        from_unexplained = min(self.unexplained_seconds, older)  # negative: some of the time stays unexplained
        self.unexplained_seconds -= from_unexplained
        self.absent_seconds = max(0.0, self.absent_seconds - max(0.0, older - from_unexplained))
        self.accounted_seconds += passed
        self.step = max(self.step, step)
        waiting, self.due = self.due, []
        for one in waiting:
            if one.step > self.step:
                self.due.append(one)
            else:
                self._settle_now(one.fragment, one.step, one.into, one.ends)

    def received(self, fragment: int, version: int, step: int) -> None:
        """Note that a newer version was swapped in after ``step``, which ends the training on the one before."""
        mark = self.marks[fragment]
        if version <= mark.version:
            return
        self._settle(fragment, step, mark.fate, (mark.version, mark.received_step))
        mark.version = version
        mark.received_step = max(step, mark.received_step)
        if mark.fate_version <= version:
            mark.fate = TimeClass.LOST

    def captured(self, fragment: int, version: int, base_version: int, steps: int) -> None:
        """Note that the syncer has an outer gradient of ``steps`` steps since ``base_version``, for ``version``."""
        mark = self.marks[fragment]
        if base_version > mark.version:  # the notice of its receipt uses another connection, and is still on its way
            self.received(fragment, base_version, self.step - steps)
        if base_version == mark.version:
            self._settle(fragment, mark.received_step + steps, TimeClass.PENDING)
        for interval in mark.before:
            if interval.version == base_version:
                self._take_back(fragment, interval, steps)
        mark.fate, mark.fate_version = TimeClass.OVERWRITTEN, version

    def decided(self, fragment: int, into: TimeClass) -> None:
        """Note that the captured work is merged, or never will be."""
        mark = self.marks[fragment]
        self._finish(fragment, mark.held_seconds, into)
        mark.held_seconds = 0.0
        for one in self.due:
            if one.fragment == fragment and one.into is TimeClass.PENDING:
                one.into = into

    def declined(self, fragment: int, version: int) -> None:
        """Note that the learner declined a request for ``version``: it had no outer gradient that can be sent."""
        mark = self.marks[fragment]
        # One step of tolerance: a step may have been reported after the receipt and made before it.
        empty = self.step <= mark.received_step + 1
        mark.fate, mark.fate_version = TimeClass.OVERWRITTEN if empty else TimeClass.UNUSABLE, version

    def left_out(self, fragment: int, version: int, into: TimeClass) -> None:
        """Note that ``version`` is made without this learner. The first reason given for a version counts."""
        mark = self.marks[fragment]
        if mark.fate_version < version:
            mark.fate, mark.fate_version = into, version

    def split(self, allotted_seconds: float, *, since: TimeClass, gone: bool) -> dict[TimeClass, float]:
        """Seconds by class; every class is there, none is negative, and together they are ``allotted_seconds``.

        Args:
            allotted_seconds: The learner's allotted time so far.
            since: The class of the time since the last report.
            gone: The process will not return: its pending time is lost.
        """
        split = {one: self.seconds.get(one, 0.0) for one in TimeClass}
        split[TimeClass.AWAY] += self.absent_seconds
        split[TimeClass.UNEXPLAINED] += self.unexplained_seconds
        split[TimeClass.LOST if gone else TimeClass.PENDING] += max(0.0, self.trained_seconds - self.settled_seconds)
        split[since] += max(0.0, allotted_seconds - self.accounted_seconds)
        split[TimeClass.UNEXPLAINED] += max(0.0, allotted_seconds - fsum(split.values()))
        return split

    def close(self, allotted_seconds: float, *, since: TimeClass, gone: bool) -> None:
        """Fix everything as ``split`` returns it now, as the job is over."""
        self.seconds = self.split(allotted_seconds, since=since, gone=gone)
        self.accounted_seconds = allotted_seconds
        self.absent_seconds = self.unexplained_seconds = 0.0
        self.trained_seconds = self.settled_seconds = 0.0
        self.marks, self.due = [], []

    def kept(self) -> dict[TimeClass, float]:
        """Seconds by class for a restarted syncer: learners will load the model again, so nothing is pending."""
        return self.split(self.accounted_seconds, since=TimeClass.UNEXPLAINED, gone=True)

    def _add(self, into: TimeClass, seconds: float) -> None:
        self.seconds[into] = self.seconds.get(into, 0.0) + seconds

    def _finish(self, fragment: int, seconds: float, into: TimeClass) -> None:
        """Count trained time, with the fragment's share, to a class."""
        seconds *= self.shares[fragment]
        if seconds < 0:  # what is taken back was added
            seconds = max(seconds, -self.seconds.get(into, 0.0))
        self._add(into, seconds)
        self.settled_seconds += seconds

    def _end_process(self, step: int) -> None:
        """Another process begins, after ``step``: what the previous one had not sent is lost."""
        for fragment, mark in enumerate(self.marks):
            self._settle_now(fragment, self.step, TimeClass.LOST)
            self.marks[fragment] = Mark(-1, step, step, self.trained_seconds, mark.held_seconds)
        self._add(TimeClass.AWAY, self.absent_seconds)
        self._add(TimeClass.UNEXPLAINED, self.unexplained_seconds)
        self.absent_seconds = self.unexplained_seconds = 0.0
        self.step, self.spent = step, NO_TIME
        self.due.clear()

    def _settle(self, fragment: int, step: int, into: TimeClass, ends: tuple[int, int] | None = None) -> None:
        """Settle steps, or wait for their report."""
        due = self.due
        if step > self.step and (len(due) < _MOST_DUE or sum([one.fragment == fragment for one in due]) < _MOST_DUE):
            due.append(_Due(fragment, step, into, ends))
        else:
            self._settle_now(fragment, step, into, ends)

    def _settle_now(self, fragment: int, step: int, into: TimeClass, ends: tuple[int, int] | None = None) -> None:
        """Settle steps that are reported. Those since the last settlement count alike."""
        mark, step = self.marks[fragment], min(step, self.step)
        seconds = self.trained_seconds - mark.seconds
        if step < self.step:
            seconds *= (step - mark.step) / (self.step - mark.step) if step > mark.step else 0.0
        if ends is not None and mark.step == ends[1]:  # none of it was captured
            mark.before = (*mark.before, _Interval(*ends, mark.step, step, seconds, into))[-_MOST_BEFORE:]
        mark.step, mark.seconds = max(step, mark.step), mark.seconds + seconds
        if into == TimeClass.PENDING:
            mark.held_seconds += seconds
        else:
            self._finish(fragment, seconds, into)

    def _take_back(self, fragment: int, interval: _Interval, steps: int) -> None:
        """An outer gradient of ``steps`` steps came after the next version was received: it may still be merged."""
        stop = min(interval.received_step + steps, interval.stop)
        if stop <= interval.start:
            return
        seconds = interval.seconds * (stop - interval.start) / (interval.stop - interval.start)
        self._finish(fragment, -seconds, interval.into)
        self.marks[fragment].held_seconds += seconds
        interval.start, interval.seconds = stop, interval.seconds - seconds
