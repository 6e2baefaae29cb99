"""What the manifest says about each region's link: over how many connections transfers go, and how fast at most."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from diloco.spec.names.learner_ids import region_of
from diloco.spec.placement import Region
from diloco.spec.quantities import parse_rate
from diloco.wire.channel import DEFAULT_CONNECTIONS
from diloco.wire.server.bandwidth import Limit, LimitOf, LoadLimit


@dataclass(frozen=True, slots=True)
class LinkTerms:
    """How a learner's transfers are made."""

    connections: int = DEFAULT_CONNECTIONS
    bytes_per_second: float = 0.0
    """Most of all learners of its region together, each way; 0: no limit."""


def terms_of(regions: Mapping[str, Region]) -> Callable[[str], LinkTerms]:
    """The terms of a learner, by its id. Regions may be added to ``regions``, which has them by name, later."""

    def terms(learner: str) -> LinkTerms:
        region = regions.get(region_of(learner))
        if region is None:
            return LinkTerms()
        limit = region.bandwidth
        return LinkTerms(region.connections, 0.0 if limit is None else parse_rate(f"{region.name}: bandwidth", limit))

    return terms


def limits_of(regions: Mapping[str, Region], loads: Callable[[str], bool] = lambda _: False) -> LimitOf:
    """The limit of a learner's region, by the learner's id: one for all learners of a region.

    What is sent to a learner that ``loads`` the model goes behind the merged fragments for the others.
    """
    terms = terms_of(regions)
    limits: dict[str, Limit] = {}

    def limit_of(learner: str) -> Limit | None:
        rate, region = terms(learner).bytes_per_second, region_of(learner)
        if not rate:
            return None
        limit = limits.setdefault(region, Limit(rate))
        return LoadLimit(limit) if loads(learner) else limit

    return limit_of
