"""The learners of a pool: a StatefulSet, so that each keeps its index and with it its place among the learners.

Without ``storage`` a learner has no volume that outlives its pod: a restarted container continues from its own
checkpoint, and a new pod gets the model and its position in the data from the syncer. With it, each learner has a claim
of its own, which the StatefulSet's controller makes, and by its retention policy deletes; the operator needs no right
for that.

A learner of several nodes has a pod on each: the pods i * nodes to (i + 1) * nodes - 1 are learner i.
"""

from typing import Final

from diloco.spec import DiLoCoJob
from diloco.spec.placement import LearnerStorage, Pool
from diloco_operator import labels, names
from diloco_operator.manifests import common, room
from diloco_operator.manifests.from_users import passthrough
from diloco_operator.manifests.from_users.pod_template import mounts, patched
from diloco_operator.manifests.inputs import Manifest
from diloco_operator.manifests.placement.lost_nodes import leaves_lost_nodes
from diloco_operator.manifests.placement.spread import spread
from diloco_operator.manifests.placement.together import together
from diloco_operator.names import PoolKey

CONTAINER: Final = "learner"
GRACE_SECONDS: Final = 120
"""From SIGTERM to SIGKILL: 20 s to hand in what is due, 60 s for the disk, more if much is kept, and a margin."""
_DISK_SECONDS: Final = 60
STARTUP_SECONDS: Final = 600
"""Time to start Python and import modules. Loading after that is judged by its progress, not by a time limit."""


def stateful_set(job: DiLoCoJob, key: PoolKey, set_name: str, image: str, count: int) -> Manifest:
    """The StatefulSet of the pool ``key`` with so many learners.

    Only ``resources`` can change its template while the job runs.
    """
    name = job.metadata.name
    own, pool = labels.of_pool(name, key), names.pool_of(job.spec, key)
    template = {"metadata": {"labels": own}, "spec": _pod(job, key, pool, set_name, image)}
    placed = spread(patched(template, pool.pod_template, CONTAINER), name, zones=pool.nodes_per_learner == 1)
    if pool.topology_key is not None:
        placed = together(placed, pool.topology_key, labels.pool_selector(name, key))
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": common.metadata(job, set_name, own),
        "spec": {
            "replicas": count * pool.nodes_per_learner,
            "serviceName": names.learners(name),
            "podManagementPolicy": "Parallel",
            # The operator replaces pods, a learner at a time with all of its pods (`decide.learners.held_pods`).
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": labels.pool_selector(name, key)},
            "template": {**placed, "spec": leaves_lost_nodes(placed["spec"])},
            **({} if pool.storage is None else _claims(pool.storage)),
        },
    }


def _claims(storage: LearnerStorage) -> Manifest:
    """What has the controller make a claim for each learner, ``state-POD``. Only the policy can change later.

    The template has no labels: claims get those of the set's selector, and are not among what the operator watches.
    """
    return {
        "persistentVolumeClaimRetentionPolicy": {
            "whenDeleted": storage.when_deleted,
            "whenScaled": storage.when_scaled,
        },
        "volumeClaimTemplates": [
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": common.STATE_VOLUME},
                "spec": common.claim_spec(storage),
            }
        ],
    }


def syncer_argument(job: DiLoCoJob) -> str:
    """What tells a learner where the syncer is."""
    return f"--syncer={names.syncer_host(job.metadata.name, job.metadata.namespace)}:{common.SYNC_PORT}"


def _pod(job: DiLoCoJob, key: PoolKey, pool: Pool, set_name: str, image: str) -> Manifest:
    name = job.metadata.name
    state = None if pool.storage else room.directory(room.checkpoints_mib(job.spec), pool.resources)
    temporary = room.directory(room.temporary_mib(job.spec), pool.resources)
    container = _container(job, key, pool, image)
    if pool.nodes_per_learner > 1:
        # Where the learner's first node is: its process puts that pod's index in. The namespace is the pod's own.
        unit = f"--unit={set_name}-{{index}}.{names.learners(name)}:{common.LINK_PORT}"
        container["args"] += ["--index-of-pod", unit]
        container["ports"] += [
            common.port(common.LINK_PORT_NAME, common.LINK_PORT),
            common.port(common.STORE_PORT_NAME, common.STORE_PORT),
        ]
    volumes = common.volumes(names.config_map(name), names.learner_secret(set_name), state, temporary)
    if pool.ranks > 1 and not mounts(pool.pod_template, common.SHARED_MEMORY_DIRECTORY):
        volumes.append({"name": common.SHARED_MEMORY_VOLUME, **room.shared_memory(pool.processes)})
        container["volumeMounts"].append(
            {"name": common.SHARED_MEMORY_VOLUME, "mountPath": common.SHARED_MEMORY_DIRECTORY}
        )
    grace = GRACE_SECONDS + _more_seconds(pool)
    return {**common.pod_defaults(grace), "containers": [container], "volumes": volumes}


def _more_seconds(pool: Pool) -> int:
    """For a large last checkpoint. Without a volume, it is deleted with the pod."""
    return room.more_seconds(pool.resources, _DISK_SECONDS) if pool.storage else 0


def _of_pod(name: str, field: str) -> Manifest:
    """A variable with a field of the pod itself."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": field}}}


def _container(job: DiLoCoJob, key: PoolKey, pool: Pool, image: str) -> Manifest:
    index = _of_pod(passthrough.POD_INDEX, f"metadata.labels['{labels.POD_INDEX}']")
    uid = _of_pod(passthrough.POD, "metadata.uid")
    # The operator's variables come first: a user's may refer to them, but not the other way round.
    return {
        "name": CONTAINER,
        **common.program(image),
        "args": [
            "learner",
            *common.JOB_ARGUMENTS,
            f"--learner={key}/$({passthrough.POD_INDEX})",
            syncer_argument(job),
            "--stay",
            *common.TLS_ARGUMENTS,
        ],
        "env": [*common.environment(), index, uid, *pool.env],
        "ports": [common.port(common.HTTP_PORT_NAME, common.HTTP_PORT)],
        "resources": room.resources(
            pool.resources, None if pool.storage else room.checkpoints_mib(job.spec), pool.processes
        ),
        "volumeMounts": common.mounts(),
        **common.probes(STARTUP_SECONDS, GRACE_SECONDS if _more_seconds(pool) else None),
    }
