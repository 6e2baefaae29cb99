"""What a job costs in its world: accelerators and the syncer by the hour, bytes by the link. Arithmetic; pure."""

from collections.abc import Mapping
from math import fsum

from diloco.spec import JobSpec
from diloco.world.model import World

_GB = 1e9
_HOUR = 3600.0


def price_per_hour(spec: JobSpec, world: World) -> float:
    """Of all accelerators of the job and of its syncer."""
    pools = (
        pool.size * world.chips(spec, place) * world.pool(place).price_per_hour for place, pool in spec.pools.items()
    )
    return fsum(pools) + world.syncer.price_per_hour


def cost_of(spec: JobSpec, world: World, seconds: float, region_bytes: Mapping[str, float]) -> float:
    """Of this time, and of these bytes over the regions' links, both ways together."""
    links = (sent / _GB * world.region(region).price_per_gb for region, sent in region_bytes.items())
    return price_per_hour(spec, world) * seconds / _HOUR + fsum(links)
