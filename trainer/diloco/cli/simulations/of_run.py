"""Makes the world of a run from its record: step times from the tapes, links, restarts and recoveries.

So a plan or a simulation of the next job begins with what was measured.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import fsum, inf
from statistics import fmean, quantiles, stdev
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from diloco.core.engine.actions import AskFragment
from diloco.core.engine.events import Attempt, FragmentArrived, FragmentDeclined, StepReported
from diloco.core.fragments import Layout
from diloco.local.directory import RunDirectory
from diloco.local.report.history import RunHistory
from diloco.local.report.history_builder import HistoryBuilder
from diloco.runtime.journal import Entry
from diloco.spec import DiLoCoJob
from diloco.spec.names.learner_ids import pool_of, region_of
from diloco.spec.status.syncer import MeasuredLinkStatus
from diloco.tape.reader import TapeEntry, TapeHeader, TapeReader, Torn
from diloco.tape.segments import find_tapes
from diloco.world.reading import world_from

_MOST_STEPS: Final = 20_000
"""Step times of a pool that are kept; beyond it every second one goes."""
_LEAST_STEPS: Final = 20
"""With fewer, their deviation is not known."""
_LEAST_ANSWERS: Final = 20
"""With fewer, a learner that answered at once without a queue in its way may not be among them."""
_PARTS: Final = 20
"""The longest and the shortest twentieth do not count for the deviation: the first steps are among them."""
_LINKS: Final = TypeAdapter(tuple[MeasuredLinkStatus, ...])


class RecordError(ValueError):
    """No world can be made of the run; the text is one line that names it and why."""


Tape = tuple[TapeHeader, Iterable[TapeEntry | Torn]]
"""The record of one epoch."""


def read_tapes(directory: RunDirectory) -> Iterator[Tape]:
    """The tapes of a run, oldest first.

    Raises:
        TapeError: a tape was changed.
    """
    for files in find_tapes(directory.syncer / "tape"):
        reader = TapeReader(files)
        yield reader.header, reader


def world_of_run(job: DiLoCoJob, layout: Layout, journal: Sequence[Entry], tapes: Iterable[Tape]) -> dict[str, Any]:
    """The world as a world file has it: what was measured, and nothing else.

    Raises:
        RecordError: no learner of the job has made a step, or the journal is damaged.
        SpecError: what was measured cannot be of a world.
    """
    steps, answers = _StepTimes(), _Answers()
    builder = HistoryBuilder(job, layout, journal)
    for header, lines in tapes:
        builder.take(header, answers.heard(steps.heard(lines)))
    # A run that was resumed may have had others.
    by_pool = {place: seconds for place, seconds in steps.by_pool.items() if place in job.spec.pools}
    if not by_pool:
        raise RecordError(f"{job.metadata.name}: no learner has made a step in this run; use one that has trained")
    try:
        history, links = builder.history(), _links(journal, answers)
    except ValidationError as error:
        first = error.errors()[0]
        what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise RecordError(f"{job.metadata.name}: supervisor.jsonl is damaged ({what}); use another run") from None
    regions = {region.name: links[region.name] for region in job.spec.regions if region.name in links}
    for place, seconds in by_pool.items():
        pools = regions.setdefault(region_of(place), {}).setdefault("pools", {})
        pools[place.partition("/")[2]] = _steps(history, place, seconds) | _preemptions(history, place)
    made = {"regions": regions}
    world_from(made, f"the record of {job.metadata.name}")
    return made


class _StepTimes:
    """Step times by pool."""

    def __init__(self) -> None:
        self.by_pool: dict[str, list[float]] = {}
        self._strides: dict[str, int] = {}
        self._seen = 0

    def heard(self, lines: Iterable[TapeEntry | Torn]) -> Iterator[TapeEntry | Torn]:
        """Pass the lines of a tape on."""
        for line in lines:
            if isinstance(line, TapeEntry) and isinstance(line.event, StepReported):
                self._add(pool_of(line.event.learner), line.event.step_seconds)
            yield line

    def _add(self, place: str, seconds: float) -> None:
        self._seen += 1
        if self._seen % self._strides.setdefault(place, 1):
            return
        known = self.by_pool.setdefault(place, [])
        known.append(seconds)
        if len(known) > _MOST_STEPS:
            del known[1::2]
            self._strides[place] *= 2


class _Answers:
    """How soon learners have answered a request, by region."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, int], tuple[tuple[int, int, int], float]] = {}
        """Learner and fragment -> the latest request and when it was made."""
        self._counts: dict[str, int] = {}
        self._least: dict[tuple[str, int], float] = {}
        """By region and the answer's bytes: the least time in seconds."""

    def heard(self, lines: Iterable[TapeEntry | Torn]) -> Iterator[TapeEntry | Torn]:
        """Pass the lines of a tape on."""
        self._asked.clear()
        for line in lines:
            if isinstance(line, TapeEntry):
                if isinstance(line.event, FragmentArrived):
                    self._answered(line.event, line.event.payload_bytes, line.now)
                elif isinstance(line.event, FragmentDeclined):
                    self._answered(line.event, 0, line.now)
                for action in line.actions:
                    if isinstance(action, AskFragment):
                        key = action.incarnation, action.version, action.attempt
                        self._asked[action.learner, action.fragment] = key, line.now
            yield line

    def _answered(self, event: Attempt, size_bytes: int, now: float) -> None:
        key, at = self._asked.get((event.learner, event.fragment), (None, 0.0))
        if key != event.key:
            return
        del self._asked[event.learner, event.fragment]
        region = region_of(event.learner)
        self._counts[region] = self._counts.get(region, 0) + 1
        self._least[region, size_bytes] = min(now - at, self._least.get((region, size_bytes), inf))

    def round_trip_seconds(self, region: str, bytes_per_second: float) -> float | None:
        """The least answer without the time that its bytes take. None: it cannot be told.

        Most answers wait in a queue or for the end of a step, so a mean of them says nothing about the round trip.
        """
        if self._counts.get(region, 0) < _LEAST_ANSWERS:
            return None
        times = [seconds - size / bytes_per_second for (where, size), seconds in self._least.items() if where == region]
        return least if (least := min(times)) > 0 else None


