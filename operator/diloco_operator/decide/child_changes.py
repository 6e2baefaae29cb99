"""Which objects to apply or delete, given a job and how many of its pods should run. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from diloco_operator import labels
from diloco_operator.decide.certificates import JobIdentity, certificates
from diloco_operator.decide.drift import differs, marked
from diloco_operator.decide.job_now import JobNow
from diloco_operator.decide.observed import ChildKey, Object
from diloco_operator.decide.plan import Scaling
from diloco_operator.decide.stopping import scaled_down
from diloco_operator.decide.templates import described, kept
from diloco_operator.decide.workloads import CLAIM, DEPLOYMENT, STATEFUL_SET, syncer_ready
from diloco_operator.manifests import ObservedImages, Scale, all_children, choose_images

SECRET = "Secret"  # noqa: S105  # a kind
KEPT = frozenset({"PersistentVolumeClaim"})
"""Kinds that only the job's own deletion removes, because their content cannot be recreated."""


def desired(job_now: JobNow, scale: Scale) -> tuple[Object, ...]:
    """Every object of the job, in the order in which they are applied, each with its digest.

    Pods that run keep their templates (`templates`).

    Raises:
        NoImageError, InvalidSpecError: see `diloco_operator.manifests`.
    """
    spec, live = job_now.spec, job_now.observed.children
    images = choose_images(spec, _observed_images(job_now), job_now.options.trainer_image)
    who = JobIdentity(job_now.name, job_now.job.metadata.namespace, job_now.set_names, spec.syncer.expose.hosts)
    held = {key.name: item.get("data") or {} for key, item in live.items() if key.kind == SECRET}
    signed = certificates(who, held, job_now.now, job_now.maker)
    made = all_children(job_now.job, job_now.options, images, replace(scale, sets=job_now.set_names), signed)
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
    """Wanted objects whose names belong to other owners."""


def changes(job_now: JobNow, scale: Scale) -> Changes:
    """What differs from what is wanted.

    If a name is taken, nothing new is created, because half a job is worse than none. Existing objects are repaired.
    """
    live, foreign, lost = job_now.observed.children, job_now.observed.foreign, job_now.volume.lost
    if lost and not syncer_ready(job_now.deployment):
        # On another volume, or none, a syncer would begin from zero. A running one has its volume.
        scale = replace(scale, syncer=0)
    wanted = {ChildKey.of(one): one for one in desired(job_now, scale)}
    if lost:
        wanted.pop(ChildKey(CLAIM, job_now.volume.name))
    taken = foreign & wanted.keys()
    apply = [
        one
        for key, one in wanted.items()
        if key not in foreign and (differs(one, live[key]) is not None if key in live else not taken)
    ]
    gone = sorted(key for key in live if key not in wanted and key.kind not in KEPT)
    counts = {key: one["spec"]["replicas"] for key, one in wanted.items() if key.kind in (STATEFUL_SET, DEPLOYMENT)}
    return Changes(scaled_down(live, counts), tuple(apply), tuple(gone), taken)


def _observed_images(job_now: JobNow) -> ObservedImages:
    learners = {
        workload.pool: image for workload in job_now.workloads if (image := _image(workload.live, labels.LEARNER))
    }
    return ObservedImages(syncer=_image(job_now.deployment, labels.SYNCER), learners=learners)


def _image(live: Object | None, container: str) -> str | None:
    if live is None:
        return None
    containers = live["spec"]["template"]["spec"].get("containers") or ()
    return next((one.get("image") for one in containers if one.get("name") == container), None)
