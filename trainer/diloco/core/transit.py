"""How long fragments are under way between learners and the syncer, in closed form: links, queues, leads, waits.

Every fragment of a cycle is followed through the links in its turn, so one that is much larger than the others holds up
those behind it here as it does on the wire. Pure.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from diloco.core.leads import AnswerTime, best_leads
from diloco.core.links import LearnerGroup, Situation
from diloco.core.requests import LONGEST_LEAD
from diloco.core.waiting import Candidate, wait_for


@dataclass(frozen=True, slots=True)
class Transit:
    """A group's way to the syncer and back: seconds by fragment, in the order in which they are due."""

    group: LearnerGroup
    answers: tuple[float, ...]
    """From the ask until the whole outer gradient is at the syncer."""
    deliveries: tuple[float, ...]
    """From the broadcast until the learner trains on the result: it comes in the middle of a step."""

    @property
    def step_seconds(self) -> float:
        """An inner step of the group."""
        assert self.group.step_seconds is not None
        return self.group.step_seconds

    @property
    def tokens_per_second(self) -> float:
        """Of the whole group."""
        return self.group.learners * self.group.tokens_per_step / self.step_seconds


@dataclass(frozen=True)
class Course:
    """How rounds go with these groups in them: seconds by fragment."""

    transits: tuple[Transit, ...]
    lead_steps: tuple[int, ...]
    """Of each group: how many steps before a launch it is asked."""
    step_seconds: float
    """Of the quorum's slowest learner."""
    merge_seconds: float

    @cached_property
    def waits(self) -> tuple[float, ...]:
        """From the launch until the last answer."""
        late = [self.lateness(place) for place in range(len(self.transits))]
        return tuple(max(0.0, *seconds) for seconds in zip(*late, strict=True))

    def lateness(self, place: int) -> tuple[float, ...]:
        """From the launch until the answer of the group in ``place``; below 0: before it."""
        lead_seconds = self.lead_steps[place] * self.step_seconds
        return tuple(answer - lead_seconds for answer in self.transits[place].answers)

    def rounds(self, quorum: int) -> tuple[float, ...]:
        """From the launch until the syncer has heard that as many learners as the quorum train on the result."""
        return tuple(
            wait + self.merge_seconds + self._return_to(quorum, fragment) for fragment, wait in enumerate(self.waits)
        )

    def in_vain(self, place: int) -> tuple[float, ...]:
        """From when the group in ``place`` is told to bring a fragment until it trains on the result."""
        transit = self.transits[place]
        ahead = self.lead_steps[place] * self.step_seconds - transit.group.link.round_trip_seconds / 2
        return tuple(
            max(0.0, ahead + wait) + self.merge_seconds + delivery
            for wait, delivery in zip(self.waits, transit.deliveries, strict=True)
        )

    def _return_to(self, quorum: int, fragment: int) -> float:
        returns = sorted(
            (one.deliveries[fragment] + one.group.link.round_trip_seconds / 2, one.group.learners)
            for one in self.transits
        )
        return returns[_place_of(quorum, [learners for _, learners in returns])][0]


def transits(situation: Situation, step_seconds: float) -> tuple[Transit, ...]:
    """Each group's ways, with everyone else's fragments on the links they share."""
    return tuple(_Links(situation, step_seconds).transits())


