"""What arithmetic tells of a job for given links and step times. It simulates nothing and needs no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isinf

from diloco.plan.data_parallel import DataParallel, data_parallel
from diloco.plan.memory import Memory, Passes, memory
from diloco.plan.model_size import ModelSize, model_size
from diloco.plan.situation import Situation, situation_of
from diloco.plan.syncer_load import SyncerLoad, syncer_load
from diloco.spec import DiLoCoJob
from diloco.spec.words import listed
from diloco.world.model import World


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
    """What a job takes, by arithmetic."""

    job: DiLoCoJob
    model: ModelSize
    world: World
    situation: Situation
    unlimited: tuple[str, ...]
    """Regions without a given link."""
    memory: Memory
    flops_of_token: int
    """Of a forward and a backward pass; 0: not known."""
    device_flops_per_second: Mapping[str, float]
    """Of matrix products, by pool, where both that and the duration of a step are known."""
    unknown: str
    """Why activations are not known, as text; empty: they are, or nobody has asked."""
    syncer: SyncerLoad
    data_parallel: DataParallel | None
    device_bytes: int | None = None
    """Memory of each learner's device; None: not known."""

    @property
    def device_too_small(self) -> bool:
        """Whether a learner cannot fit its device, by what is known."""
        return self.device_bytes is not None and self.memory.step_bytes > self.device_bytes

    @property
    def sequences_that_fit(self) -> int | None:
        """Most sequences that a process can take at once, as activations grow with them; None: not known."""
        passes = self.memory.passes
        if self.device_bytes is None or passes is None or not passes.activation_bytes:
            return None
        free = self.device_bytes - self.memory.device_bytes - passes.gathered_bytes
        return max(0, free * passes.sequences // passes.activation_bytes)

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
    """Reckon what ``job`` takes in ``world``.

    ``size``: of a model that is not the built-in one, see ``model_size``.

    Raises:
        PlanError: the model's size is given although it is known, or is wrong.
        LayoutError: the model cannot be cut into as many fragments.
    """
    model, counted = model_size(job.spec, size), counted or Counted()
    situation, flops = situation_of(job.spec, world, model.numels), counted.flops_of_token
    return Plan(
        job=job,
        model=model,
        world=world,
        situation=situation,
        unlimited=tuple(
            region.name for region in job.spec.regions if not world.gives_link(region.name) and region.bandwidth is None
        ),
        memory=memory(job.spec, situation.exchange, situation.learners, counted.frozen_bytes, counted.passes),
        flops_of_token=flops,
        device_flops_per_second={
            group.name: flops * group.tokens_per_step / (group.step_seconds * job.spec.pools[group.name].ranks)
            for group in situation.groups
            if flops and group.step_seconds
        },
        unknown=counted.unknown,
        syncer=syncer_load(situation),
        data_parallel=data_parallel(situation),
    )
