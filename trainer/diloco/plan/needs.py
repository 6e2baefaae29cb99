"""What a job needs of its links: bytes by region and direction, rate, connections, and time for each fragment. Pure.

Bytes are exact for a number of rounds: every learner pushes every fragment and receives the result. How many rounds a
budget takes follows from the share of work that is merged, which `plan.fit.fit` computes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from diloco.plan.fit.fit import FULL, Fit
from diloco.plan.fit.situation import Exchange, Situation
from diloco.plan.fit.transit import Transit, transits
from diloco.world.rates import connections_for

_HALF_STEP: Final = 0.5
"""Steps lost to each exchange of a fragment if links and merges take no time."""


@dataclass(frozen=True, slots=True)
class FragmentTimes:
    """One fragment between the slowest learners of a region and the syncer."""

    up_bytes: int
    down_bytes: int
    """As an update, if ``sync.downlink`` encodes them."""
    up_seconds: float
    """From the request until the whole outer gradient is at the syncer."""
    down_seconds: float
    """From the merge until the learner has received the result."""
    hidden: bool
    """Whether its learners can train all the time that it is under way, and have it before it is due again."""


@dataclass(frozen=True, slots=True)
class RegionNeeds:
    """What the learners of a region need together."""

    region: str
    learners: int
    up_bytes: int
    """Of the whole job: outer gradients."""
    down_bytes: int
    """Of the whole job: the model for each learner when it joins, then merged fragments."""
    bytes_per_second_needed: float | None
    """The lowest rate, each way, of a link that is not too thin. None: no step time is known."""
    connections_needed: int | None
    """Connections of each learner that carry its part of that rate over the round trip. None: the same."""
    connections: int | None = None
    """Those that it has."""
    fragments: tuple[FragmentTimes, ...] = ()
    """In the order in which they are due; empty: no step time is known."""

    @property
    def hidden(self) -> int:
        """Number of fragments whose transfer hides behind computing."""
        return sum(one.hidden for one in self.fragments)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a job needs."""

    rounds: int
    at_least: bool
    """The share of work that is merged is not known, so there may be more rounds, and bytes."""
    seconds: float | None
    """Duration of the rounds, in which the first learners join at once. None: no step time is known."""
    regions: tuple[RegionNeeds, ...]


def needs(situation: Situation, result: Fit, budget_tokens: int, connections: Mapping[str, int] | None = None) -> Needs:
    """What a job with this budget of merged tokens needs; ``result``: its fit; ``connections``: given, by region."""
    given = connections or {}
    exchange = situation.exchange
    rounds = rounds_until(situation, result, budget_tokens)
    up, down = job_bytes(exchange, rounds)
    ways = () if result.step_seconds is None else transits(situation, result.step_seconds)
    uses = {use.name: use for use in result.links}
    thin = {use.name for use in result.links if use.too_thin}
    regions = []
    for link, learners in situation.links[:-1]:  # without the syncer's own
        use = uses.get(link.name)
        rate = None if use is None else max(use.up_bytes_per_hour, use.down_bytes_per_hour) / 3600 / FULL
        mine = [way for way in ways if any(group.link.name == link.name for group in way.groups)]
        carried = not thin & {link.name, situation.syncer.name}
        regions.append(
            RegionNeeds(
                region=link.name,
                learners=learners,
                up_bytes=learners * up,
                down_bytes=learners * down,
                bytes_per_second_needed=rate,
                connections_needed=None if rate is None else connections_for(rate / learners, link.round_trip_seconds),
                connections=given.get(link.name),
                fragments=tuple(_fragments(situation, mine, result.step_seconds, carried=carried)),
            )
        )
    steps = rounds * exchange.interval / _count(exchange)
    seconds = None if result.step_seconds is None else steps * result.step_seconds
    return Needs(rounds, not result.merged_share, seconds, tuple(regions))


def job_bytes(exchange: Exchange, rounds: int) -> tuple[int, int]:
    """Bytes that a learner sends and receives in this many rounds, payloads only: it takes part in all of them."""
    cycles, rest = divmod(rounds, _count(exchange))
    up = cycles * sum(exchange.up_bytes) + sum(exchange.up_bytes[:rest])
    down = cycles * sum(exchange.down_bytes) + sum(exchange.down_bytes[:rest])
    return up, exchange.load_bytes + down


def rounds_until(situation: Situation, result: Fit, budget_tokens: int) -> int:
    """Merges until ``budget_tokens`` are merged: fragment by fragment, each by its share of the model.

    A fragment's first merge takes in what was trained until it is due, each later one an interval, less what is lost.
    Where nothing is known to be merged, as little is lost as possible.
    """
    exchange = situation.exchange
    interval, total = exchange.interval, sum(exchange.numels)
    by_fragment = []
    shares = {one.name: one for one in result.groups}
    for numel, due in zip(exchange.numels, exchange.due_steps, strict=True):
        first = later = 0.0
        for group in situation.groups:
            taken = shares.get(group.name)
            merged = None if taken is None else taken.merged_share
            lead = 0 if taken is None or taken.lead_steps is None else taken.lead_steps
            speed = group.learners * group.tokens_per_step * _pace(result.step_seconds, group.step_seconds)
            first += speed * max(0.0, due - lead)
            later += speed * (interval * merged if merged else interval - _HALF_STEP)
        by_fragment.append((first * numel / total, later * numel / total))
    first_tokens, later_tokens = (math.fsum(column) for column in zip(*by_fragment, strict=True))
    if budget_tokens <= first_tokens:
        return _rounds_within([first for first, _ in by_fragment], budget_tokens)
    cycles, rest = divmod(budget_tokens - first_tokens, later_tokens)
    return _count(exchange) * (1 + int(cycles)) + _rounds_within([later for _, later in by_fragment], rest)


def _rounds_within(tokens: Sequence[float], budget_tokens: float) -> int:
    """How many of ``tokens``, in order, reach the budget; all if they do not."""
    merged = 0.0
    for place, more in enumerate(tokens):
        if merged >= budget_tokens:
            return place
        merged += more
    return len(tokens)


def _pace(quorum_step_seconds: float | None, step_seconds: float | None) -> float:
    """Steps of a learner in a step of the quorum's slowest; 1 if they are not known."""
    return 1.0 if quorum_step_seconds is None or step_seconds is None else quorum_step_seconds / step_seconds


def _fragments(
    situation: Situation, ways: Sequence[Transit], step_seconds: float | None, *, carried: bool
) -> Iterator[FragmentTimes]:
    if not ways or step_seconds is None:
        return
    exchange = situation.exchange
    bound = exchange.staleness_bound_steps
    for place, (up_bytes, down_bytes) in enumerate(zip(exchange.up_bytes, exchange.down_bytes, strict=True)):
        hidden = carried
        for way in ways:
            room = exchange.interval * step_seconds
            if bound is not None:
                room = min(room, (bound - exchange.interval) * way.step_seconds)
            hidden = hidden and way.answers[place] + situation.merge_seconds + way.deliveries[place] <= room
        yield FragmentTimes(
            up_bytes,
            down_bytes,
            max(way.answers[place] for way in ways),
            max(way.deliveries[place] - way.step_seconds / 2 for way in ways),
            hidden,
        )


def _count(exchange: Exchange) -> int:
    return len(exchange.numels)
