"""From a job and how many of its pods are to run to the objects that have to be applied or deleted.

Pure. It must not know why so many are to run.
"""

from collections.abc import Iterable

from diloco_operator import labels
from diloco_operator.case import Case
from diloco_operator.certificates import JobIdentity, certificates
from diloco_operator.manifests import ObservedImages, Scale, children, choose_images
from diloco_operator.observed import ChildKey, Object
from diloco_operator.policies.drift import differs, marked
from diloco_operator.policies.workloads import DEPLOYMENT, STATEFUL_SET, replicas

SECRET = "Secret"  # noqa: S105  # a kind
KEPT = frozenset({"PersistentVolumeClaim"})
"""Kinds that only the job's own deletion removes: what is on them cannot be made again."""


def desired(case: Case, scale: Scale) -> tuple[Object, ...]:
    """Every object of the job, in the order in which they are applied, each with its digest.

    Raises:
        NoImageError, InvalidSpecError: see `diloco_operator.manifests`.
    """
    spec, live = case.spec, case.observed.children
    images = choose_images(spec, _observed_images(case), case.options.trainer_image)
    who = JobIdentity(case.name, case.job.metadata.namespace, tuple(case.desired_learners))
    held = {key.name: item.get("data") or {} for key, item in live.items() if key.kind == SECRET}
    made = children(case.job, case.options, images, scale, certificates(who, held, case.now, case.maker))
    return tuple(marked(one) for one in made)


def changes(case: Case, scale: Scale) -> tuple[tuple[Object, ...], tuple[ChildKey, ...]]:
    """(what to apply, what to delete).

    Where a name is taken nothing new is made: half a job is worse than none. What is there is kept as it should be.
    """
    wanted = {ChildKey.of(one): one for one in desired(case, scale)}
    live, foreign = case.observed.children, case.observed.foreign
    halted = not foreign.isdisjoint(wanted)
    apply = [
        one
        for key, one in wanted.items()
        if key not in foreign and (differs(one, live[key]) is not None if key in live else not halted)
    ]
    gone = sorted(key for key in live if key not in wanted and key.kind not in KEPT)
    return tuple(apply), tuple(gone)


def winding_down(case: Case, scale: Scale) -> tuple[Object, ...]:
    """Only what takes pods away: a finished job's other objects are left as they are."""
    live = case.observed.children
    if not any(replicas(item) for key, item in live.items() if key.kind in (STATEFUL_SET, DEPLOYMENT)):
        return ()
    return tuple(_fewer(desired(case, scale), case))


def _fewer(wanted: Iterable[Object], case: Case) -> Iterable[Object]:
    for one in wanted:
        key = ChildKey.of(one)
        there = case.observed.children.get(key)
        if key.kind not in (STATEFUL_SET, DEPLOYMENT) or there is None:
            continue
        if one["spec"]["replicas"] < replicas(there):
            yield one


def _observed_images(case: Case) -> ObservedImages:
    learners = {workload.pool: image for workload in case.workloads if (image := _image(workload.live, labels.LEARNER))}
    return ObservedImages(syncer=_image(case.deployment, labels.SYNCER), learners=learners)


def _image(live: Object | None, container: str) -> str | None:
    if live is None:
        return None
    containers = live["spec"]["template"]["spec"].get("containers") or ()
    return next((one.get("image") for one in containers if one.get("name") == container), None)
