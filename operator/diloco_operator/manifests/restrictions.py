"""What a manifest may not add to a job's pods: privileges, paths of the node, and the job's own keys and checkpoints.

A user who may create jobs is not necessarily allowed to create pods, but the operator is. So in the parts that a user
writes, it refuses what the Pod Security Standard 'restricted' refuses. Its own Secrets and volumes are for its own
containers alone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from diloco.spec import JobSpec
from diloco.spec.errors import Problem
from diloco.spec.words import listed
from diloco_operator import names
from diloco_operator.manifests import common
from diloco_operator.manifests.errors import shown
from diloco_operator.manifests.inputs import Manifest

_REFUSED: Final = "is refused by restricted Pod Security"
_FOR_ALL: Final = (common.JOB_VOLUME, common.TEMPORARY_VOLUME)
"""The operator's volumes that an init container may mount: the manifest, and the pod's /tmp."""
_SWITCHES: Final = {"privileged": False, "allowPrivilegeEscalation": False, "runAsNonRoot": True}
"""Fields of a security context with one value that may be set."""
_CONTEXT: Final = (
    *_SWITCHES,
    "appArmorProfile",
    "capabilities",
    "procMount",
    "readOnlyRootFilesystem",
    "runAsGroup",
    "runAsUser",
    "seLinuxOptions",
    "seccompProfile",
    "windowsOptions",
)
_PROFILES: Final = ("RuntimeDefault", "Localhost")
_CAPABILITY: Final = "NET_BIND_SERVICE"
_SELINUX_TYPES: Final = ("container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_PARTS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "seccompProfile": {"type": _PROFILES},
    "appArmorProfile": {"type": _PROFILES},
    "seLinuxOptions": {"type": _SELINUX_TYPES, "user": (), "role": ()},
    "windowsOptions": {"hostProcess": ()},
    "capabilities": {},
}
"""Objects in a security context, and the values that their fields may have."""
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
    given = volume.get("hostPath")
    if given is not None:
        path = given.get("path") if isinstance(given, Mapping) else given
        yield _refused(f"{place}.hostPath", path, "use a claim, an emptyDir or another volume")


def annotation_problems(place: str, annotations: Mapping[str, str]) -> Iterator[Problem]:
    """Problems of annotations that remove a pod's AppArmor profile."""
    for key, value in annotations.items():
        if key.startswith(_APPARMOR) and value != "runtime/default" and not value.startswith("localhost/"):
            yield _refused(f"{place}.{key}", value, "use runtime/default")


def container_problems(place: str, container: Manifest, own: OwnObjects) -> Iterator[Problem]:
    """Problems of a container that a user adds."""
    yield from _context_problems(f"{place}.securityContext", container.get("securityContext"))
    for index, port in enumerate(_objects(container.get("ports"))):
        if port.get("hostPort"):
            yield _refused(f"{place}.ports[{index}].hostPort", port["hostPort"], "use containerPort alone")
    for field, hook in _hooks(container):
        for kind in ("httpGet", "tcpSocket"):
            call = hook.get(kind)
            if isinstance(call, Mapping) and call.get("host"):
                yield _refused(f"{place}.{field}.{kind}.host", call["host"], "use the pod itself: leave host out")
    for field in ("volumeMounts", "volumeDevices"):
        for index, mount in enumerate(_objects(container.get(field))):
            name = mount.get("name")
            if name in common.OUR_MOUNTS and name not in _FOR_ALL:
                text = (
                    f"{name} is for the operator's container alone; use {', '.join(_FOR_ALL)} or a volume of your own"
                )
                yield Problem(f"{place}.{field}[{index}].name", text)
    for field in ("env", "envFrom"):
        yield from reference_problems(f"{place}.{field}", container.get(field), own)


def restricted(container: Manifest) -> Manifest:
    """``container``, which has no problems, with the restrictions of the operator's containers as defaults."""
    ours, given = common.container_security(), container.get("securityContext", {})
    capabilities = given.get("capabilities", {})
    drop = ["ALL", *(one for one in capabilities.get("drop", []) if one != "ALL")]
    return {**container, "securityContext": {**ours, **given, "capabilities": {**capabilities, "drop": drop}}}


def _context_problems(place: str, context: Any) -> Iterator[Problem]:
    if context is None:
        return
    if not isinstance(context, Mapping):
        yield Problem(place, "is not an object")
        return
    for field in context:
        if field not in _CONTEXT:
            yield Problem(f"{place}.{field}", f"cannot be set here; use {listed(_CONTEXT)}")
    for field, allowed in _SWITCHES.items():
        if context.get(field) not in (None, allowed):
            yield _refused(f"{place}.{field}", context[field], f"use {shown(allowed)}, or leave it out")
    if context.get("runAsUser") in (0, "0"):
        yield _refused(f"{place}.runAsUser", context["runAsUser"], f"use a user such as {common.USER_ID}")
    yield from _one_of(f"{place}.procMount", context.get("procMount"), ("Default",))
    for field, parts in _PARTS.items():
        yield from _part_problems(f"{place}.{field}", context.get(field), parts)


def _part_problems(place: str, given: Any, parts: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    if given is None:
        return
    if not isinstance(given, Mapping):
        yield Problem(place, "is not an object")
        return
    for part, allowed in parts.items():
        yield from _one_of(f"{place}.{part}", given.get(part), allowed)
    if place.endswith(".capabilities"):
        yield from _capability_problems(place, given)


def _capability_problems(place: str, given: Mapping[str, Any]) -> Iterator[Problem]:
    for field, value in given.items():
        if field not in ("add", "drop"):
            yield Problem(f"{place}.{field}", "cannot be set here; use add or drop")
        elif value is not None and not isinstance(value, list | tuple):
            yield Problem(f"{place}.{field}", "is not a list")
        elif field == "add":
            for index, one in enumerate(value or ()):
                yield from _one_of(f"{place}.add[{index}]", one, (_CAPABILITY,))


def _one_of(place: str, value: object, allowed: Sequence[str]) -> Iterator[Problem]:
    # An empty text and false mean the same as a missing field.
    if value and value not in allowed:
        yield _refused(place, value, f"use {listed(allowed)}" if allowed else "use none: leave it out")


def _hooks(container: Manifest) -> Iterator[tuple[str, Mapping[str, Any]]]:
    found = {f"{kind}Probe": container.get(f"{kind}Probe") for kind in ("startup", "readiness", "liveness")}
    lifecycle = container.get("lifecycle")
    if isinstance(lifecycle, Mapping):
        found.update({f"lifecycle.{field}": lifecycle.get(field) for field in ("postStart", "preStop")})
    yield from ((field, hook) for field, hook in found.items() if isinstance(hook, Mapping))


def _objects(value: Any) -> Iterable[Manifest]:
    return [one if isinstance(one, dict) else {} for one in value] if isinstance(value, list | tuple) else []


def _refused(place: str, value: object, use: str) -> Problem:
    return Problem(place, f"{shown(value)} {_REFUSED}; {use}")
