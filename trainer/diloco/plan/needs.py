"""What a job needs of its links: bytes by region and direction, rate and connections. Arithmetic; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from diloco.plan.links import FULL, LinkUse, link_uses
from diloco.plan.plan import Plan
from diloco.plan.situation import Exchange, Situation
from diloco.world.rates import connections_for


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


@dataclass(frozen=True, slots=True)
class Needs:
    """What a job needs."""

    merges: int
    at_least: bool
    """The share of work that is merged is not known, so there may be more merges, and bytes."""
    regions: tuple[RegionNeeds, ...]


def needs(made: Plan, merges: int | None, sent: Mapping[str, tuple[int, int]] | None = None) -> Needs:
    """What a planned job needs.

    Args:
        made: The plan.
        merges: Of the whole job. None: as few as possible, as none is known.
        sent: Bytes of the whole job up and down, by region. None: every learner is in every merge.
    """
    situation, spec = made.situation, made.job.spec
    count = least_merges(situation, spec.training.tokens) if merges is None else merges
    up, down = job_bytes(situation.exchange, count)
    uses = {use.name: use for use in link_uses(situation)}
    regions = []
    for link, learners in situation.links[:-1]:  # without the syncer's own
        rate = _rate(uses.get(link.name))
        up_bytes, down_bytes = (learners * up, learners * down) if sent is None else sent[link.name]
        regions.append(
            RegionNeeds(
                region=link.name,
                learners=learners,
                up_bytes=up_bytes,
                down_bytes=down_bytes,
                bytes_per_second_needed=rate,
                connections_needed=None if rate is None else connections_for(rate / learners, link.round_trip_seconds),
                connections=spec.regions_by_name[link.name].connections,
            )
        )
    return Needs(count, merges is None, tuple(regions))


def _rate(use: LinkUse | None) -> float | None:
    return None if use is None else max(use.up_bytes_per_hour, use.down_bytes_per_hour) / 3600 / FULL


def job_bytes(exchange: Exchange, merges: int) -> tuple[int, int]:
    """Bytes that a learner sends and receives in so many merges, payloads only: it takes part in all of them."""
    cycles, rest = divmod(merges, len(exchange.numels))
    up = cycles * sum(exchange.up_bytes) + sum(exchange.up_bytes[:rest])
    down = cycles * sum(exchange.down_bytes) + sum(exchange.down_bytes[:rest])
    return up, exchange.load_bytes + down


def least_merges(situation: Situation, budget_tokens: int) -> int:
    """Merges until ``budget_tokens`` are merged if nothing is lost."""
    exchange = situation.exchange
    return max(1, ceil(budget_tokens / situation.tokens_in_a_step / exchange.interval * len(exchange.numels)))
