"""Makes the world of a run from its record: step times from the tapes, links and restarts from the last status.

So a plan or a simulation of the next job begins with what was measured.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum, inf, isfinite
from statistics import fmean, median, quantiles, stdev
from typing import Any, Final

from diloco.core.account.time_class import COMPUTING, TimeClass
from diloco.core.engine.actions import AskFragment
from diloco.core.engine.events import (
    Attempt,
    FragmentArrived,
    FragmentDeclined,
    LearnerJoined,
    LearnerReady,
    Merged,
    StepReported,
)
from diloco.core.sizes import F32
from diloco.local.directory import RunDirectory
from diloco.local.report import timeline
from diloco.local.status_poll import read_status
from diloco.runtime.journal import read_journal
from diloco.spec import DiLoCoJob
from diloco.spec.names.learner_ids import pool_of, region_of
from diloco.spec.status.engine import LearnerStatus, RecoveryStatus
from diloco.spec.status.syncer import SyncerStatus
from diloco.syncer.reporting.decisions import JOURNAL
from diloco.tape.reader import TapeEntry, TapeReader, Torn
from diloco.tape.segments import find_tapes
from diloco.wire.parts import BLOCK_BYTES
from diloco.world.reading import world_from

_MOST_TIMES: Final = 20_000
"""Step times of a pool that are kept; beyond it every second one goes."""
_LEAST_STEPS: Final = 20
"""With fewer, their deviation is not known."""
_LEAST_ANSWERS: Final = 20
"""With fewer, a learner that answered at once without a queue in its way may not be among them."""
_PARTS: Final = 20
"""The longest and the shortest twentieth do not count for the deviation: the first steps are among them."""
_MEDIAN_OF_TWO: Final = 1.48
"""Of the sum of the absolute values of two normal variables, in standard deviations of one."""


class RecordError(ValueError):
    """No world can be made of the run; the text is one line that names it and why."""


Lines = Iterable[TapeEntry | Torn]
"""The tape of one epoch."""


def read_world(job: DiLoCoJob, directory: RunDirectory) -> dict[str, Any]:
    """The world of the run in a directory.

    Raises:
        RecordError, SpecError: see `world_of_run`.
        StatusError: its syncer has left no status.
        TapeError: a tape was changed.
        OSError: the journal cannot be read.
    """
    status = read_status(directory.syncer)
    journal = read_journal(directory.syncer / JOURNAL)
    found = [one.recovery for one in timeline.recoveries(journal, timeline.RunClock(journal))]
    return world_of_run(job, status, found, map(TapeReader, find_tapes(directory.syncer / "tape")))


def world_of_run(
    job: DiLoCoJob, status: SyncerStatus, recoveries: Sequence[RecoveryStatus], tapes: Iterable[Lines]
) -> dict[str, Any]:
    """The world as a world file has it: what was measured, and nothing else.

    ``status``: the last one. ``recoveries``: all that the syncer's journal has; the mean of those counts.

    Raises:
        RecordError: no learner of the job has made a step.
        SpecError: what was measured cannot be of a world.
    """
    steps, answers, starts = dict[str, _Some](), _Answers(), _Starts()
    for lines in tapes:
        _hear(lines, steps, answers, starts)
    # A run that was resumed may have had others.
    by_pool = {place: some.seconds for place, some in steps.items() if place in job.spec.pools}
    if not by_pool:
        raise RecordError(f"{job.metadata.name}: no learner has made a step in this run; use one that has trained")
    rates = _rates(status, answers)
    regions: dict[str, dict[str, Any]] = {}
    for region in job.spec.regions:
        learners, rate = sum(pool.size for pool in region.pools), rates.get(region.name, inf)
        made = _link(answers, region.name, learners, rate) if isfinite(rate) else {}
        loaded_seconds = learners * F32.payload_bytes(status.parameters) / rate
        for pool in region.pools:
            place = f"{region.name}/{pool.name}"
            if place in by_pool:
                own = [one for one in status.learners if pool_of(one.id) == place]
                again = [one for one in recoveries if pool_of(one.learner) == place and one.restarted and one.down > 0]
                found = _steps(own, by_pool[place])
                if (seconds := starts.mean_seconds(place, loaded_seconds)) > 0:
                    found["startSeconds"] = _rounded(seconds)
                found |= _preemptions(own, again)
                made.setdefault("pools", {})[pool.name] = found
        if made:
            regions[region.name] = made
    world = {"regions": regions}
    world_from(world, f"the record of {job.metadata.name}")
    return world


def _hear(lines: Lines, steps: dict[str, "_Some"], answers: "_Answers", starts: "_Starts") -> None:
    """Keep what the tape of an epoch tells: step times by pool, and how soon learners have answered and begun."""
    answers.begin()
    starts.begin()
    for line in lines:
        if isinstance(line, TapeEntry):
            if isinstance(line.event, StepReported):
                steps.setdefault(pool_of(line.event.learner), _Some()).add(line.event.step_seconds)
            answers.hear(line)
            starts.hear(line)


class _Some:
    """Some of many times in seconds, evenly spread over the run."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._seen, self._stride = 0, 1

    def add(self, seconds: float) -> None:
        self._seen += 1
        if self._seen % self._stride:
            return
        self.seconds.append(seconds)
        if len(self.seconds) > _MOST_TIMES:
            del self.seconds[1::2]
            self._stride *= 2


