"""A user's ``podTemplate``: what it adds to the operator's template, and what it may not set.

Maps are merged key by key and lists are appended; nothing that the operator sets can be replaced. Fields that are not
listed here are refused, because a field of a later Kubernetes could weaken what the operator guarantees for its pods.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from diloco.spec.errors import Problem
from diloco.spec.placement import PodTemplate
from diloco.spec.words import listed
from diloco_operator.manifests import passthrough, restrictions, sysctls
from diloco_operator.manifests.inputs import Manifest

_FIELDS: Final[Mapping[str, type]] = {
    "affinity": dict,
    "containers": list,
    "dnsConfig": dict,
    "dnsPolicy": str,
    "hostAliases": list,
    "imagePullSecrets": list,
    "initContainers": list,
    "nodeSelector": dict,
    "preemptionPolicy": str,
    "priorityClassName": str,
    "resourceClaims": list,
    "runtimeClassName": str,
    "schedulerName": str,
    "schedulingGates": list,
    "securityContext": dict,
    "serviceAccountName": str,
    "tolerations": list,
    "topologySpreadConstraints": list,
    "volumes": list,
}
"""Fields of a pod's spec that may be set, and the type of each."""
_OF_CONTAINER: Final = ("name", "env", "envFrom", "volumeMounts")
"""Fields of the operator's own container that may be set."""
_APPENDED: Final = ("imagePullSecrets", "initContainers", "securityContext", "volumes")
_KINDS: Final[Mapping[type, str]] = {str: "text", dict: "an object", list: "a list of objects"}
_OUR_PREFIXES: Final = ("diloco.dev/", "app.kubernetes.io/", "apps.kubernetes.io/", "statefulset.kubernetes.io/")


def problems(
    place: str, template: PodTemplate, container: str, also: Mapping[str, Any], own: restrictions.OwnObjects
) -> Iterator[Problem]:
    """Problems of ``template``, which is at ``place`` in the manifest.

    ``container`` is the name of the operator's container, ``also`` has the pod's fields that are set outside the
    template, and ``own`` the objects that its pods get from the operator alone.
    """
    for field, given in (("labels", template.metadata.labels), ("annotations", template.metadata.annotations)):
        for key in given:
            if key.startswith(_OUR_PREFIXES):
                yield Problem(
                    f"{place}.metadata.{field}.{key}", "is reserved for Kubernetes or the operator; use another key"
                )
    annotations = template.metadata.annotations
    yield from restrictions.annotation_problems(f"{place}.metadata.annotations", annotations)
    found = list(_kinds(f"{place}.spec", template.spec, also))
    yield from found
    if not found:
        yield from _items(f"{place}.spec", template.spec, container, also, own)


def patched(template: Manifest, patch: PodTemplate, container: str) -> Manifest:
    """A pod's ``template`` with what ``patch``, which has no problems, adds."""
    metadata, spec = template["metadata"], template["spec"]
    labels = {**patch.metadata.labels, **metadata["labels"]}
    annotations = {**patch.metadata.annotations, **metadata.get("annotations", {})}
    given = passthrough.without_nulls(patch.spec)
    ours: Manifest = next((one for one in given.pop("containers", []) if one["name"] == container), {})
    more = {key: value for key, value in given.items() if value and key not in _APPENDED}
    found = {**spec, **more, "containers": [_container(one, ours) for one in spec["containers"]]}
    if volumes := given.get("volumes"):
        found["volumes"] = [*spec["volumes"], *volumes]
    if wanted := given.get("securityContext", {}).get("sysctls"):
        found["securityContext"] = {**spec["securityContext"], "sysctls": wanted}
    if first := given.get("initContainers"):
        found["initContainers"] = [restrictions.restricted(one) for one in first]
    if pulling := given.get("imagePullSecrets"):
        # The syncer uses those of the first pool.
        there = {one["name"]: one for one in spec.get("imagePullSecrets", [])}
        found["imagePullSecrets"] = list((there | {one["name"]: one for one in pulling}).values())
    return {
        "metadata": {**metadata, "labels": labels, **({"annotations": annotations} if annotations else {})},
        "spec": found,
    }


