"""What is exchanged, over which links, between which learners.

Values only; they are assumed (``diloco plan``) or measured (a syncer's status).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Self

from diloco.core.sizes import ENCODINGS, F32, downlink_encoding, encoding_of
from diloco.spec import JobSpec
from diloco.spec.automatic import AUTO
from diloco.spec.placement import Region
from diloco.spec.quantities import parse_rate
from diloco.spec.sync import SyncSpec
from diloco.world.model import RegionWorld, World
from diloco.world.rates import bytes_per_second_of

DOWNLINKS: Final = ("F32", "BF16", "Int8")
"""In ``sync.downlink``, from the widest to the narrowest, without TopK."""
UPLINKS: Final = tuple(name for name, encoding in ENCODINGS.items() if not encoding.kept)
"""In ``sync.compression``, from the widest to the narrowest; without TopK, which costs loss in short runs."""
SYNCER_LINK: Final = "of the syncer"
"""Name of the syncer's own link; no region can have it."""


def rate_text(bytes_per_second: float) -> str:
    """``42.1 Mbit/s``: for links, whose rates are given in bits."""
    bits = 8 * bytes_per_second
    for factor, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bits >= factor:
            return f"{bits / factor:.3g} {unit}"
    return f"{bits:.3g} bit/s"


@dataclass(frozen=True, slots=True)
class Link:
    """A connection, shared by the learners behind it. An infinite rate means no limit."""

    name: str
    up_bytes_per_second: float = math.inf
    down_bytes_per_second: float = math.inf
    round_trip_seconds: float = 0.0
    connections: int | None = None
    """Of each learner, if they limit the rate, or did before there were more; None: they never did."""
    link_bytes_per_second: float = math.inf
    """What the link carries each way, with connections enough."""

    @property
    def limited(self) -> bool:
        """Whether connections limit its rate."""
        return self.connections is not None and self.up_bytes_per_second < self.link_bytes_per_second


@dataclass(frozen=True, slots=True)
class LearnerGroup:
    """Learners that are alike: of one pool, behind one link."""

    name: str
    learners: int
    link: Link
    step_seconds: float | None
    """An inner step; None: not known."""
    tokens_per_step: float = 1.0
    """Of one learner; the weight of its work relative to others'."""


@dataclass(frozen=True)
class Exchange:
    """What is exchanged, and how often."""

    numels: tuple[int, ...]
    """Parameters of each fragment."""
    interval: int
    """H."""
    overlap: int | None
    """tau; None: as many steps as a round needs."""
    staleness_bound_steps: int | None
    """None: so large, as by default, that it has no effect."""
    quorum: int
    """K."""
    compression: str
    """A name of `sizes.ENCODINGS`."""
    downlink: str
    """A value of ``sync.downlink``."""
    density: float | None = None
    """Of TopK; None: the default."""

    @classmethod
    def of(cls, sync: SyncSpec, numels: tuple[int, ...]) -> Self:
        """The exchange of a job with fragments of these sizes."""
        return cls(
            numels=numels,
            interval=sync.interval,
            overlap=None if sync.overlap == AUTO else int(sync.overlap),
            staleness_bound_steps=sync.max_staleness_steps,
            quorum=sync.quorum,
            compression=sync.compression,
            downlink=sync.downlink,
            density=sync.density,
        )

    @cached_property
    def up_bytes(self) -> tuple[int, ...]:
        """A learner's outer gradient of each fragment."""
        return tuple(encoding_of(self.compression, self.density).payload_bytes(numel) for numel in self.numels)

    @cached_property
    def down_bytes(self) -> tuple[int, ...]:
        """What a learner receives of each fragment."""
        return tuple(downlink_encoding(self.downlink, self.density).payload_bytes(numel) for numel in self.numels)

    @cached_property
    def load_bytes(self) -> int:
        """What a learner receives when it joins: every fragment as it is."""
        return sum(F32.payload_bytes(numel) for numel in self.numels)

    @property
    def longest_overlap(self) -> int:
        """The largest possible tau: below an interval, and no more than the staleness bound allows."""
        bound = self.staleness_bound_steps
        return max(0, self.interval - 1 if bound is None else min(self.interval - 1, bound - self.interval))


