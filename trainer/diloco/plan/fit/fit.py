"""Computes in closed form whether overlap, interval and links fit together (ours).

A fragment is due every H/P steps of the K-th fastest learner. Its outer gradients and its merged values go over every
link between a learner and the syncer, so sizes, rates and step times determine how much of each link is used, how long
a round takes, and how much of a learner's work is merged. Pure; `remedies` finds what would help.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from math import ceil
from operator import itemgetter
from statistics import median_low
from typing import Final

from diloco.plan.fit.situation import Exchange, Link, Situation, rate_text
from diloco.plan.fit.transit import Course, Transit, course, deviation, in_time, mean, transits
from diloco.spec.words import listed

FULL: Final = 0.95
"""Share of a link that fragments may take (ours): above it a burst is not absorbed before the next."""
LEAST_OVERLAP: Final = 2
"""Steps of an overlap that the engine chooses: the paper's."""
PAUSE: Final = 0.05
"""Share of the time between two launches for which learners may stand still at the staleness bound (ours)."""
LOST: Final = 0.5
"""Share of an interval for which a fragment may be under way (ours): the engine's leads end there, too."""
_MOST_NAMES: Final = 5


class FitKind(StrEnum):
    """The verdicts. Of several misfits the first one here is reported."""

    STEP_TIME_UNKNOWN = "StepTimeUnknown"
    LINK_TOO_THIN = "LinkTooThin"
    MERGES_TOO_SLOW = "MergesTooSlow"
    """The syncer takes longer to merge all fragments than an interval."""
    ROUND_TOO_LONG = "RoundTooLong"
    """Some fragments are under way, or some steps take, for so long that most of the work is lost at this interval."""
    STALENESS_BOUND_TOO_LOW = "StalenessBoundTooLow"
    """A round takes longer than the staleness bound leaves beyond the interval."""
    OVERLAP_TOO_SHORT = "OverlapTooShort"
    FITS = "Fits"


@dataclass(frozen=True, slots=True)
class LinkUse:
    """How much of a link the exchange takes."""

    name: str
    learners: int
    up_share: float
    """Of what it can carry; above 1: more."""
    down_share: float
    up_bytes_per_hour: float
    down_bytes_per_hour: float
    load_seconds: float
    """Time in which a joining learner loads the whole model, with nothing else on the link."""

    @property
    def too_thin(self) -> bool:
        """Whether it cannot carry the exchange."""
        return max(self.up_share, self.down_share) > FULL


@dataclass(frozen=True, slots=True)
class GroupFit:
    """How a group of learners takes part."""

    name: str
    learners: int
    tokens_per_second: float
    lead_steps: int | None = None
    """Steps before a launch at which it is asked, for most fragments. None: not carried; the same below."""
    in_flight_seconds: float | None = None
    """From its copy of a fragment until it trains on the new version, on average: what it trains meanwhile is lost."""
    merged_share: float | None = None

    @property
    def carried(self) -> bool:
        """Whether its outer gradients arrive in time, round after round."""
        return self.merged_share is not None


@dataclass(frozen=True, slots=True)
class Fit:
    """The result for a situation."""

    kind: FitKind
    reason: str
    links: tuple[LinkUse, ...] = ()
    """The regions', then the syncer's. Empty while no step time is known, as are the groups."""
    groups: tuple[GroupFit, ...] = ()
    step_seconds: float | None = None
    """An inner step of the K-th fastest learner: the schedule counts in these."""
    round_seconds: float | None = None
    """From the launch of a round until all learners that can be carried train on the result, on average."""
    overlap_needed: int | None = None
    """The least tau that holds it. None: not known, or a link is too thin for any."""
    overlap: int | None = None
    """tau as it is set, or as the engine would choose it."""

    @property
    def fits(self) -> bool:
        """Whether nothing is wrong."""
        return self.kind is FitKind.FITS

    @property
    def merged_share(self) -> float | None:
        """Expected share of all work that is merged; None if it is not known for every group."""
        trained = sum(group.tokens_per_second for group in self.groups)
        merged = [one.merged_share * one.tokens_per_second for one in self.groups if one.merged_share is not None]
        return sum(merged) / trained if trained > 0 and len(merged) == len(self.groups) else None


