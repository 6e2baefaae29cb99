"""What all objects and pods of a job have in common: metadata, owner, restricted security, probes."""

from collections.abc import Mapping
from typing import Any, Final

from diloco.spec import DiLoCoJob
from diloco.spec.placement import LearnerStorage, Storage
from diloco_operator.manifests.inputs import Manifest

SYNC_PORT: Final = 29400
HTTP_PORT: Final = 8080
LINK_PORT: Final = 29401
"""Between the nodes of a learner: the further ones connect to the first."""
STORE_PORT: Final = 29402
"""The store by which their processes find each other."""
SYNC_PORT_NAME: Final = "sync"
HTTP_PORT_NAME: Final = "http"
LINK_PORT_NAME: Final = "link"
STORE_PORT_NAME: Final = "store"

USER_ID: Final = 10001
"""User and group of every process, unless the platform assigns them; the images run as any."""

JOB_DIRECTORY: Final = "/etc/diloco/job"
JOB_FILE: Final = "job.json"
TLS_DIRECTORY: Final = "/etc/diloco/tls"
STATE_DIRECTORY: Final = "/var/lib/diloco"
TEMPORARY_DIRECTORY: Final = "/tmp"  # noqa: S108  # a volume of the pod's own

JOB_VOLUME, TLS_VOLUME, STATE_VOLUME, TEMPORARY_VOLUME = "job", "tls", "state", "tmp"

OUR_MOUNTS: Final = {
    JOB_VOLUME: JOB_DIRECTORY,
    TLS_VOLUME: TLS_DIRECTORY,
    STATE_VOLUME: STATE_DIRECTORY,
    TEMPORARY_VOLUME: TEMPORARY_DIRECTORY,
}
"""Where each of the operator's volumes is mounted, in every pod."""
SHARED_MEMORY_VOLUME: Final = "shared-memory"
SHARED_MEMORY_DIRECTORY: Final = "/dev/shm"  # noqa: S108  # a volume of the pod's own
OUR_VOLUMES: Final = (*OUR_MOUNTS, SHARED_MEMORY_VOLUME)

TLS_ARGUMENTS: Final = (
    f"--tls-ca={TLS_DIRECTORY}/ca.crt",
    f"--tls-cert={TLS_DIRECTORY}/tls.crt",
    f"--tls-key={TLS_DIRECTORY}/tls.key",
)

JOB_ARGUMENTS: Final = (
    f"--job={JOB_DIRECTORY}/{JOB_FILE}",
    f"--directory={STATE_DIRECTORY}",
    f"--http=[::]:{HTTP_PORT}",
    "--log-json",
)

_MAY_READ: Final = 0o440
"""Mode of a key's file: readable by its user and the pod's group."""


def metadata(job: DiLoCoJob, name: str, labels: Mapping[str, str], annotations: Mapping[str, str] | None = None) -> Any:
    """Metadata of an object in the job's namespace that is deleted with the job.

    A job without a uid is not in a cluster, and cannot own objects.
    """
    found: dict[str, Any] = {"name": name, "namespace": job.metadata.namespace, "labels": dict(labels)}
    if annotations:
        found["annotations"] = dict(annotations)
    if job.metadata.uid:
        found["ownerReferences"] = [
            {
                "apiVersion": job.api_version,
                "kind": job.kind,
                "name": job.metadata.name,
                "uid": job.metadata.uid,
                "controller": True,
            }
        ]
    return found


def unowned(metadata: Any) -> Any:
    """The metadata of an object that stays when the job is deleted."""
    return {key: value for key, value in metadata.items() if key != "ownerReferences"}


def pod_security() -> Manifest:
    """A pod's security context as the Pod Security Standard 'restricted' requires it."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        # So that kubelet does not walk through a volume of many checkpoints at every start.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def without_ids(one: Manifest) -> Manifest:
    """``one``, whose pods get user and groups from the platform: it refuses those outside the namespace's range."""
    template = one.get("spec", {}).get("template")
    if template is None:
        return one
    pod = template["spec"]
    security = {key: value for key, value in pod["securityContext"].items() if value != USER_ID}
    return {**one, "spec": {**one["spec"], "template": {**template, "spec": {**pod, "securityContext": security}}}}


def container_security() -> Manifest:
    """A container's security context, likewise."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def pod_defaults(grace_seconds: int) -> Manifest:
    """Fields that every pod has: no token for the API server, no environment variables of other Services."""
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": grace_seconds,
    }


def program(image: str) -> Manifest:
    """The program of every container of the operator's; ``args`` select its command."""
    return {
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        # Not the image's own entry point: those of vendors' images may do something else first.
        "command": ["diloco"],
        "securityContext": container_security(),
        # The operator reads the cause of its end from its last lines.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def claim_spec(storage: Storage | LearnerStorage) -> Manifest:
    """The spec of a PersistentVolumeClaim."""
    chosen = {} if storage.class_name is None else {"storageClassName": storage.class_name}
    return {
        "accessModes": [storage.access_mode],
        **chosen,
        "resources": {"requests": {"storage": str(storage.size)}},
    }


def environment() -> list[Manifest]:
    """Variables of every container. The root file system is read-only, so the home directory is a writable one."""
    return [{"name": "HOME", "value": TEMPORARY_DIRECTORY}]


def volumes(config_map: str, tls_secret: str, state: Manifest | None, temporary: Manifest) -> list[Manifest]:
    """The operator's volumes; ``state`` is the source of the one that outlives a container, ``temporary`` of /tmp's.

    No ``state``: the StatefulSet's controller adds it to every pod (``volumeClaimTemplates``).
    """
    return [
        {"name": JOB_VOLUME, "configMap": {"name": config_map}},
        {"name": TLS_VOLUME, "secret": {"secretName": tls_secret, "defaultMode": _MAY_READ}},
        *([] if state is None else [{"name": STATE_VOLUME, **state}]),
        {"name": TEMPORARY_VOLUME, **temporary},
    ]


def mounts() -> list[Manifest]:
    """Where the operator's volumes are mounted."""
    read_only = {JOB_VOLUME, TLS_VOLUME}
    return [
        {"name": name, "mountPath": path, **({"readOnly": True} if name in read_only else {})}
        for name, path in OUR_MOUNTS.items()
    ]


def probes(startup_seconds: int, grace_seconds: int | None = None) -> Manifest:
    """Startup, readiness and liveness of a container that serves /healthz and /readyz at the port named http.

    It may take ``startup_seconds`` until its first answer; after that, 90 seconds without an answer end it, within
    ``grace_seconds``, by default the pod's grace period.
    """
    period_seconds = 5
    grace = {} if grace_seconds is None else {"terminationGracePeriodSeconds": grace_seconds}
    return {
        "startupProbe": {**_probe("/healthz", period_seconds, startup_seconds // period_seconds), **grace},
        "readinessProbe": _probe("/readyz", period_seconds, 2),
        "livenessProbe": {**_probe("/healthz", 15, 6), **grace},
    }


def port(name: str, number: int) -> Manifest:
    """A container's port."""
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def _probe(path: str, period_seconds: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": HTTP_PORT_NAME},
        "periodSeconds": period_seconds,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
