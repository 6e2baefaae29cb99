"""The conditions that a job is planned for: links of regions and of the syncer, and durations of inner steps.

It also reads them from the arguments of ``diloco plan`` (``--link us-west=200Mbit/s,80ms``, ``--step us-west/old=0.5``)
and of ``diloco run`` (``--emulate-link us-west=200Mbit/s,80ms``).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from diloco.plan import PlanError
from diloco.spec import JobSpec
from diloco.spec.quantities import parse_duration, parse_rate
from diloco.spec.words import listed

SYNCER: Final = "syncer"
"""Name of the syncer's own link in ``--link``."""
EVERY: Final = "*"
_MOST_NAMES = 6


@dataclass(frozen=True, slots=True)
class RegionLink:
    """The link between a region and the syncer; the region's learners share it."""

    bytes_per_second: float = math.inf
    round_trip_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class World:
    """Links and step times, which are not in the job."""

    links: Mapping[str, RegionLink] = field(default_factory=dict)
    """By region; a region without one has an unlimited link."""
    syncer_bytes_per_second: float = math.inf
    """Each way; all learners share it."""
    step_seconds: Mapping[str, float] = field(default_factory=dict)
    """Duration of an inner step by pool, ``region/pool``. Empty: not known; else every pool with learners has one."""

    def link(self, region: str) -> RegionLink:
        """The link of a region."""
        return self.links.get(region, RegionLink())


def read_world(
    spec: JobSpec, link_texts: Sequence[str], step_texts: Sequence[str], *, link_flag: str = "--link"
) -> World:
    """The world that these arguments describe. If several name one region or pool, the last one counts.

    Raises:
        PlanError, QuantityError: an argument cannot be read, names nothing of the job, or some pools have a step time
            and others none.
    """
    regions = tuple(region.name for region in spec.regions)
    links: dict[str, RegionLink] = {}
    syncer = math.inf
    for text in link_texts:
        flag = f"{link_flag} {text}"
        name, value = _named(flag, text, "REGION=RATE or REGION=RATE,RTT, such as us-west=200Mbit/s,80ms")
        if name == SYNCER:
            syncer = _syncer_rate(flag, value, regions)
            continue
        link = _link(flag, value)
        for region in _meant(flag, name, (*regions, SYNCER), regions):
            links[region] = link
    return World(links, syncer, _steps(spec, step_texts))


def _link(flag: str, value: str) -> RegionLink:
    rate, comma, round_trip = value.partition(",")
    bytes_per_second = parse_rate(flag, rate)
    return RegionLink(bytes_per_second, parse_duration(flag, round_trip) if comma else 0.0)


def _syncer_rate(flag: str, value: str, regions: Sequence[str]) -> float:
    if SYNCER in regions:
        raise PlanError(
            f"{flag}: {SYNCER!r} is a region of this job and also means the syncer's own link; rename the region"
        )
    if "," in value:
        raise PlanError(
            f"{flag}: {value!r} has a round trip, which only links of regions have; use {SYNCER}=RATE alone"
        )
    return parse_rate(flag, value)


def _steps(spec: JobSpec, texts: Sequence[str]) -> dict[str, float]:
    pools = tuple(place for place, pool in spec.pools.items() if pool.size)
    steps: dict[str, float] = {}
    for text in texts:
        flag = f"--step {text}"
        name, value = _named(flag, text, "REGION=SECONDS or REGION/POOL=SECONDS, such as us-west/old=0.5")
        seconds = parse_duration(flag, value, bare_seconds=True)
        names = tuple(dict.fromkeys((*(pool.partition("/")[0] for pool in pools), *pools)))
        for meant in _meant(flag, name, names, pools):
            steps.update({pool: seconds for pool in pools if pool == meant or pool.startswith(f"{meant}/")})
    missing = [pool for pool in pools if pool not in steps]
    if steps and missing:
        raise PlanError(
            f"--step: is missing for {listed(missing[:_MOST_NAMES], 'and')}; use it for every pool, as in "
            f"--step '{EVERY}=0.5', or for none"
        )
    return steps


def _named(flag: str, text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise PlanError(f"{flag}: {text!r} is not NAME=VALUE; use {form}")
    return name, value


def _meant(flag: str, name: str, known: Iterable[str], every: Sequence[str]) -> Sequence[str]:
    if name == EVERY:
        return every
    names = list(known)
    if name not in names:
        more = ["..."] if len(names) > _MOST_NAMES else []
        raise PlanError(
            f"{flag}: {name!r} is not in this job; use {listed([*names[:_MOST_NAMES], *more, repr(EVERY)])}"
        )
    return (name,)
