"""Which objects to apply or delete, given a job and how many of its pods should run. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from diloco_operator import names
from diloco_operator.decide.certificates import JobIdentity, certificates
from diloco_operator.decide.clusters import HOME
from diloco_operator.decide.ending.stopping import scaled_down
from diloco_operator.decide.job_now import JobNow
from diloco_operator.decide.objects.drift import is_due
from diloco_operator.decide.objects.templates import default_image, described, kept
from diloco_operator.decide.objects.workloads import (
    CLAIM,
    DEPLOYMENT,
    STATEFUL_SET,
    is_told_to_leave,
    replicas,
    syncer_ready,
)
from diloco_operator.decide.observed import ChildKey, Object
from diloco_operator.decide.plan import Scaling
from diloco_operator.decide.queue.queue_now import WORKLOAD
from diloco_operator.decide.queue.shares import outdated, placed, shares
from diloco_operator.manifests import Inputs, Placed, Scale, all_children, choose_images
from diloco_operator.manifests.placement.holds import held_back
from diloco_operator.manifests.queue import SYNCER
from diloco_operator.signing import CertificateMaker

SECRET = "Secret"  # noqa: S105  # a kind
KEPT = frozenset({"PersistentVolumeClaim"})
"""Kinds that are created once. Only the job's own deletion removes them, because their content cannot be recreated, and
nothing changes them, because nearly all is immutable and a claim that was enlarged by hand must not shrink."""


_OF_CLAIM = ("accessModes", "storageClassName", "resources")
"""Fields of a claim's spec that the operator sets."""


def desired(job_now: JobNow, scale: Scale, maker: CertificateMaker) -> tuple[Placed, ...]:
    """Every object of the job, in the order in which they are applied.

    Pods that run keep their templates (`templates`). Of clusters that do not answer there are none.

    Raises:
        NoImageError, InvalidSpecError: see `diloco_operator.manifests`.
    """
    spec, live = job_now.spec, job_now.observed.children
    default = default_image(job_now.deployment, job_now.options.trainer_image)
    images = choose_images(spec, default)
    remotes = job_now.clusters.remotes(job_now.external_endpoint.address)
    where = {pool: job_now.clusters.regions[pool.region] for pool in job_now.pools}
    sets = {pool: name for pool, name in job_now.set_names.items() if where[pool] in (HOME, *remotes)}
    units = names.with_units(spec, sets).keys()
    who = JobIdentity(job_now.name, job_now.manifest.metadata.namespace, sets, job_now.revoked, units)
    held = {key.name: _data(item) for key, item in live.items() if (key.kind, key.cluster) == (SECRET, HOME)}
    abroad = {
        key.name: _data(live[key])
        for pool, name in sets.items()
        if where[pool] != HOME and (key := ChildKey(SECRET, names.learner_secret(name), where[pool])) in live
    }
    signed = certificates(who, held, job_now.now, maker, abroad)
    inputs = Inputs(images, scale, signed, remotes, job_now.orders)
    made = all_children(job_now.manifest, job_now.options, inputs)
    known = (one for one in made if job_now.clusters.writable(ChildKey.of_placed(one)))
    named = (replace(one, body=described(one.body, spec, default)) for one in known)
    return tuple(
        replace(one, body=_held(_as_it_runs(one.body, one.cluster, job_now), one.cluster, job_now)) for one in named
    )


def _data(secret: Object) -> dict[str, str]:
    found = secret.get("data")
    return found if isinstance(found, dict) else {}


def _as_it_runs(one: Object, cluster: str, job_now: JobNow) -> Object:
    key, live = ChildKey.of(one, cluster), job_now.observed.children
    # Quota is for pods as they were admitted.
    is_fixed = job_now.queue is not None
    return kept(one, live[key], is_fixed=is_fixed) if key.kind in (STATEFUL_SET, DEPLOYMENT) and key in live else one


def _queued(one: Object, job_now: JobNow) -> Object:
    """The syncer's Deployment as Kueue wants its pod."""
    queue, live = job_now.queue, job_now.deployment
    if queue is None or one["kind"] != DEPLOYMENT:
        return one
    template = one["spec"]["template"]
    if live is not None and replicas(live):
        there = live["spec"]["template"]["spec"]
        spec = {**template["spec"], **{key: there[key] for key in ("nodeSelector", "tolerations") if key in there}}
        template = {**template, "spec": spec}
    elif queue.placing_syncer is not None:
        template = placed(template, queue.placing_syncer)
    return {**one, "spec": {**one["spec"], "template": template}}


