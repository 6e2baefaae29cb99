"""How much of each link the exchange of fragments takes. Arithmetic: bytes, rates and step times."""

from dataclasses import dataclass
from typing import Final

from diloco.plan.situation import Exchange, Link, Situation, rate_text

FULL: Final = 0.95
"""Share of a link that fragments may take (ours): above it a burst is not absorbed before the next."""


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
    def share(self) -> float:
        """Of the fuller direction."""
        return max(self.up_share, self.down_share)

    @property
    def too_thin(self) -> bool:
        """Whether it cannot carry the exchange."""
        return self.share > FULL


def link_uses(situation: Situation) -> tuple[LinkUse, ...]:
    """The regions' links, then the syncer's. None while a step time is not known."""
    step_seconds = situation.quorum_step_seconds
    if step_seconds is None:
        return ()
    cycle_seconds = situation.exchange.interval * step_seconds
    return tuple(_use(situation.exchange, link, learners, cycle_seconds) for link, learners in situation.links)


def merging_share(situation: Situation) -> float:
    """Share of an interval in which the syncer merges; 0 while a step time is not known."""
    exchange, step_seconds = situation.exchange, situation.quorum_step_seconds
    if not step_seconds:
        return 0.0
    return situation.merge_seconds * len(exchange.numels) / (exchange.interval * step_seconds)


def thin_text(situation: Situation, uses: tuple[LinkUse, ...]) -> str:
    """Which links are too thin, in words; empty: none is."""
    thin = sorted((use for use in uses if use.too_thin), key=lambda use: -use.share)
    if not thin:
        return ""
    use, more = thin[0], f", and {len(thin) - 1} more" if len(thin) > 1 else ""
    ways = {"outer gradients on the way up": use.up_share, "merged fragments on the way down": use.down_share}
    way = max(ways, key=lambda name: ways[name])
    link = next(link for link, _ in situation.links if link.name == use.name)
    used = f"used to {100 * use.share:.0f} % by {way} of {use.learners} learner(s)"
    return f"the link {use.name} would be {used}{_limit(link)}{more}"


def _limit(link: Link) -> str:
    if not link.limited:
        return ""
    rates = rate_text(link.up_bytes_per_second), rate_text(link.link_bytes_per_second)
    return f", of the {rates[0]} that {link.connections} connections of each learner carry of its {rates[1]}"


def _use(exchange: Exchange, link: Link, learners: int, cycle_seconds: float) -> LinkUse:
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
