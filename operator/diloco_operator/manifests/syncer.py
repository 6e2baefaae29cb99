"""The syncer: one pod at a time, and the volume for its checkpoints, its tape and the finished model."""

from typing import Final

from diloco.spec import DiLoCoJob, JobSpec
from diloco_operator import labels, names
from diloco_operator.manifests import common, room
from diloco_operator.manifests.from_users.pod_template import patched
from diloco_operator.manifests.inputs import Manifest
from diloco_operator.manifests.placement.lost_nodes import leaves_lost_nodes

CONTAINER: Final = "syncer"
GRACE_SECONDS: Final = 150
"""From SIGTERM to SIGKILL: 120 s for the last checkpoint, more if it is large, calls under way, and a margin."""
_DISK_SECONDS: Final = 120
STARTUP_SECONDS: Final = 600
"""Time to start Python and import modules. Loading after that is judged by its progress, not by a time limit."""


def deployment(job: DiLoCoJob, image: str, replicas: int) -> Manifest:
    """The syncer's Deployment. Recreate: a rollout never runs two syncers at once.

    A pod that is deleted gets its successor before it has ended; the lock on the volume makes the successor wait.
    """
    name = job.metadata.name
    own, patch = labels.of_job(name, labels.SYNCER), job.spec.syncer.pod_template
    template = patched({"metadata": {"labels": own}, "spec": _pod(job, image)}, patch, CONTAINER)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": common.metadata(job, names.syncer(name), own),
        "spec": {
            "replicas": replicas,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels.syncer_selector(name)},
            "template": {**template, "spec": leaves_lost_nodes(template["spec"])},
        },
    }


def claim(job: DiLoCoJob) -> Manifest:
    """Its PersistentVolumeClaim. Once it exists, only its size can change."""
    name, storage = job.metadata.name, job.spec.syncer.storage
    its = labels.of_job(name, labels.SYNCER)
    metadata = common.metadata(job, names.syncer(name), its)
    if storage.when_deleted == "Retain":
        # Without an owner it stays when the job goes.
        retained = {labels.RETAINED_BY: job.metadata.uid} if job.metadata.uid else {}
        metadata = {**common.unowned(metadata), "labels": {**its, **retained}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": common.claim_spec(storage),
    }


def _pod(job: DiLoCoJob, image: str) -> Manifest:
    name = job.metadata.name
    state: Manifest = {"persistentVolumeClaim": {"claimName": names.syncer(name)}}
    temporary = room.directory(room.temporary_mib(job.spec), job.spec.syncer.resources)
    return {
        **common.pod_defaults(GRACE_SECONDS + _more_seconds(job)),
        "containers": [_container(job, image)],
        "volumes": common.volumes(names.config_map(name), names.syncer_secret(name), state, temporary),
    }


def _more_seconds(job: DiLoCoJob) -> int:
    """For a large last checkpoint."""
    return room.more_seconds(job.spec.syncer.resources, _DISK_SECONDS)


def _container(job: DiLoCoJob, image: str) -> Manifest:
    return {
        "name": CONTAINER,
        **common.program(image),
        "args": [
            "syncer",
            *common.JOB_ARGUMENTS,
            f"--listen=[::]:{common.SYNC_PORT}",
            *common.TLS_ARGUMENTS,
        ],
        "env": [*common.environment(), *job.spec.syncer.env],
        **({"envFrom": stores} if (stores := credentials(job.spec)) else {}),
        "ports": [
            common.port(common.SYNC_PORT_NAME, common.SYNC_PORT),
            common.port(common.HTTP_PORT_NAME, common.HTTP_PORT),
        ],
        "resources": room.resources(job.spec.syncer.resources),
        "volumeMounts": common.mounts(),
        **common.probes(STARTUP_SECONDS, GRACE_SECONDS if _more_seconds(job) else None),
    }


def credentials(spec: JobSpec) -> list[Manifest]:
    """Where the variables of the container come from: the Secrets of stores. Of equal names the last one counts."""
    given = (spec.init_from, spec.syncer.backup)
    found = dict.fromkeys(one.secret_name for one in given if one is not None and one.secret_name)
    return [{"secretRef": {"name": name}} for name in found]