def _held(one: Object, cluster: str, job_now: JobNow) -> Object:
    key = ChildKey.of(one, cluster)
    if job_now.queue is not None:
        return held_back(one) if key.kind == STATEFUL_SET else one
    holding = job_now.holdings.get(key)
    return held_back(one) if holding is not None and holding.gate and one["spec"]["replicas"] else one


@dataclass(frozen=True, slots=True)
class Changes:
    """What to do about a job's objects, as in a `Plan`."""

    scale: tuple[Scaling, ...] = ()
    apply: tuple[Placed, ...] = ()
    delete: tuple[ChildKey, ...] = ()
    adopt: frozenset[ChildKey] = frozenset()
    taken: frozenset[ChildKey] = frozenset()
    """Wanted objects whose names belong to other owners."""
    outdated: frozenset[str] = frozenset()
    """As of `queue.shares.outdated`."""


def changes(job_now: JobNow, scale: Scale, maker: CertificateMaker) -> Changes:
    """What differs from what is wanted.

    If a name is taken, nothing new is created in that cluster, because half of a region is worse than none.
    If it is taken at home, nothing new is created anywhere. Existing objects are repaired.
    """
    live, foreign, lost = job_now.observed.children, job_now.observed.foreign, job_now.volume.lost
    if lost and not syncer_ready(job_now.deployment):
        # On another volume, or none, a syncer would begin from zero. A running one has its volume.
        scale = replace(scale, syncer=0)
    wanted = {ChildKey.of_placed(one): one for one in desired(job_now, scale, maker)}
    if lost:
        wanted.pop(ChildKey(CLAIM, job_now.volume.name))
    adopted = _adopted(job_now, wanted)
    wanted |= adopted
    foreign -= adopted.keys()
    templates = _templates(job_now, wanted)
    quota = shares(job_now, templates)
    wanted = {key: replace(one, body=_queued(one.body, job_now)) for key, one in wanted.items()}
    taken = foreign & {*wanted, *map(ChildKey.of_placed, quota.apply)}
    halted = {key.cluster for key in taken}
    applied = job_now.observed.applied

    def is_due_now(key: ChildKey, one: Placed) -> bool:
        if key not in live:
            return halted.isdisjoint((HOME, key.cluster))
        return key.kind not in KEPT and is_due(one.body, live[key], applied.get(key))

    apply = [one for key, one in wanted.items() if key not in foreign and is_due_now(key, one)]
    writable = job_now.clusters.writable
    others = (key for key in live if key not in wanted and key.kind not in (*KEPT, WORKLOAD))
    gone = sorted(filter(writable, others))
    counts = {
        key: one.body["spec"]["replicas"] for key, one in wanted.items() if key.kind in (STATEFUL_SET, DEPLOYMENT)
    }
    # Learners of a removed pool leave first. What they use stays until they were told to.
    leaving = {key for key in gone if key.kind == STATEFUL_SET and not is_told_to_leave(live[key])}
    waits = {key.cluster for key in leaving}
    delete = tuple(key for key in gone if key not in leaving and (key.kind == STATEFUL_SET or key.cluster not in waits))
    fewer = scaled_down(live, counts | dict.fromkeys(leaving, 0))
    if HOME not in halted:
        apply += quota.apply
    old = outdated(job_now, templates)
    return Changes(fewer, tuple(apply), (*delete, *quota.delete), frozenset(adopted), taken, old)


def _templates(job_now: JobNow, wanted: Mapping[ChildKey, Placed]) -> dict[str, Object]:
    """The pods' templates by the names of their pod sets."""
    found = {key.name: one.body["spec"]["template"] for key, one in wanted.items() if key.kind == STATEFUL_SET}
    deployment = wanted.get(ChildKey(DEPLOYMENT, names.syncer(job_now.name)))
    return found if deployment is None else {**found, SYNCER: deployment.body["spec"]["template"]}


def _adopted(job_now: JobNow, wanted: Mapping[ChildKey, Placed]) -> dict[ChildKey, Placed]:
    """The claim of an earlier job, as this job's, if the manifest asks for it."""
    retained = job_now.observed.retained
    if retained is None or not job_now.spec.syncer.storage.adopt_retained:
        return {}
    key = ChildKey.of(retained)
    if key not in wanted or retained["metadata"].get("deletionTimestamp"):
        return {}
    body = wanted[key].body
    # Of the volume nothing can change but its size, which somebody may have enlarged.
    spec = {field: value for field in _OF_CLAIM if (value := retained["spec"].get(field))}
    metadata = {**body["metadata"], "uid": retained["metadata"]["uid"]}
    return {key: Placed({**body, "metadata": metadata, "spec": spec})}
