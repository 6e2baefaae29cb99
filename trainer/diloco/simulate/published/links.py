"""Links between places: what data-parallel and decoupled training need, and how much faster one is over thin links.

The announcement gives results and few inputs. What is inferred is marked; each pair of figures has inputs of its own.
"""

from dataclasses import dataclass
from typing import Final

from diloco.core.sizes import ENCODINGS, all_reduce_share
from diloco.simulate.of_world import scenario_of
from diloco.simulate.published.bandwidth import Exchange, Model, utilization
from diloco.simulate.published.job import job_of
from diloco.simulate.training.counted import layout_of_sizes
from diloco.simulate.world import simulate_course
from diloco.spec.quantities import UNLIMITED
from diloco.world.model import EVERY, PoolWorld, RegionWorld, SyncerWorld, World

_BF16_BITS: Final = 16
FRAGMENTS: Final = 24
OVERLAP_STEPS: Final = 2


@dataclass(frozen=True, slots=True)
class Places:
    """Inputs of a pair of published rates."""

    model: Model
    places: int
    utilization: float
    interval: int
    bits: float
    """Of a parameter of an outer gradient."""

    def data_parallel(self) -> Exchange:
        """An all-reduce of BF16 gradients in each step, as a ring."""
        return Exchange(_BF16_BITS * all_reduce_share(self.places))

    def decoupled(self) -> Exchange:
        """Each fragment once in an interval."""
        return Exchange(self.bits, self.interval, FRAGMENTS, OVERLAP_STEPS)


FIVE: Final = Model(5e9, 72, 1.0)
"""Published: 5B parameters, steps of 1 s. Inferred: the layers."""
TWO_PLACES: Final = Places(FIVE, 2, 0.9, 48, _BF16_BITS)
"""Published: BF16, utilization 0.9. Inferred: the interval."""
EIGHT_PLACES: Final = Places(FIVE, 8, 0.95, 24, 8 * ENCODINGS["Int4"].parameter_bytes)
"""Inferred: the model, the utilization, Int4. Published: P = H = 24."""

TWELVE: Final = Model(12e9, 48, 2.0)
"""Published: 12B parameters. Inferred: layers and step."""
REGIONS: Final = 4
RATES_GBITS: Final = (2.0, 3.0, 4.0, 5.0)


def world_of(gbits: float, syncer_link: str = UNLIMITED) -> World:
    """The four regions. Published: the rate. Inferred: steps of 2 s, a round trip of 60 ms, the syncer's link."""
    pools = {EVERY: PoolWorld(step_seconds=TWELVE.step_seconds)}
    region = RegionWorld(link=f"{gbits:g}Gbit/s", round_trip_seconds=0.06, pools=pools)
    return World(regions={EVERY: region}, syncer=SyncerWorld(link=syncer_link))


def blocking_step_seconds(world: World) -> float:
    """A step of regions that all-reduce their gradients in BF16 in each step. They are spared the round trip."""
    gbits = 8 * world.region(EVERY).bytes_per_second / 1e9
    return TWELVE.step_seconds / utilization(TWELVE, Exchange(_BF16_BITS * all_reduce_share(REGIONS)), gbits)


def decoupled_step_seconds(world: World, seconds: float) -> float:
    """Time in which a learner's work of one step is merged, by the engine: Int4 up, Int8 down, a learner a region."""
    job = job_of(REGIONS, {"fragments": FRAGMENTS, "interval": FRAGMENTS, "compression": "Int4", "downlink": "Int8"})
    parameters = int(TWELVE.parameters)
    layout = layout_of_sizes([parameters // FRAGMENTS] * FRAGMENTS)
    course = simulate_course(job, scenario_of(job.spec, world, parameters, seed=0), layout, seconds)
    learners = course.view.learners
    step_tokens = learners[0].tokens / learners[0].steps
    return seconds * REGIONS * step_tokens / sum(learner.merged_tokens for learner in learners)
