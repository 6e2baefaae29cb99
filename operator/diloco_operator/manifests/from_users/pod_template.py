"""A user's ``podTemplate``: what it adds to the operator's template, and what it may not add.

Maps are merged key by key and lists are appended; of what the operator sets only ``imagePullPolicy`` can be replaced.
Which fields a template may have, and with which values, is a matter of the manifest (`diloco.spec.pods`): a field of a
later Kubernetes could weaken what the operator guarantees for its pods. Checked here is what Kubernetes cannot know:
which names, paths and objects are the operator's.
"""

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final

from diloco.spec.errors import Problem
from diloco.spec.job import JobSpec
from diloco.spec.pods import OwnContainer, PodMetadata, PodTemplate
from diloco_operator.manifests import common
from diloco_operator.manifests.errors import shown
from diloco_operator.manifests.from_users import passthrough, restrictions
from diloco_operator.manifests.inputs import Manifest

_OUR_PREFIXES: Final = ("diloco.dev/", "app.kubernetes.io/", "apps.kubernetes.io/", "statefulset.kubernetes.io/")


def patched(template: Manifest, patch: PodTemplate | None, container: str) -> Manifest:
    """A pod's ``template`` with what ``patch``, which has no problems, adds; ``container``: the operator's."""
    if patch is None:
        return template
    metadata, spec = template["metadata"], template["spec"]
    labels = {**patch.metadata.labels, **metadata["labels"]}
    annotations = {**patch.metadata.annotations, **metadata.get("annotations", {})}
    given = patch.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    (ours,) = given.pop("containers", [{"name": container}])
    found = {
        **spec,
        **given,
        "containers": [_added(one, ours) if one["name"] == container else one for one in spec["containers"]],
        "volumes": [*spec["volumes"], *given.get("volumes", ())],
        "securityContext": {**spec["securityContext"], **given.get("securityContext", {})},
    }
    if first := given.get("initContainers"):
        found["initContainers"] = [{**one, "securityContext": common.container_security()} for one in first]
    return {
        "metadata": {**metadata, "labels": labels, **({"annotations": annotations} if annotations else {})},
        "spec": found,
    }


def _added(container: Manifest, more: Manifest) -> Manifest:
    lists = {key: [*container.get(key, []), *value] for key, value in more.items() if isinstance(value, list)}
    return {**container, **more, **lists}


def mounts(patch: PodTemplate | None, path: str) -> bool:
    """Whether ``patch`` mounts a volume at ``path`` into the operator's container."""
    ours = () if patch is None else patch.spec.containers
    return any(_path(mount["mountPath"]) == PurePosixPath(path) for one in ours for mount in one.volume_mounts)


def problems(place: str, template: PodTemplate, container: str, own: restrictions.OwnObjects) -> Iterator[Problem]:
    """Problems of ``template``, at ``place`` in the manifest; ``own``: objects that only the operator gives to pods."""
    yield from metadata_problems(f"{place}.metadata", template.metadata)
    spec, place = template.spec, f"{place}.spec"
    volumes = [volume["name"] for volume in spec.volumes]
    for index, volume in enumerate(spec.volumes):
        if volume["name"] in common.OUR_VOLUMES:
            yield passthrough.taken(f"{place}.volumes[{index}].name", volume["name"], common.OUR_VOLUMES)
        yield from restrictions.volume_problems(f"{place}.volumes[{index}]", volume)
    yield from restrictions.reference_problems(f"{place}.volumes", spec.volumes, own)
    for index, one in enumerate(spec.init_containers):
        yield from restrictions.container_problems(f"{place}.initContainers[{index}]", one, volumes, own)
        if one["name"] == container:
            yield Problem(f"{place}.initContainers[{index}].name", f"{container} is the operator's; use another name")
    for index, ours in enumerate(spec.containers):
        if ours.name != container:
            text = f"{ours.name} is not {container}; put a sidecar under initContainers, with restartPolicy: Always"
            yield Problem(f"{place}.containers[{index}].name", text)
        yield from _container_problems(f"{place}.containers[{index}]", ours, volumes)
        yield from restrictions.reference_problems(f"{place}.containers[{index}].envFrom", ours.env_from, own)


def metadata_problems(place: str, given: PodMetadata | JobSpec) -> Iterator[Problem]:
    """Problems of ``given``'s labels and annotations, for pods or for all objects, at ``place`` in the manifest."""
    for field, ones in (("labels", given.labels), ("annotations", given.annotations)):
        for key in ones:
            if key.startswith(_OUR_PREFIXES):
                yield Problem(f"{place}.{field}.{key}", "is reserved for Kubernetes or the operator; use another key")
    yield from restrictions.annotation_problems(f"{place}.annotations", given.annotations)


def _container_problems(place: str, container: OwnContainer, volumes: Sequence[str]) -> Iterator[Problem]:
    for index, mount in enumerate(container.volume_mounts):
        where, path = f"{place}.volumeMounts[{index}]", PurePosixPath(mount["mountPath"])
        if mount["name"] not in volumes:
            yield Problem(f"{where}.name", restrictions.NO_VOLUME)
        if not path.is_absolute() or ".." in path.parts:
            yield Problem(
                f"{where}.mountPath", f"{shown(str(path))} is not a plain absolute path; use one such as /data"
            )
        elif ours := _conflict(path):
            text = f"{shown(str(path))} conflicts with {ours}, which the operator mounts; use one such as /data"
            yield Problem(f"{where}.mountPath", text)


def _conflict(path: PurePosixPath) -> str | None:
    """The operator's mount that a mount at ``path`` would hide or be in."""
    path = _path(str(path))
    for ours in common.OUR_MOUNTS.values():
        own = PurePosixPath(ours)
        # Mounts inside /tmp are allowed; the content of the other paths is diloco's.
        inside = path == own or (path.is_relative_to(own) and ours != common.TEMPORARY_DIRECTORY)
        if inside or own.is_relative_to(path):
            return ours
    return None


def _path(text: str) -> PurePosixPath:
    # One slash and two are the same place to a kubelet.
    return PurePosixPath("/", *PurePosixPath(text).parts[1:])
