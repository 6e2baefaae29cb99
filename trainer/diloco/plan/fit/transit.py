"""Computes how long fragments are under way between learners and the syncer: links, queues, leads, waits.

Every fragment of a cycle is followed through the links in order, so one that is much larger than the others delays
those behind it here as on the wire. Closed form; pure.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from diloco.core.engine.rounds.leads import AnswerTime, Leads, best_leads
from diloco.core.engine.rounds.requests import LONGEST_LEAD
from diloco.core.engine.rounds.waiting import Candidate, wait_for
from diloco.plan.fit.situation import LearnerGroup, Situation


@dataclass(frozen=True, slots=True)
class Transit:
    """Times of some learners' fragments to the syncer and back: seconds by fragment, in the order they are due."""

    groups: tuple[LearnerGroup, ...]
    """The groups of these learners, which are alike in their links and steps."""
    answers: tuple[float, ...]
    """From the request until the whole outer gradient is at the syncer."""
    deliveries: tuple[float, ...]
    """From the broadcast until the learner trains on the result, which arrives in the middle of a step on average."""

    @property
    def name(self) -> str:
        """Of the first group."""
        return self.groups[0].name

    @property
    def learners(self) -> int:
        """Of all groups."""
        return sum(group.learners for group in self.groups)

    @property
    def step_seconds(self) -> float:
        """An inner step."""
        assert self.groups[0].step_seconds is not None
        return self.groups[0].step_seconds

    @property
    def round_trip_seconds(self) -> float:
        """Of the links."""
        return self.groups[0].link.round_trip_seconds

    @property
    def tokens_per_second(self) -> float:
        """Of all learners."""
        return self.learners * self.groups[0].tokens_per_step / self.step_seconds


@dataclass(frozen=True)
class Course:
    """Durations of rounds with these learners: seconds by fragment."""

    transits: tuple[Transit, ...]
    lead_steps: tuple[tuple[int, ...], ...]
    """For each of them, by fragment: how many steps before a launch they are asked."""
    step_seconds: float
    """Of the quorum's slowest learner."""
    merge_seconds: float

    @cached_property
    def waits(self) -> tuple[float, ...]:
        """From the launch until the last answer."""
        late = [self.lateness(place) for place in range(len(self.transits))]
        return tuple(max(0.0, *seconds) for seconds in zip(*late, strict=True))

    def lateness(self, place: int) -> tuple[float, ...]:
        """From the launch until the answer of those in ``place``; below 0: before the launch."""
        ways = zip(self.transits[place].answers, self.lead_steps[place], strict=True)
        return tuple(answer - steps * self.step_seconds for answer, steps in ways)

    def rounds(self, quorum: int) -> tuple[float, ...]:
        """From the launch until the syncer has heard that as many learners as the quorum train on the result."""
        return tuple(
            wait + self.merge_seconds + self._return_to(quorum, fragment) for fragment, wait in enumerate(self.waits)
        )

    def lost_seconds(self, place: int) -> tuple[float, ...]:
        """From the request to those in ``place`` until they train on the result."""
        transit = self.transits[place]
        ahead = [steps * self.step_seconds - transit.round_trip_seconds / 2 for steps in self.lead_steps[place]]
        return tuple(
            max(0.0, early + wait) + self.merge_seconds + delivery
            for early, wait, delivery in zip(ahead, self.waits, transit.deliveries, strict=True)
        )

    def _return_to(self, quorum: int, fragment: int) -> float:
        returns = sorted((one.deliveries[fragment] + one.round_trip_seconds / 2, one.learners) for one in self.transits)
        return returns[_place_of(quorum, [learners for _, learners in returns])][0]


def transits(situation: Situation, step_seconds: float) -> tuple[Transit, ...]:
    """Every group's transit, with the other groups' fragments on the links they share; groups that are alike as one."""
    return tuple(_Links(situation, step_seconds).transits())


def course(ways: Sequence[Transit], situation: Situation, step_seconds: float) -> Course:
    """The course of rounds with the learners of ``ways``, which are asked ahead as the engine does."""
    longest = situation.exchange.interval // LONGEST_LEAD
    leads: dict[tuple[float, ...], Leads] = {}
    steps = []
    for answers in zip(*(way.answers for way in ways), strict=True):
        if answers not in leads:  # most fragments are alike
            times = {
                way.name: AnswerTime(answer, 0.0, way.tokens_per_second)
                for way, answer in zip(ways, answers, strict=True)
            }
            leads[answers] = best_leads(times, step_seconds, longest)
        steps.append([leads[answers].steps[way.name] for way in ways])
    return Course(tuple(ways), tuple(zip(*steps, strict=True)), step_seconds, situation.merge_seconds)