class _Starts:
    """How long new processes took from their join until they had the model and began to train, by pool."""

    def __init__(self) -> None:
        self._processes: dict[str, str] = {}
        """By learner: the process that joined last."""
        self._joined: dict[str, float] = {}
        self._seconds: dict[str, dict[str, list[float]]] = {}
        """By pool and learner."""

    def begin(self) -> None:
        """An epoch begins."""
        self._joined.clear()

    def hear(self, line: TapeEntry) -> None:
        """Take the next line of its tape."""
        match line.event:
            case LearnerJoined(learner=learner, instance=instance):
                self._joined.pop(learner, None)
                if self._processes.get(learner) != instance:
                    self._joined[learner] = line.now
                self._processes[learner] = instance
            case LearnerReady(learner=learner) if learner in self._joined:
                taken = line.now - self._joined.pop(learner)
                self._seconds.setdefault(pool_of(learner), {}).setdefault(learner, []).append(taken)

    def mean_seconds(self, place: str, loaded_seconds: float) -> float:
        """Without the time that the model takes to arrive; 0: none is known.

        ``loaded_seconds``: in which all learners of the region can receive the model. At their first start they do so
        together; one that comes back takes its part of that.
        """
        learners = self._seconds.get(place, {})
        later = [one - loaded_seconds / len(learners) for some in learners.values() for one in some[1:]]
        found = [*later, *(some[0] - loaded_seconds for some in learners.values())]
        return fmean(found) if found else 0.0


@dataclass
class _Request:
    """A request for an outer gradient that is not answered yet."""

    key: tuple[int, int, int]
    at: float
    alone: bool
    """No other fragment of the region was asked for at the same time."""


class _Answers:
    """How soon learners have answered a request, by region."""

    def __init__(self) -> None:
        self._asked: dict[str, dict[tuple[int, str], _Request]] = {}
        """By region, fragment and learner: the latest request."""
        self._counts: dict[str, int] = {}
        self._least: dict[str, dict[int, float]] = {}
        """By region and the answer's bytes: the least time in seconds."""
        self._alone: dict[str, dict[int, _Some]] = {}
        """The same: times of answers with nothing but the same fragment of other learners in their way."""

    def begin(self) -> None:
        """An epoch begins."""
        self._asked.clear()

    def hear(self, line: TapeEntry) -> None:
        """Take the next line of its tape."""
        match line.event:
            case FragmentArrived():
                self._answered(line.event, line.event.payload_bytes, line.now)
            case FragmentDeclined():
                self._answered(line.event, 0, line.now)
            case Merged():
                for asked in self._asked.values():
                    for one in [one for one in asked if one[0] == line.event.fragment]:
                        del asked[one]
        for action in line.actions:
            if isinstance(action, AskFragment):
                self._ask(action, line.now)

    def _ask(self, action: AskFragment, now: float) -> None:
        asked = self._asked.setdefault(region_of(action.learner), {})
        others = [one for (fragment, _), one in asked.items() if fragment != action.fragment]
        for one in others:
            one.alone = False
        key = action.incarnation, action.version, action.attempt
        asked[action.fragment, action.learner] = _Request(key, now, alone=not others)

    def _answered(self, event: Attempt, size_bytes: int, now: float) -> None:
        region = region_of(event.learner)
        asked = self._asked.get(region, {})
        one = asked.get((event.fragment, event.learner))
        if one is None or one.key != event.key:
            return
        del asked[event.fragment, event.learner]
        self._counts[region] = self._counts.get(region, 0) + 1
        least = self._least.setdefault(region, {})
        least[size_bytes] = min(now - one.at, least.get(size_bytes, inf))
        if one.alone:
            self._alone.setdefault(region, {}).setdefault(size_bytes, _Some()).add(now - one.at)

    def bytes_per_second(self, region: str) -> float | None:
        """What the least answers of large fragments take longer than those of small ones. None: it cannot be told.

        It is for fragments of one part, whose transfers the syncer cannot time. Other learners' only slow them down.
        """
        least = self._least.get(region, {})
        if self._counts.get(region, 0) < _LEAST_ANSWERS or max(least) > BLOCK_BYTES:
            return None
        large = [size for size in least if size > max(least) / 2]
        small = [(seconds, size) for size, seconds in least.items() if size <= max(least) / 2]
        if not small:
            return None
        begin, smallest = min(small)
        rates = ((size - smallest) / (least[size] - begin) for size in large if least[size] > begin)
        return max(rates, default=None)

    def round_trip_seconds(self, region: str, bytes_per_second: float) -> float | None:
        """The least answer without the time that its bytes take. None: it cannot be told.

        Most answers wait in a queue or for the end of a step, so a mean of them says nothing about the round trip.
        """
        if self._counts.get(region, 0) < _LEAST_ANSWERS:
            return None
        found = min(seconds - size / bytes_per_second for size, seconds in self._least[region].items())
        return found if found > 0 else None

    def jitter_seconds(self, region: str, learners: int, bytes_per_second: float, round_trip_seconds: float) -> float:
        """Of a message, so that half of the answers with a free link take as long as they do."""
        times = [
            seconds - round_trip_seconds - learners * size / bytes_per_second
            for size, some in self._alone.get(region, {}).items()
            for seconds in some.seconds
        ]
        return max(0.0, median(times) / _MEDIAN_OF_TWO) if len(times) >= _LEAST_ANSWERS else 0.0