@dataclass(frozen=True, slots=True)
class Situation:
    """A job and its links."""

    exchange: Exchange
    groups: tuple[LearnerGroup, ...]
    syncer: Link = field(default_factory=lambda: Link(SYNCER_LINK))
    """The syncer's own connection, which all learners share."""
    merge_seconds: float = 0.0
    """Of one fragment."""

    @property
    def learners(self) -> int:
        """Of all groups."""
        return sum(group.learners for group in self.groups)

    @property
    def quorum_step_seconds(self) -> float | None:
        """An inner step of the K-th fastest learner, by which the schedule counts; None: not known."""
        known = [(group.step_seconds, group.learners) for group in self.groups if group.step_seconds is not None]
        if not known or len(known) < len(self.groups):
            return None
        counted = 0
        for step_seconds, learners in sorted(known):
            counted += learners
            if counted >= self.exchange.quorum:
                return step_seconds
        return max(known)[0]

    @property
    def tokens_in_a_step(self) -> float:
        """What all learners train in an inner step of that one. Learners whose steps are not known are as fast."""
        seconds = self.quorum_step_seconds
        return math.fsum(
            group.learners
            * group.tokens_per_step
            * (seconds / group.step_seconds if group.step_seconds and seconds else 1.0)
            for group in self.groups
        )

    @property
    def links(self) -> tuple[tuple[Link, int], ...]:
        """Every link with the learners behind it, the syncer's last."""
        behind: dict[str, int] = {}
        links: dict[str, Link] = {}
        for group in self.groups:
            links[group.link.name] = group.link
            behind[group.link.name] = behind.get(group.link.name, 0) + group.learners
        return (*((links[name], learners) for name, learners in behind.items()), (self.syncer, self.learners))


def situation_of(spec: JobSpec, world: World, numels: Sequence[int]) -> Situation:
    """The job in its world; ``numels``: parameters of each fragment."""
    exchange = Exchange.of(spec.sync, tuple(numels))
    groups = tuple(_groups(spec, world, sum(numels)))
    syncer = Link(SYNCER_LINK, world.syncer.bytes_per_second, world.syncer.bytes_per_second)
    merged_bytes = F32.payload_bytes(sum(numels)) / len(numels) * sum(group.learners for group in groups)
    return Situation(exchange, groups, syncer, merged_bytes / world.syncer.merge_bytes_per_second)


def _groups(spec: JobSpec, world: World, parameters: int) -> Iterator[LearnerGroup]:
    for region in spec.regions:
        link = _link(region, world.region(region.name))
        for pool in region.pools:
            if pool.size:
                name = f"{region.name}/{pool.name}"
                tokens = pool.batch_of(spec.training) * spec.training.sequence_length
                yield LearnerGroup(name, pool.size, link, world.step_seconds(spec, name, parameters), tokens)


def _link(region: Region, given: RegionWorld) -> Link:
    """A region's link, with what its learners together may and can use of it."""
    learners = sum(pool.size for pool in region.pools)
    used = learners * bytes_per_second_of(region.connections, given.round_trip_seconds) if learners else math.inf
    carried = line_rate(region, given)
    rate, connections = min(carried, used), region.connections if used < carried else None
    return Link(region.name, rate, rate, given.round_trip_seconds, connections, carried)


def line_rate(region: Region, given: RegionWorld) -> float:
    """Bytes a second that the link of a region carries, each way: of its rate and the manifest's bound the lower."""
    if region.bandwidth is None:
        return given.bytes_per_second
    return min(given.bytes_per_second, parse_rate(f"{region.name}: bandwidth", region.bandwidth))