def in_time(whole: Course, situation: Situation, overlap: int) -> tuple[Transit, ...]:
    """Those of ``whole`` whose answers a round of ``situation`` waits for, by the engine's own rule."""
    quorum, cycle_seconds = situation.exchange.quorum, situation.exchange.interval * whole.step_seconds
    arrivals = sorted((max(0.0, mean(whole.lateness(place))), place) for place in range(len(whole.transits)))
    if not arrivals:
        return ()
    quorum_at = arrivals[_place_of(quorum, [whole.transits[place].learners for _, place in arrivals])][0]
    candidates = [
        Candidate(
            learner=way.name,
            since=0.0,
            usual_seconds=at,
            deviation_seconds=0.0,
            stake_tokens=way.tokens_per_second * cycle_seconds,
            missed=False,
        )
        for at, way in ((at, whole.transits[place]) for at, place in arrivals)
    ]
    speed = math.fsum(way.tokens_per_second for way in whole.transits)
    bound_at = max(quorum_at, overlap * whole.step_seconds)
    awaited = wait_for(
        candidates, quorum_at, bound_at, tokens_per_second=speed, step_seconds=whole.step_seconds
    ).deadlines
    early = {whole.transits[place].name for at, place in arrivals if at <= quorum_at}
    return tuple(way for way in whole.transits if way.name in early or way.name in awaited)


class _Links:
    """Fragments on their way through the links, computed once for all that are alike."""

    def __init__(self, situation: Situation, step_seconds: float) -> None:
        exchange = situation.exchange
        self._situation = situation
        self._due_seconds = [due * step_seconds for due in exchange.due_steps]
        self._cycle_seconds = exchange.interval * step_seconds

    def transits(self) -> Iterator[Transit]:
        situation, exchange = self._situation, self._situation.exchange
        alike: dict[tuple[float, ...], list[LearnerGroup]] = {}
        behind = {link.name: learners for link, learners in situation.links}
        for group in situation.groups:
            link, sharers = group.link, behind[group.link.name]
            up, down = link.up_bytes_per_second / sharers, link.down_bytes_per_second / sharers
            key = (up, down, link.round_trip_seconds, group.step_seconds or 0.0, group.tokens_per_step)
            alike.setdefault(key, []).append(group)
        own = situation.syncer
        for (up, down, round_trip, step_seconds, _), groups in alike.items():
            # Passing two links in a row takes as long as the slower one, as a fragment flows through both at once.
            ups = self._passage(exchange.up_bytes, min(up, own.up_bytes_per_second / situation.learners))
            downs = self._passage(exchange.down_bytes, min(down, own.down_bytes_per_second / situation.learners))
            till_swap = round_trip / 2 + step_seconds / 2
            yield Transit(
                tuple(groups), tuple(round_trip + one for one in ups), tuple(till_swap + one for one in downs)
            )

    def _passage(self, sizes: Sequence[int], bytes_per_second: float) -> list[float]:
        """From when each fragment is due until it is through; ``bytes_per_second``: of each learner's share."""
        passed: list[float] = []
        free_at = 0.0
        for start in (0.0, self._cycle_seconds):  # in the second cycle the queue is steady, unless it grows
            passed.clear()
            for size, due in zip(sizes, self._due_seconds, strict=True):
                free_at = max(free_at, start + due) + size / bytes_per_second
                passed.append(free_at - start - due)
        return passed


def _place_of(quorum: int, learners: Sequence[int]) -> int:
    """Index of the group in a sequence that completes the quorum; the last one if none does."""
    counted = 0
    for place, count in enumerate(learners):
        counted += count
        if counted >= quorum:
            return place
    return len(learners) - 1


def mean(values: Sequence[float]) -> float:
    """The mean; 0 if there are no values."""
    return math.fsum(values) / len(values) if values else 0.0


def deviation(values: Sequence[float]) -> float:
    """Mean distance from the mean, as the engine measures it."""
    middle = mean(values)
    return mean([abs(value - middle) for value in values])
