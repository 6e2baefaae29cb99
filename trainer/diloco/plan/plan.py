"""Plans a job for given links and step times, and says whether they fit. It trains nothing and needs no torch."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, isinf, log10

from diloco.core.sizes import F32
from diloco.plan.advice import Advice, advice, not_measured
from diloco.plan.data_parallel import DataParallel, data_parallel
from diloco.plan.fit.fit import Fit, fit
from diloco.plan.fit.remedies import SHORTEST_STEP_SECONDS, Remedy, remedies, smallest_step_seconds, with_steps
from diloco.plan.fit.situation import SYNCER_LINK, Exchange, LearnerGroup, Link, Situation
from diloco.plan.flops import device_flops_per_second
from diloco.plan.memory import Memory, Passes, memory
from diloco.plan.model_size import ModelSize, model_size
from diloco.plan.needs import Needs, needs
from diloco.plan.syncer_load import SyncerLoad, syncer_load
from diloco.spec import DiLoCoJob, JobSpec
from diloco.spec.placement import Region
from diloco.spec.quantities import parse_rate
from diloco.spec.words import listed
from diloco.world.model import RegionWorld, World
from diloco.world.rates import bytes_per_second_of

_BELOW, _ABOVE = 2, 4
"""Step times in the table on either side of the smallest that fits."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """The fit with a certain inner step time."""

    seconds: float
    fit: Fit


@dataclass(frozen=True, slots=True)
class Counted:
    """What passes of the model tell, in which shapes alone are computed."""

    frozen_bytes: int = 0
    """Of parameters that are not trained."""
    flops_of_token: int = 0
    """0: not known."""
    passes: Mapping[str, Passes] = field(default_factory=dict)
    """By pool, where known."""
    unknown: str = ""
    """Why passes are not known, as text."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of planning a job."""

    job: DiLoCoJob
    model: ModelSize
    world: World
    situation: Situation
    fit: Fit
    remedies: tuple[Remedy, ...]
    needs: Needs
    unlimited: tuple[str, ...]
    """Regions without a given link."""
    memory: Memory
    flops_of_token: int
    """Of a forward and a backward pass; 0: not known."""
    device_flops_per_second: Mapping[str, float]
    """By pool, where both that and the duration of a step are known."""
    unknown: str
    """Why activations are not known, as text; empty: they are, or nobody has asked."""
    syncer: SyncerLoad
    data_parallel: DataParallel | None
    advice: Advice | None
    not_measured: str
    """Why there is no advice, as text, if the job is unlike all that was measured."""
    smallest_step_seconds: float | None = None
    """If no step time was given: the shortest that fits, the same for all learners; None: there is none."""
    step_times: tuple[StepTime, ...] = ()
    device_bytes: int | None = None
    """Memory of each learner's device; None: not known."""

    @property
    def device_too_small(self) -> bool:
        """Whether a learner cannot fit its device, by what is known."""
        return self.device_bytes is not None and self.memory.step_bytes > self.device_bytes

    @property
    def fits(self) -> bool:
        """Whether the links carry the job, and devices hold it as far as is known."""
        return self.fit.fits and not self.device_too_small

    @property
    def assumed(self) -> tuple[str, ...]:
        """Assumptions made for what was not given, as text."""
        words = []
        if self.unlimited:
            words.append(f"the links of {listed(self.unlimited, 'and')} are unlimited (--link)")
        if isinf(self.world.syncer.bytes_per_second):
            words.append("the syncer's own link is unlimited (--link syncer=RATE)")
        if self.model.assumed:
            words.append(self.model.assumed)
        if self.unknown:
            words.append(f"activations take no memory ({self.unknown})")
        return tuple(words)


def make_plan(
    job: DiLoCoJob, world: World, size: int | Sequence[int] | None = None, counted: Counted | None = None
) -> Plan:
    """Compute how ``job`` goes in ``world``.

    ``size``: of a model that is not the built-in one, see ``model_size``.

    Raises:
        PlanError: the model's size is given although it is known, or is wrong.
        LayoutError: the model cannot be cut into as many fragments.
    """
    model, counted = model_size(job.spec, size), counted or Counted()
    situation = situation_of(job.spec, world, model)
    unknown = situation.quorum_step_seconds is None
    smallest = smallest_step_seconds(situation) if unknown else None
    result = fit(situation)
    return Plan(
        job=job,
        model=model,
        world=world,
        situation=situation,
        fit=result,
        remedies=remedies(situation),
        needs=needs(
            situation, result, job.spec.training.tokens, {one.name: one.connections for one in job.spec.regions}
        ),
        unlimited=tuple(
            region.name for region in job.spec.regions if not world.gives_link(region.name) and region.bandwidth is None
        ),
        memory=memory(job.spec, situation.exchange, situation.learners, counted.frozen_bytes, counted.passes),
        flops_of_token=counted.flops_of_token,
        device_flops_per_second=device_flops_per_second(situation, job.spec.pools, counted.flops_of_token)
        if counted.flops_of_token
        else {},
        unknown=counted.unknown,
        syncer=syncer_load(situation),
        data_parallel=data_parallel(situation),
        advice=advice(job.spec, situation),
        not_measured=not_measured(job.spec, situation),
        smallest_step_seconds=smallest,
        step_times=tuple(_step_times(situation, smallest)) if unknown else (),
    )


def situation_of(spec: JobSpec, world: World, model: ModelSize) -> Situation:
    """The job and the world as input for `plan.fit.fit`."""
    exchange = Exchange.of(spec.sync, model.numels)
    groups = tuple(_groups(spec, world, model.parameters))
    syncer = Link(SYNCER_LINK, world.syncer.bytes_per_second, world.syncer.bytes_per_second)
    merged_bytes = F32.payload_bytes(model.parameters) / len(model.numels) * sum(group.learners for group in groups)
    return Situation(exchange, groups, syncer, merged_bytes / world.syncer.merge_bytes_per_second)


def _groups(spec: JobSpec, world: World, parameters: int) -> Iterator[LearnerGroup]:
    for region in spec.regions:
        link = _link(region, world.region(region.name))
        for pool in region.pools:
            if pool.size:
                name = f"{region.name}/{pool.name}"
                tokens = pool.largest_batch(spec.training) * spec.training.sequence_length
                yield LearnerGroup(name, pool.size, link, world.step_seconds(spec, name, parameters), tokens)


def _link(region: Region, given: RegionWorld) -> Link:
    """A region's link, with what its learners together may and can use of it."""
    allowed = math.inf if region.bandwidth is None else parse_rate(f"{region.name}: bandwidth", region.bandwidth)
    learners = sum(pool.size for pool in region.pools)
    used = learners * bytes_per_second_of(region.connections, given.round_trip_seconds) if learners else math.inf
    carried = min(given.bytes_per_second, allowed)
    rate, connections = min(carried, used), region.connections if used < carried else None
    return Link(region.name, rate, rate, given.round_trip_seconds, connections, carried)


def _step_times(situation: Situation, smallest: float | None) -> Iterator[StepTime]:
    """Step times of the series 1, 2, 5 around the smallest that fits; none if any fits."""
    if smallest is not None and smallest <= SHORTEST_STEP_SECONDS:
        return
    middle = 1.0 if smallest is None else smallest
    power = floor(log10(middle))
    series = [digit * 10.0**exponent for exponent in range(power - 2, power + 4) for digit in (1, 2, 5)]
    first = next(index for index, seconds in enumerate(series) if seconds >= middle)
    for seconds in series[max(0, first - _BELOW) : first + _ABOVE]:
        yield StepTime(seconds, fit(with_steps(situation, seconds)))
