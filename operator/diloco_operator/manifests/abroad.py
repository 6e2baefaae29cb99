"""A job's objects in another cluster: what its regions there need, and nothing that other regions need.

They cannot be owned by the job, because owner references do not lead from one cluster to another. So they carry the
job's uid and the home's id as labels instead, and so do their pods. The authority's key never leaves home. There is no
disruption budget, for the same reasons as at home.
"""

from collections.abc import Mapping
from typing import Any, Final

from diloco.spec import DiLoCoJob
from diloco_operator import labels, names
from diloco_operator.manifests import common, documents, learners, network, secrets, services
from diloco_operator.manifests.inputs import Inputs, Manifest, Placed, Remote

KINDS: Final = frozenset({"Secret", "ConfigMap", "NetworkPolicy", "Service", "StatefulSet"})
"""The kinds of these objects."""
SYNCER_ARGUMENT: Final = f"--syncer-address-file={common.JOB_DIRECTORY}/{documents.ENDPOINT_FILE}"
"""What tells a learner there where the syncer is. It follows a changed address without a restart."""


def objects(job: DiLoCoJob, cluster: str, inputs: Inputs, sets: names.SetNames) -> tuple[Placed, ...]:
    """The objects of all regions in that cluster, in an order that is safe to apply.

    ``sets`` names every pool's StatefulSet.

    Raises:
        InvalidSpecError: the manifest is larger than a process reads.
    """
    where, scale, remote = names.clusters(job.spec), inputs.scale, inputs.remotes[cluster]
    here = {key: sets[key] for key in names.pools(job.spec) if where[key.region] == cluster}
    made = (
        *secrets.learners_secrets(job, inputs.certificates, here),
        documents.remote_config_map(job, remote.endpoint),
        network.remote_learners_policy(job),
        *(network.unit_policy(job, key, name, _uid(job)) for key, name in names.with_units(job.spec, here).items()),
        services.learners(job),
        *(
            learners.stateful_set(job, key, name, inputs.images.learners[key], scale.learners.get(key, 0))
            for key, name in here.items()
        ),
    )
    return tuple(Placed(_moved(one, job, remote), cluster) for one in made)


def _owner(job: DiLoCoJob, remote: Remote) -> dict[str, str]:
    return labels.of_home(remote.home_id, job.metadata.namespace, job.metadata.uid)


def _uid(job: DiLoCoJob) -> dict[str, str]:
    return {labels.JOB_UID: job.metadata.uid}


def _moved(one: Manifest, job: DiLoCoJob, remote: Remote) -> Manifest:
    """``one`` as it is in the other cluster: its namespace, its labels, and selectors that match this job's pods alone.

    A job of another home may have the same name, and its pods the same labels but for the uid.
    """
    metadata = {key: value for key, value in one["metadata"].items() if key != "ownerReferences"}
    own = {**metadata["labels"], **_owner(job, remote)}
    moved = {**one, "metadata": {**metadata, "namespace": remote.namespace, "labels": own}}
    uid = _uid(job)
    match one["kind"]:
        case "StatefulSet":
            matched = {**one["spec"]["selector"]["matchLabels"], **uid}
            claims = [_labelled(claim, own) for claim in one["spec"].get("volumeClaimTemplates", ())]
            more = {"volumeClaimTemplates": claims} if claims else {}
            return _with(moved, selector={"matchLabels": matched}, template=_template(one, job, remote), **more)
        case "NetworkPolicy":
            return _with(moved, podSelector={"matchLabels": {**one["spec"]["podSelector"]["matchLabels"], **uid}})
        case "Service":
            return _with(moved, selector={**one["spec"]["selector"], **uid})
        case _:
            return moved


def _template(one: Manifest, job: DiLoCoJob, remote: Remote) -> Manifest:
    template = one["spec"]["template"]
    metadata, spec = template["metadata"], template["spec"]
    ours, *others = spec["containers"]
    args = [SYNCER_ARGUMENT if arg == learners.syncer_argument(job) else arg for arg in ours["args"]]
    return {
        **template,
        "metadata": {**metadata, "labels": {**metadata["labels"], **_owner(job, remote)}},
        "spec": {**spec, "containers": [{**ours, "args": args}, *others]},
    }


def _labelled(claim: Manifest, own: Mapping[str, str]) -> Manifest:
    """A claim template with the labels by which what a job has left is found (`diloco cluster orphans`)."""
    return {**claim, "metadata": {**claim["metadata"], "labels": dict(own)}}


def _with(one: Mapping[str, Any], **spec: Any) -> Manifest:
    return {**one, "spec": {**one["spec"], **spec}}