def _steps(history: RunHistory, place: str, seconds: Sequence[float]) -> dict[str, float]:
    """The mean of all the time that learners computed; the deviation of reported times without the extremes."""
    learners = [one for one in history.learners if pool_of(one.id) == place]
    computed = fsum((one.goodput or 0.0) * one.allotted_seconds for one in learners)
    steps = sum(one.steps for one in learners)
    middle = computed / steps if computed and steps else fmean(seconds)
    found = {"stepSeconds": _rounded(middle)}
    if len(seconds) >= _LEAST_STEPS:
        low, *_, high = quantiles(seconds, n=_PARTS)
        usual = [one for one in seconds if low <= one <= high]
        found["stepDeviation"] = _rounded(min(1.0, stdev(usual) / fmean(usual))) if len(usual) > 1 else 0.0
    return found


def _links(journal: Sequence[Entry], answers: _Answers) -> dict[str, dict[str, Any]]:
    """By region: the rate that the supervisor has noted last, and the round trip if the rate is known."""
    noted = [entry.details["links"] for entry in journal if entry.details.get("links")]
    found: dict[str, dict[str, Any]] = {}
    for one in _LINKS.validate_python(noted[-1]) if noted else ():
        if not (rate := one.up_bytes_per_second):
            continue
        link = found.setdefault(one.region, {})
        link["link"] = f"{_rounded(8e-6 * rate):g}Mbit/s"
        if trip := answers.round_trip_seconds(one.region, rate):
            link["roundTripSeconds"] = _rounded(trip)
    return found


def _preemptions(history: RunHistory, place: str) -> dict[str, Any]:
    """How often a learner of the pool was lost in an hour in which it was there, and how long it was away."""
    learners = [one for one in history.learners if pool_of(one.id) == place]
    lost = sum(one.restarts for one in learners)
    away = [
        one.recovery.down
        for one in history.recoveries
        if one.recovery.restarted and pool_of(one.recovery.learner) == place and one.recovery.down > 0
    ]
    hours = (fsum(one.allotted_seconds for one in learners) - fsum(away)) / 3600
    if not lost or hours <= 0:
        return {}
    found: dict[str, Any] = {"preemptionsPerHour": _rounded(lost / hours), "preemptionNoticeSeconds": 0}
    if away:
        found["recovery"] = {"meanSeconds": _rounded(fmean(away))}
    return found


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