def fit(situation: Situation) -> Fit:
    """Compute the fit of a situation."""
    step_seconds = situation.quorum_step_seconds
    if step_seconds is None:
        return Fit(FitKind.STEP_TIME_UNKNOWN, "the duration of an inner step is not known")
    exchange = situation.exchange
    uses = tuple(_use(exchange, link, learners, step_seconds) for link, learners in situation.links)
    thin = {use.name for use in uses if use.too_thin}
    ways = transits(situation, step_seconds)
    able = tuple(way for way in ways if not thin & {way.groups[0].link.name, situation.syncer.name})
    rounds = _Rounds(situation, course(able, situation, step_seconds))
    kind, reason = _verdict(rounds, situation, uses)
    carried = rounds.carried
    return Fit(
        kind=kind,
        reason=reason,
        links=uses,
        groups=_groups(situation, ways, carried),
        step_seconds=step_seconds,
        round_seconds=mean(carried.rounds(situation.learners)) if carried.transits else None,
        overlap_needed=None if thin else rounds.overlap_needed,
        overlap=rounds.overlap,
    )


def _use(exchange: Exchange, link: Link, learners: int, step_seconds: float) -> LinkUse:
    cycle_seconds = exchange.interval * step_seconds
    up, down = (learners * sum(sizes) / cycle_seconds for sizes in (exchange.up_bytes, exchange.down_bytes))
    return LinkUse(
        link.name,
        learners,
        up / link.up_bytes_per_second,
        down / link.down_bytes_per_second,
        up * 3600,
        down * 3600,
        exchange.load_bytes / link.down_bytes_per_second,
    )


