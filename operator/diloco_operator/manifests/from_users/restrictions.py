"""What a manifest may not add to a job's pods: privileges, paths of the node, and the job's own keys and checkpoints.

A user who may create jobs is not necessarily allowed to create pods, but the operator is. So in the parts that a user
writes, it refuses what the Pod Security Standard 'restricted' refuses. Its own Secrets and volumes are for its own
containers alone.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from diloco.spec import JobSpec
from diloco.spec.errors import Problem
from diloco_operator import names
from diloco_operator.manifests import common
from diloco_operator.manifests.errors import shown
from diloco_operator.manifests.inputs import Manifest

_REFUSED: Final = "is refused by restricted Pod Security"
NO_VOLUME: Final = "is not a volume of this pod; use one of volumes, or add it there"
_FOR_ALL: Final = (common.JOB_VOLUME, common.TEMPORARY_VOLUME)
"""The operator's volumes that an init container may mount: the manifest, and the pod's /tmp."""
_APPARMOR: Final = "container.apparmor.security.beta.kubernetes.io/"
_SECRETS: Final = ("secret", "secretRef", "secretKeyRef", "nodePublishSecretRef")
"""Keys under which parts of a pod name a Secret by its ``name``."""
_CLAIMS: Final = ("dataSource", "dataSourceRef")
"""Keys under which a claim's template names another claim by its ``name``."""


@dataclass(frozen=True)
class OwnObjects:
    """Objects of a job that only the operator gives to its pods: a description of each, by name."""

    secrets: Mapping[str, str]
    claims: Mapping[str, str]


def own_objects(job: str, sets: names.SetNames) -> OwnObjects:
    """The objects of the job of this name with these StatefulSets."""
    secrets = {names.learner_secret(name): f"the Secret with the key of pool {pool}" for pool, name in sets.items()}
    secrets[names.syncer_secret(job)] = "the Secret with the syncer's key"
    secrets[names.authority_secret(job)] = "the Secret with the key of this job's certificate authority"
    return OwnObjects(secrets, {names.syncer(job): "the syncer's claim, with its checkpoints"})


def reference_problems(place: str, value: Any, own: OwnObjects) -> Iterator[Problem]:
    """Problems of a volume, a variable or a list of them at ``place`` that names an object of ``own``."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            kind, field, name = _reference(key, inner)
            whose = own.secrets if kind == "Secret" else own.claims
            if kind and isinstance(name, str) and name in whose:
                yield Problem(f"{place}.{key}{field}", f"{name} is {whose[name]}; use another {kind}")
            else:
                yield from reference_problems(f"{place}.{key}", inner, own)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from reference_problems(f"{place}[{index}]", inner, own)


def store_problems(spec: JobSpec, own: OwnObjects) -> Iterator[Problem]:
    """Problems of the Secrets that hold credentials of stores."""
    for place, given in (("spec.initFrom", spec.init_from), ("spec.syncer.backup", spec.syncer.backup)):
        if given is not None and given.secret_name:
            yield from reference_problems(place, {"secretName": given.secret_name}, own)


def _reference(key: str, value: Any) -> tuple[str, str, object]:
    if key == "secretName":
        return "Secret", "", value
    if key == "claimName":
        return "claim", "", value
    if isinstance(value, Mapping) and key in _SECRETS and "name" in value:
        return "Secret", ".name", value["name"]
    if isinstance(value, Mapping) and key in _CLAIMS and "name" in value:
        return "claim", ".name", value["name"]
    return "", "", None


def volume_problems(place: str, volume: Manifest) -> Iterator[Problem]:
    """Problems of a volume that is a path of the node."""
    if "hostPath" in volume:
        yield _refused(f"{place}.hostPath", volume["hostPath"]["path"], "use a claim, an emptyDir or another volume")


def annotation_problems(place: str, annotations: Mapping[str, str]) -> Iterator[Problem]:
    """Problems of annotations that remove a pod's AppArmor profile."""
    for key, value in annotations.items():
        if key.startswith(_APPARMOR) and value != "runtime/default" and not value.startswith("localhost/"):
            yield _refused(f"{place}.{key}", value, "use runtime/default")


def container_problems(place: str, container: Manifest, volumes: Collection[str], own: OwnObjects) -> Iterator[Problem]:
    """Problems of a container that a user adds; ``volumes``: the names of the user's volumes."""
    if "securityContext" in container:
        yield Problem(f"{place}.securityContext", "is set by the operator, as for its own container; remove it")
    for index, port in enumerate(container.get("ports", ())):
        if port.get("hostPort"):
            yield _refused(f"{place}.ports[{index}].hostPort", port["hostPort"], "use containerPort alone")
    for field, host in _hosts(container):
        yield _refused(f"{place}.{field}.host", host, "use the pod itself: leave host out")
    for field in ("volumeMounts", "volumeDevices"):
        for index, mount in enumerate(container.get(field, ())):
            name, where = mount["name"], f"{place}.{field}[{index}].name"
            if name in common.OUR_MOUNTS and name not in _FOR_ALL:
                text = f"is for the operator's container alone; use {', '.join(_FOR_ALL)} or a volume of your own"
                yield Problem(where, f"{name} {text}")
            elif name not in (*_FOR_ALL, *volumes):
                yield Problem(where, NO_VOLUME)
    for field in ("env", "envFrom"):
        yield from reference_problems(f"{place}.{field}", container.get(field), own)


def _hosts(container: Manifest) -> Iterator[tuple[str, object]]:
    """Hosts that kubelet would call for the container, each with the field of the call."""
    found = {f"{kind}Probe": container.get(f"{kind}Probe", {}) for kind in ("startup", "readiness", "liveness")}
    lifecycle = container.get("lifecycle", {})
    found.update({f"lifecycle.{field}": lifecycle.get(field, {}) for field in ("postStart", "preStop")})
    for field, hook in found.items():
        for kind in ("httpGet", "tcpSocket"):
            if host := hook.get(kind, {}).get("host"):
                yield f"{field}.{kind}", host


def _refused(place: str, value: object, use: str) -> Problem:
    return Problem(place, f"{shown(value)} {_REFUSED}; {use}")