def _container(ours: Manifest, given: Manifest) -> Manifest:
    added = {key: [*ours.get(key, []), *given[key]] for key in _OF_CONTAINER if key != "name" and given.get(key)}
    return {**ours, **added}


def _kinds(place: str, spec: Manifest, also: Mapping[str, Any]) -> Iterator[Problem]:
    for field, value in spec.items():
        if field not in _FIELDS:
            yield Problem(f"{place}.{field}", f"cannot be set here; use {listed(_FIELDS)}")
        elif value is None:
            continue
        elif not _is(value, _FIELDS[field]):
            yield Problem(f"{place}.{field}", f"is not {_KINDS[_FIELDS[field]]}")
        elif also.get(field) and field != "volumes":
            yield Problem(f"{place}.{field}", f"is also set outside podTemplate, as {field}; use one of them")


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind) and (kind is not list or all(isinstance(one, dict) for one in value))  # type: ignore[attr-defined]  # a list


def _items(
    place: str, spec: Manifest, container: str, also: Mapping[str, Any], own: restrictions.OwnObjects
) -> Iterator[Problem]:
    yield from sysctls.problems(f"{place}.securityContext", spec.get("securityContext") or {})
    volumes = spec.get("volumes") or []
    yield from passthrough.keyed_problems(f"{place}.volumes", volumes, "name", passthrough.volume_problems)
    yield from restrictions.reference_problems(f"{place}.volumes", volumes, own)
    there = [str(one.get("name")) for one in also.get("volumes", ())]
    for index, one in enumerate(volumes):
        if one.get("name") in there:
            yield Problem(f"{place}.volumes[{index}].name", f"{one['name']} is also one of volumes; use each name once")
    for field in ("containers", "imagePullSecrets", "initContainers"):
        yield from passthrough.keyed_problems(f"{place}.{field}", spec.get(field) or [], "name", passthrough.no_more)
    for index, one in enumerate(spec.get("initContainers") or []):
        yield from restrictions.container_problems(f"{place}.initContainers[{index}]", one, own)
        if one.get("name") == container:
            yield Problem(f"{place}.initContainers[{index}].name", f"{container} is the operator's; use another name")
    known = [*(str(one.get("name")) for one in volumes), *there]
    for index, one in enumerate(spec.get("containers") or []):
        yield from _container_problems(f"{place}.containers[{index}]", one, container, known, also)
        for field in ("env", "envFrom"):
            yield from restrictions.reference_problems(f"{place}.containers[{index}].{field}", one.get(field), own)


def _container_problems(
    place: str, one: Manifest, container: str, known: Sequence[str], also: Mapping[str, Any]
) -> Iterator[Problem]:
    if one.get("name") != container:
        text = f"is not {container}; put a sidecar under initContainers, with restartPolicy: Always"
        yield Problem(f"{place}.name", text)
        return
    for field, value in one.items():
        if field == "name":
            continue
        if field not in _OF_CONTAINER:
            yield Problem(f"{place}.{field}", f"cannot be set here; use {listed(_OF_CONTAINER)}")
        elif value is not None and not _is(value, list):
            yield Problem(f"{place}.{field}", "is not a list of objects")
        elif value and also.get(field):
            yield Problem(f"{place}.{field}", f"is also set outside podTemplate, as {field}; use one of them")
        elif value and field == "env":
            yield from passthrough.keyed_problems(f"{place}.env", value, "name", passthrough.variable_problems)
        elif value and field == "volumeMounts":
            yield from _mount_problems(f"{place}.volumeMounts", value, known)


def _mount_problems(place: str, mounts: Sequence[Manifest], known: Sequence[str]) -> Iterator[Problem]:
    yield from passthrough.keyed_problems(place, mounts, "mountPath", passthrough.mount_problems)
    for index, mount in enumerate(mounts):
        if mount.get("name") not in known:
            yield Problem(f"{place}[{index}].name", "is not a volume of this pod; use one of volumes, or add it there")