def _steps(learners: Sequence[LearnerStatus], seconds: Sequence[float]) -> dict[str, float]:
    """The mean of all the time that learners computed, with that between steps; the deviation of reported times."""

    def spent(*kinds: TimeClass) -> float:
        return fsum(one.time_seconds.get(kind, 0.0) for one in learners for kind in kinds)

    computed, between = spent(*COMPUTING), spent(TimeClass.OVERHEAD)
    steps = sum(one.steps for one in learners)
    middle = (computed + between) / steps if computed and steps else fmean(seconds)
    found = {"stepSeconds": _rounded(middle)}
    if len(seconds) >= _LEAST_STEPS:
        low, *_, high = quantiles(seconds, n=_PARTS)
        usual = [one for one in seconds if low <= one <= high]
        found["stepDeviation"] = _rounded(min(1.0, stdev(usual) / fmean(usual))) if len(usual) > 1 else 0.0
    if between:
        found["betweenSteps"] = _rounded(between / (computed + between))
    return found


def _rates(status: SyncerStatus, answers: _Answers) -> dict[str, float]:
    """Bytes a second of each region's link, where known."""
    links = status.measured_links
    found = {one.region: answers.bytes_per_second(one.region) or one.up_bytes_per_second for one in links}
    return {region: rate for region, rate in found.items() if rate}


def _link(answers: _Answers, region: str, learners: int, rate: float) -> dict[str, Any]:
    found: dict[str, Any] = {"link": f"{_rounded(8e-6 * rate):g}Mbit/s"}
    if trip := answers.round_trip_seconds(region, rate):
        found["roundTripSeconds"] = _rounded(trip)
        if jitter := answers.jitter_seconds(region, learners, rate, trip):
            found["jitterSeconds"] = _rounded(jitter)
    return found


def _preemptions(learners: Sequence[LearnerStatus], recoveries: Sequence[RecoveryStatus]) -> dict[str, Any]:
    """How often a learner of the pool was lost in an hour in which it was there, and how long it was away."""
    lost = sum(one.restarts for one in learners)
    away = [one.down for one in recoveries]
    # Not by the known recoveries: a long journal has the latest only, and those of elastic pools may not be allotted.
    loading = lost * fmean(one.loading for one in recoveries) if recoveries else 0.0
    hours = (
        fsum(one.allotted_seconds - one.time_seconds.get(TimeClass.AWAY, 0.0) for one in learners) + loading
    ) / 3600
    if not lost or hours <= 0:
        return {}
    found: dict[str, Any] = {"preemptionsPerHour": _rounded(lost / hours), "preemptionNoticeSeconds": 0}
    if away:
        found["recovery"] = {"meanSeconds": _rounded(fmean(away))}
    return found


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
