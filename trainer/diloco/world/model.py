"""The world file as pydantic models: the one definition of each condition, with a default for every field.

Regions and pools are named as in the manifest. What stands under ``*`` holds for every one that does not say otherwise.
"""

from collections.abc import Iterator
from typing import Annotated, Final, TypeVar

from pydantic import AfterValidator, BaseModel, Field

from diloco.spec import JobSpec
from diloco.spec.base import LINK_RATE, SpecModel
from diloco.spec.errors import PartError, Problem
from diloco.spec.quantities import UNLIMITED, QuantityError, parse_rate
from diloco.spec.words import shortlist

EVERY: Final = "*"
"""Stands for every region or pool."""
OPERATIONS_OF_A_PARAMETER: Final = 6
"""Floating-point operations of a forward and a backward pass, for a parameter and a token; attention is not counted."""
_Part = TypeVar("_Part", bound=BaseModel)
_MOST_HOURS: Final = 1e9
_MOST_SECONDS: Final = 1e7


def _checked(rate: str) -> str:
    try:
        parse_rate("", rate)
    except QuantityError as error:
        raise PartError(Problem("", str(error).removeprefix(": "))) from error
    return rate


LinkRate = Annotated[str, Field(pattern=LINK_RATE, max_length=40), AfterValidator(_checked)]
Seconds = Annotated[float, Field(ge=0, le=_MOST_SECONDS)]
Price = Annotated[float, Field(ge=0, le=1e9)]


class Recovery(SpecModel):
    """How long it takes until lost accelerators are back: an exponentiated Weibull distribution."""

    mean_seconds: float = Field(default=600, gt=0, le=_MOST_SECONDS)
    """Mean time from a loss until the replacement is ready."""
    shape: float = Field(default=1, ge=0.1, le=100)
    """Shape of the distribution. 1, with ``power`` 1: exponential, most are shorter than the mean, some much longer.
    Larger: closer to the mean."""
    power: float = Field(default=1, ge=0.1, le=100)
    """Power of the distribution. Larger: fewer short ones."""


class PoolWorld(SpecModel):
    """Learners of a pool."""

    step_seconds: float | None = Field(default=None, gt=0, le=86_400)
    """Mean time from one inner step to the next. Default: computed from ``chipFlops``, if that is given, and otherwise
    unknown."""
    between_steps: float = Field(default=0, ge=0, le=0.99)
    """Fraction of ``stepSeconds`` in which the learner computes no step: it copies fragments, evaluates the model and
    takes snapshots."""
    step_deviation: float = Field(default=0.02, ge=0, le=1)
    """Standard deviation of a step's duration, as a fraction of it."""
    start_seconds: Seconds = 0
    """Seconds that a new process takes after its join, besides receiving the model, until it trains, as to build and
    compile."""
    chips: int | None = Field(default=None, ge=1, le=10_000_000)
    """Accelerators of a learner. Default: one for each of its processes."""
    chip_flops: float | None = Field(default=None, gt=0, le=1e21)
    """Peak operations a second of an accelerator, such as 9.89e14. A step then takes 6 operations for each parameter
    and token, at ``mfu``."""
    mfu: float = Field(default=0.4, gt=0, le=1)
    """Fraction of ``chipFlops`` that a step reaches."""
    chip_interruption_hours: float | None = Field(default=None, gt=0, le=_MOST_HOURS)
    """Mean hours between two interruptions of one accelerator; 8766 is a year. Default: none fails."""
    slice_chips: int | None = Field(default=None, ge=1, le=10_000_000)
    """Accelerators that are lost together when one of them fails, at most those of a learner. A learner of several
    slices trains on with the others, at the same speed. Default: all of a learner."""
    pause_down_seconds: Seconds = 30
    """Seconds that a learner stands still when it loses a slice and continues without it."""
    pause_up_seconds: Seconds = 30
    """Seconds that a learner stands still when all its lost slices are back."""
    recovery: Recovery = Recovery()
    """Time until a lost slice or a preempted learner is back."""
    preemptions_per_hour: float = Field(default=0, ge=0, le=3600)
    """Mean preemptions of a learner in an hour in which it does not stand still, all of its accelerators
    together."""
    preemption_notice_seconds: Seconds = 30
    """Seconds from the notice of a preemption to its end. A learner that can end its step in that time leaves in order,
    with a checkpoint."""
    price_per_hour: Price = 0
    """Price of an accelerator for an hour, in any currency. It is paid from the start to the end of the job."""


class RegionWorld(SpecModel):
    """A region: its link to the syncer, which all its learners share, and its pools."""

    link: LinkRate = UNLIMITED
    """Rate of the link, each way. The manifest's ``bandwidth`` and ``connections`` limit it further."""
    round_trip_seconds: float = Field(default=0, ge=0, le=3600)
    """Time to the syncer and back."""
    jitter_seconds: float = Field(default=0, ge=0, le=3600)
    """Standard deviation of the time one way, which is at least half a round trip."""
    price_per_gb: Price = Field(default=0, alias="pricePerGB")
    """Price of 10^9 bytes over the link, either way."""
    pools: dict[str, PoolWorld] = Field(default_factory=dict)
    """By name; ``*``: every pool."""

    @property
    def bytes_per_second(self) -> float:
        """The link's rate, each way."""
        return parse_rate("link", self.link)


