"""From a job and how many of its pods are to run to the objects that have to be applied or deleted.

Pure. It must not know why so many are to run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from diloco_operator import labels
from diloco_operator.decide.certificates import JobIdentity, certificates
from diloco_operator.decide.drift import differs, marked
from diloco_operator.decide.job_now import Case
from diloco_operator.decide.observed import ChildKey, Object
from diloco_operator.decide.plan import Scaling
from diloco_operator.decide.stopping import scaled_down
from diloco_operator.decide.templates import described, kept
from diloco_operator.decide.workloads import CLAIM, DEPLOYMENT, STATEFUL_SET, syncer_ready
from diloco_operator.manifests import ObservedImages, Scale, children, choose_images

SECRET = "Secret"  # noqa: S105  # a kind
KEPT = frozenset({"PersistentVolumeClaim"})
"""Kinds that only the job's own deletion removes: what is on them cannot be made again."""


def desired(case: Case, scale: Scale) -> tuple[Object, ...]:
    """Every object of the job, in the order in which they are applied, each with its digest.

    Pods that run keep their templates (`templates`).

    Raises:
        NoImageError, InvalidSpecError: see `diloco_operator.manifests`.
    """
    spec, live = case.spec, case.observed.children
    images = choose_images(spec, _observed_images(case), case.options.trainer_image)
    who = JobIdentity(case.name, case.job.metadata.namespace, case.set_names, spec.syncer.expose.hosts)
    held = {key.name: item.get("data") or {} for key, item in live.items() if key.kind == SECRET}
    signed = certificates(who, held, case.now, case.maker)
    made = children(case.job, case.options, images, replace(scale, sets=case.set_names), signed)
    described_ones = (described(one, spec) for one in made)
    return tuple(marked(_as_it_runs(one, live)) for one in described_ones)


def _as_it_runs(one: Object, live: Mapping[ChildKey, Object]) -> Object:
    key = ChildKey.of(one)
    return kept(one, live[key]) if key.kind in (STATEFUL_SET, DEPLOYMENT) and key in live else one


@dataclass(frozen=True, slots=True)
class Changes:
    """What to do about a job's objects, as in a `Plan`."""

    scale: tuple[Scaling, ...] = ()
    apply: tuple[Object, ...] = ()
    delete: tuple[ChildKey, ...] = ()
    taken: frozenset[ChildKey] = frozenset()
    """What is wanted and belongs to somebody else."""


def changes(case: Case, scale: Scale) -> Changes:
    """What differs from what is wanted.

    Where a name is taken nothing new is made: half a job is worse than none. What is there is kept as it should be.
    """
    live, foreign, lost = case.observed.children, case.observed.foreign, case.volume.lost
    if lost and not syncer_ready(case.deployment):
        # On another volume, or on none, it would begin from zero. One that runs has its volume.
        scale = replace(scale, syncer=0)
    wanted = {ChildKey.of(one): one for one in desired(case, scale)}
    if lost:
        wanted.pop(ChildKey(CLAIM, case.volume.name))
    taken = foreign & wanted.keys()
    apply = [
        one
        for key, one in wanted.items()
        if key not in foreign and (differs(one, live[key]) is not None if key in live else not taken)
    ]
    gone = sorted(key for key in live if key not in wanted and key.kind not in KEPT)
    counts = {key: one["spec"]["replicas"] for key, one in wanted.items() if key.kind in (STATEFUL_SET, DEPLOYMENT)}
    return Changes(scaled_down(live, counts), tuple(apply), tuple(gone), taken)


def _observed_images(case: Case) -> ObservedImages:
    learners = {workload.pool: image for workload in case.workloads if (image := _image(workload.live, labels.LEARNER))}
    return ObservedImages(syncer=_image(case.deployment, labels.SYNCER), learners=learners)


def _image(live: Object | None, container: str) -> str | None:
    if live is None:
        return None
    containers = live["spec"]["template"]["spec"].get("containers") or ()
    return next((one.get("image") for one in containers if one.get("name") == container), None)