class _Rounds:
    """Rounds with the learners that take part in them, and the overlap that they need."""

    def __init__(self, situation: Situation, everyone: Course) -> None:
        """``everyone``: with all groups whose links are not too thin."""
        self._situation = situation
        self._exchange = situation.exchange
        self.everyone = everyone
        self.held = self._with(self._exchange.longest_overlap)
        """With those that the longest overlap can hold."""
        chosen = self._exchange.overlap
        self.overlap = self._automatic() if chosen is None else chosen
        self.carried = self.held if chosen is None else self._with(chosen)

    @property
    def overlap_needed(self) -> int:
        """The least tau with which every answer that any tau admits is in time, and rounds start when they are due."""
        late = (self._steps(max(0.0, mean(self.held.lateness(place)))) for place in range(len(self.held.transits)))
        awaited = 0 if self._exchange.quorum >= self._situation.learners else max(late, default=0)
        fragments, interval = len(self._exchange.numels), self._exchange.interval
        # tau lets ceil(tau P / H) fragments be in flight.
        in_flight = ceil(self.steps_in_flight * fragments / interval)
        return max(awaited, (in_flight - 1) * interval // fragments + 1 if in_flight > 1 else 0)

    @property
    def steps_in_flight(self) -> float:
        """From a launch until the syncer has heard that as many learners as the quorum train on the result."""
        return _usual(self.held.rounds(self._exchange.quorum)) / self.held.step_seconds

    @property
    def text(self) -> str:
        """How long a round takes, as text."""
        return f"a round takes {self.steps_in_flight:.1f} steps of {self.everyone.step_seconds:.3g} s"

    @property
    def longest_under_way(self) -> tuple[float, str]:
        """Steps, beyond one, from a learner's copy of a fragment until it swaps in the result; with that learner.

        It does both between its own steps, so one that makes long steps loses more.
        """
        held = self.held
        lost = ((mean(held.lost_seconds(place)) + way.step_seconds / 2, way) for place, way in enumerate(held.transits))
        seconds, way = max(lost, key=itemgetter(0))
        return seconds / held.step_seconds - 1, f"{way.name}, whose steps take {way.step_seconds:.3g} s"

    def _automatic(self) -> int:
        """Tau as the engine finds it: as many fragments in flight as keep the schedule."""
        longest = self._exchange.longest_overlap
        return max(min(LEAST_OVERLAP, self._exchange.interval - 1), min(self.overlap_needed, longest))

    def _with(self, overlap: int) -> Course:
        ways = in_time(self.everyone, self._situation, overlap)
        return course(ways, self._situation, self.everyone.step_seconds)

    def _steps(self, seconds: float) -> int:
        return ceil(seconds / self.everyone.step_seconds)


def _usual(seconds: tuple[float, ...]) -> float:
    """An upper estimate for most fragments: the mean plus the mean deviation from it."""
    return mean(seconds) + deviation(seconds)


def _verdict(rounds: _Rounds, situation: Situation, uses: tuple[LinkUse, ...]) -> tuple[FitKind, str]:
    fullest = max(uses, key=lambda use: max(use.up_share, use.down_share))
    share = max(fullest.up_share, fullest.down_share)
    used = f"the fullest link, {fullest.name}, is used to {100 * share:.0f} %" if share else "no link limits it"
    fits = (FitKind.FITS, f"{rounds.text}, and {used}")
    return next(chain(_of_the_ends(situation, rounds, uses), _of_the_schedule(situation, rounds)), fits)


def _of_the_ends(situation: Situation, rounds: _Rounds, uses: tuple[LinkUse, ...]) -> Iterator[tuple[FitKind, str]]:
    """What links and the syncer cannot do, whatever the overlap."""
    exchange, step_seconds = situation.exchange, rounds.everyone.step_seconds
    thin = sorted((use for use in uses if use.too_thin), key=lambda use: -max(use.up_share, use.down_share))
    if thin:
        more = f", and {len(thin) - 1} more" if len(thin) > 1 else ""
        link = next(link for link, _ in situation.links if link.name == thin[0].name)
        yield FitKind.LINK_TOO_THIN, f"{_thinness(thin[0])}{_limit(link)}{more}"
    seconds, cycle_seconds = situation.merge_seconds * len(exchange.numels), exchange.interval * step_seconds
    if seconds > FULL * cycle_seconds:
        share = 100 * seconds / cycle_seconds
        text = f"merging every fragment takes the syncer {seconds:.3g} s, {share:.0f} % of an interval"
        yield FitKind.MERGES_TOO_SLOW, text


def _of_the_schedule(situation: Situation, rounds: _Rounds) -> Iterator[tuple[FitKind, str]]:
    """What interval, staleness bound and overlap do not leave room for."""
    exchange, interval = situation.exchange, situation.exchange.interval
    held = set(rounds.held.transits)
    late = [group.name for way in rounds.everyone.transits if way not in held for group in way.groups]
    if late:
        whose = listed(late[:_MOST_NAMES], "and")
        text = f"answers of {whose} come too late for a round to wait for at an interval of {interval} steps"
        yield FitKind.ROUND_TOO_LONG, text
    under_way, learner = rounds.longest_under_way
    if under_way > LOST * interval:
        text = f"a fragment is under way for {under_way:.1f} of the interval's {interval} steps"
        text += f" of {rounds.everyone.step_seconds:.3g} s at {learner}, so most of its work on it is lost"
        yield FitKind.ROUND_TOO_LONG, text
    if exchange.staleness_bound_steps is not None:
        slack = exchange.staleness_bound_steps - interval
        if (rounds.steps_in_flight - slack) * len(exchange.numels) / interval > PAUSE:
            text = f"{rounds.text}, and the staleness bound leaves {slack} beyond the interval, so learners pause"
            yield FitKind.STALENESS_BOUND_TOO_LOW, text
    if rounds.overlap < rounds.overlap_needed or len(rounds.carried.transits) < len(rounds.held.transits):
        text = f"{rounds.text} and needs an overlap of {rounds.overlap_needed}, not {rounds.overlap}"
        yield FitKind.OVERLAP_TOO_SHORT, text


def _thinness(use: LinkUse) -> str:
    share, way = max(
        (use.up_share, "outer gradients on the way up"), (use.down_share, "merged fragments on the way down")
    )
    return f"the link {use.name} would be used to {100 * share:.0f} % by {way} of {use.learners} learner(s)"


def _limit(link: Link) -> str:
    if not link.limited:
        return ""
    rates = rate_text(link.up_bytes_per_second), rate_text(link.link_bytes_per_second)
    return f", of the {rates[0]} that {link.connections} connections of each learner carry of its {rates[1]}"


def _groups(situation: Situation, ways: Sequence[Transit], carried: Course) -> tuple[GroupFit, ...]:
    """In the situation's order."""
    fits: dict[str, GroupFit] = {}
    for way in ways:
        place = carried.transits.index(way) if way in carried.transits else None
        for group in way.groups:
            speed = group.learners * group.tokens_per_step / way.step_seconds
            alone = GroupFit(group.name, group.learners, speed)
            fits[group.name] = alone if place is None else _taking_part(alone, situation.exchange, carried, place)
    return tuple(fits[group.name] for group in situation.groups)


def _taking_part(group: GroupFit, exchange: Exchange, carried: Course, place: int) -> GroupFit:
    seconds, step_seconds = carried.lost_seconds(place), carried.transits[place].step_seconds
    # A copy is of the step before the ask, so half a step more is lost than the fragment is in flight.
    cycle_seconds = exchange.interval * carried.step_seconds
    shares = [max(0.0, 1 - (one + step_seconds / 2) / cycle_seconds) for one in seconds]
    weighted = sum(share * numel for share, numel in zip(shares, exchange.numels, strict=True)) / sum(exchange.numels)
    return replace(
        group, lead_steps=median_low(carried.lead_steps[place]), in_flight_seconds=mean(seconds), merged_share=weighted
    )