class SyncerWorld(SpecModel):
    """The syncer."""

    link: LinkRate = UNLIMITED
    """Rate of the syncer's own link, each way, which all learners share."""
    merge_rate: LinkRate = "5GB/s"
    """Bytes of f32 outer gradients that it merges in a second; 5GB/s is measured on two cores."""
    price_per_hour: Price = 0
    """Price of its machine for an hour."""

    @property
    def bytes_per_second(self) -> float:
        """The link's rate, each way."""
        return parse_rate("link", self.link)

    @property
    def merge_bytes_per_second(self) -> float:
        """How fast it merges."""
        return parse_rate("mergeRate", self.merge_rate)


class World(SpecModel):
    """Everything that decides how a job goes and is not in its manifest."""

    regions: dict[str, RegionWorld] = Field(default_factory=dict)
    """By name as in the manifest; ``*``: every region. A region that is not here has an unlimited link."""
    syncer: SyncerWorld = SyncerWorld()
    """The syncer."""

    def region(self, name: str) -> RegionWorld:
        """The region ``name``: what it says itself, and otherwise what every region says."""
        every, own = (self.regions.get(key, RegionWorld()) for key in (EVERY, name))
        return _over(every, own)

    def pool(self, place: str) -> PoolWorld:
        """The pool at ``region/pool``. What its own region says goes before what every region says."""
        region, _, pool = place.partition("/")
        found = PoolWorld()
        for within in (EVERY, region):
            pools = self.regions.get(within, RegionWorld()).pools
            for key in (EVERY, pool):
                own = pools.get(key, PoolWorld())
                if "chip_flops" in own.model_fields_set:  # it goes before a step time that every pool has
                    found = found.model_copy(update={"step_seconds": None})
                found = _over(found, own)
        return found

    def gives_link(self, region: str) -> bool:
        """Whether the file says something of a region's link, be it that it is unlimited."""
        given = (self.regions[key].model_fields_set for key in (EVERY, region) if key in self.regions)
        return any(fields & {"link", "round_trip_seconds", "jitter_seconds"} for fields in given)

    def chips(self, spec: JobSpec, place: str) -> int:
        """Accelerators of a learner at ``region/pool``."""
        return self.pool(place).chips or spec.pools[place].ranks

    def step_seconds(self, spec: JobSpec, place: str, parameters: int) -> float | None:
        """Mean duration of an inner step at ``region/pool``; None: unknown."""
        pool = self.pool(place)
        if pool.step_seconds is not None or pool.chip_flops is None:
            return pool.step_seconds
        tokens = spec.pools[place].batch_of(spec.training) * spec.training.sequence_length
        return OPERATIONS_OF_A_PARAMETER * parameters * tokens / (self.chips(spec, place) * pool.chip_flops * pool.mfu)

    def problems(self, spec: JobSpec) -> Iterator[Problem]:
        """Names that the job does not have, and sizes that do not suit its pools."""
        pools = {region.name: [pool.name for pool in region.pools] for region in spec.regions}
        for name, region in self.regions.items():
            if name not in (EVERY, *pools):
                yield Problem(f"regions.{name}", f"is not a region of the job; use {shortlist([*pools, repr(EVERY)])}")
                continue
            known = pools.get(name) or [pool for names in pools.values() for pool in names]
            for pool in region.pools:
                if pool not in (EVERY, *known):
                    use = shortlist([*dict.fromkeys(known), repr(EVERY)])
                    yield Problem(f"regions.{name}.pools.{pool}", f"is not a pool of the job there; use {use}")
        too_large: dict[str, tuple[int, str]] = {}
        for place, of_job in spec.pools.items():
            chips, slice_chips = self.chips(spec, place), self.pool(place).slice_chips
            if of_job.size and slice_chips is not None and slice_chips > chips:
                path = self._where(place, "slice_chips")
                too_large[path] = min(too_large.get(path, (chips, place)), (chips, place))
        for path, (chips, place) in too_large.items():
            slice_chips = self.pool(place).slice_chips
            yield Problem(
                f"{path}.sliceChips",
                f"{slice_chips} is more than the {chips} chips of a learner at {place}; use at most {chips}",
            )

    def _where(self, place: str, field: str) -> str:
        """The path of the pool that gives this field of the one at ``region/pool``."""
        region, _, pool = place.partition("/")
        keys = ((within, key) for within in (region, EVERY) for key in (pool, EVERY))
        return next(
            f"regions.{within}.pools.{key}"
            for within, key in keys
            if within in self.regions
            and key in (pools := self.regions[within].pools)
            and field in pools[key].model_fields_set
        )


def _over(base: _Part, own: _Part) -> _Part:
    """``base`` with every field that ``own`` sets, of parts within it likewise."""
    changed: dict[str, object] = {}
    for name in own.model_fields_set:
        before, value = getattr(base, name), getattr(own, name)
        changed[name] = _over(before, value) if isinstance(value, BaseModel) else value
    return base.model_copy(update=changed)