def course(ways: Sequence[Transit], situation: Situation, step_seconds: float) -> Course:
    """How rounds go with the groups of ``ways`` in them, who are asked ahead as the engine does."""
    times = {
        way.group.name: AnswerTime(mean(way.answers), deviation(way.answers), way.tokens_per_second) for way in ways
    }
    leads = best_leads(times, step_seconds, situation.exchange.interval // LONGEST_LEAD)
    steps = tuple(leads.steps[way.group.name] for way in ways)
    return Course(tuple(ways), steps, step_seconds, situation.merge_seconds)


def in_time(whole: Course, situation: Situation, overlap: int) -> tuple[Transit, ...]:
    """Those groups of ``whole`` whose answers a round of ``situation`` waits for, by the engine's own rule."""
    quorum, cycle_seconds = situation.exchange.quorum, situation.exchange.interval * whole.step_seconds
    arrivals = sorted((max(0.0, mean(whole.lateness(place))), place) for place in range(len(whole.transits)))
    if not arrivals:
        return ()
    quorum_at = arrivals[_place_of(quorum, [whole.transits[place].group.learners for _, place in arrivals])][0]
    candidates = [
        Candidate(
            learner=way.group.name,
            since=0.0,
            usual_seconds=at,
            deviation_seconds=0.0,
            stake_tokens=way.tokens_per_second * cycle_seconds,
            missed=False,
        )
        for at, way in ((at, whole.transits[place]) for at, place in arrivals)
        if at > quorum_at
    ]
    speed = math.fsum(way.tokens_per_second for way in whole.transits)
    bound_at = max(quorum_at, overlap * whole.step_seconds)
    awaited = wait_for(
        candidates, quorum_at, bound_at, tokens_per_second=speed, step_seconds=whole.step_seconds
    ).deadlines
    early = {whole.transits[place].group.name for at, place in arrivals if at <= quorum_at}
    return tuple(way for way in whole.transits if way.group.name in early or way.group.name in awaited)


class _Links:
    """Fragments on their way through each link, reckoned once for all links that are alike."""

    def __init__(self, situation: Situation, step_seconds: float) -> None:
        exchange = situation.exchange
        self._situation = situation
        self._due_seconds = [due * step_seconds for due in exchange.due_steps]
        self._cycle_seconds = exchange.interval * step_seconds
        self._passages: dict[tuple[tuple[int, ...], float], list[float]] = {}
        self._by_link = {
            link.name: (
                self._passage(exchange.up_bytes, link.up_bytes_per_second / learners),
                self._passage(exchange.down_bytes, link.down_bytes_per_second / learners),
            )
            for link, learners in situation.links
        }

    def transits(self) -> Iterator[Transit]:
        own_up, own_down = self._by_link[self._situation.syncer.name]
        for group in self._situation.groups:
            up, down = self._by_link[group.link.name]
            round_trip = group.link.round_trip_seconds
            # What passes two links one after the other takes as long as on the slower one: it flows through both.
            answers = tuple(round_trip + max(both) for both in zip(up, own_up, strict=True))
            till_swap = round_trip / 2 + (group.step_seconds or 0.0) / 2
            yield Transit(group, answers, tuple(till_swap + max(both) for both in zip(down, own_down, strict=True)))

    def _passage(self, sizes: tuple[int, ...], bytes_per_second: float) -> list[float]:
        """From when each fragment is due until it is through; ``bytes_per_second``: of each learner's share."""
        key = (sizes, bytes_per_second)
        if key not in self._passages:
            self._passages[key] = self._queue([size / bytes_per_second for size in sizes])
        return self._passages[key]

    def _queue(self, seconds: list[float]) -> list[float]:
        passed = [0.0] * len(seconds)
        free_at = 0.0
        for start in (0.0, self._cycle_seconds):  # the second time the queue is as it always is, unless it grows
            for fragment, (taken, due) in enumerate(zip(seconds, self._due_seconds, strict=True)):
                free_at = max(free_at, start + due) + taken
                passed[fragment] = free_at - start - due
        return passed


def _place_of(quorum: int, learners: Sequence[int]) -> int:
    """Where in a row of groups the quorum is full; the last place where it never is."""
    counted = 0
    for place, count in enumerate(learners):
        counted += count
        if counted >= quorum:
            return place
    return len(learners) - 1


def mean(values: Sequence[float]) -> float:
    """0 where there are none."""
    return math.fsum(values) / len(values) if values else 0.0


def deviation(values: Sequence[float]) -> float:
    """Mean distance from the mean, as the engine measures it."""
    middle = mean(values)
    return mean([abs(value - middle) for value in values])
