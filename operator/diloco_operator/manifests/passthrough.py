"""What a pool passes to its pods unchanged: checked against what the operator sets, and in the API server's form.

Kubernetes checks the rest itself. Checked here is what it cannot know (which names and paths are taken), or would
report without naming the field (a key twice in a list, a number where a variable's value is text).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from diloco.spec import JobSpec
from diloco.spec.errors import Problem
from diloco.spec.placement import Pool, Resources
from diloco.spec.words import listed
from diloco_operator.manifests import restrictions
from diloco_operator.manifests.common import OUR_MOUNTS, TEMPORARY_DIRECTORY
from diloco_operator.manifests.errors import InvalidSpecError, shown
from diloco_operator.manifests.inputs import Manifest
from diloco_operator.manifests.quantity import canonical, canonical_resources

POD_INDEX: Final = "POD_INDEX"
"""The variable with a learner's index in its pool."""
POD: Final = "DILOCO_POD"
"""The variable with the uid of a learner's pod."""
OUR_VARIABLES: Final = ("HOME", POD_INDEX, POD)


def check(spec: JobSpec, own: restrictions.OwnObjects) -> None:
    """Refuse what conflicts with what the operator sets in pods, and what would give them objects of ``own``.

    Raises:
        InvalidSpecError: with every problem, each with its place.
    """
    found = [
        problem
        for i, region in enumerate(spec.regions)
        for j, pool in enumerate(region.pools)
        for problem in _problems(f"spec.regions[{i}].pools[{j}]", pool, own)
    ]
    if found:
        raise InvalidSpecError(found)


def pod_fields(pool: Pool) -> Manifest:
    """The fields of a pod's spec that only a pool sets. Those that it leaves out are missing."""
    fields = {
        "nodeSelector": dict(pool.node_selector),
        "tolerations": [one.model_dump(by_alias=True, exclude_none=True) for one in pool.tolerations],
        "affinity": without_nulls(pool.affinity),
        "priorityClassName": pool.priority_class_name,
        "runtimeClassName": pool.runtime_class_name,
        "imagePullSecrets": [without_nulls(one) for one in pool.image_pull_secrets],
    }
    return {name: value for name, value in fields.items() if value}


def resources(passed: Resources | None) -> Manifest:
    """``{"resources": ...}`` of a container, or nothing."""
    given = {} if passed is None else passed.model_dump(mode="json", by_alias=True)
    found = canonical_resources({key: value for key, value in without_nulls(given).items() if value})
    return {"resources": found} if found else {}


def variables(pool: Pool) -> list[Manifest]:
    """A pool's own environment variables."""
    return [_variable(without_nulls(one)) for one in pool.env]


def volumes(pool: Pool) -> list[Manifest]:
    """A pool's own volumes."""
    return [_volume(without_nulls(one)) for one in pool.volumes]


def mounts(pool: Pool) -> list[Manifest]:
    """Where a pool mounts them."""
    return [{key: value for key, value in without_nulls(one).items() if value != ""} for one in pool.volume_mounts]


def without_nulls(value: Any) -> Any:
    """``value`` without nulls in mappings, as a null means the same as a missing field."""
    if isinstance(value, Mapping):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [without_nulls(inner) for inner in value]
    return value


def _variable(variable: Manifest) -> Manifest:
    source = variable.get("valueFrom")
    if isinstance(source, dict) and isinstance(source.get("resourceFieldRef"), dict):
        field = source["resourceFieldRef"]
        if "divisor" in field:
            field = {**field, "divisor": canonical(field["divisor"])}
        return {**variable, "valueFrom": {**source, "resourceFieldRef": field}}
    # The server drops an empty value, as a variable without a value is empty.
    return {key: value for key, value in variable.items() if (key, value) != ("value", "")}


def _volume(volume: Manifest) -> Manifest:
    directory = volume.get("emptyDir")
    if isinstance(directory, dict) and "sizeLimit" in directory:
        return {**volume, "emptyDir": {**directory, "sizeLimit": canonical(directory["sizeLimit"])}}
    return volume


def _problems(path: str, pool: Pool, own: restrictions.OwnObjects) -> Iterator[Problem]:
    yield from keyed_problems(f"{path}.env", pool.env, "name", variable_problems)
    yield from keyed_problems(f"{path}.volumes", pool.volumes, "name", volume_problems)
    yield from keyed_problems(f"{path}.volumeMounts", pool.volume_mounts, "mountPath", mount_problems)
    yield from keyed_problems(f"{path}.imagePullSecrets", pool.image_pull_secrets, "name", no_more)
    yield from restrictions.reference_problems(f"{path}.env", pool.env, own)
    yield from restrictions.reference_problems(f"{path}.volumes", pool.volumes, own)
    known = [str(volume.get("name")) for volume in pool.volumes]
    use = f"use {listed(known)}" if known else f"it has none; add it to {path}.volumes"
    for index, mount in enumerate(pool.volume_mounts):
        name = mount.get("name")
        if name not in known:
            wrong = f"{shown(name)} is not a volume of this pool" if name is not None else "is missing"
            yield Problem(f"{path}.volumeMounts[{index}].name", f"{wrong}; {use}")


def keyed_problems(path: str, items: Sequence[Manifest], key: str, more: Any) -> Iterator[Problem]:
    """Problems of the list at ``path``, whose items are identified by ``key``; ``more`` checks each item."""
    seen: dict[str, int] = {}
    for index, item in enumerate(items):
        place, value = f"{path}[{index}]", item.get(key)
        if not isinstance(value, str) or not value:
            wrong = "is missing; use text" if value in (None, "") else f"{shown(value)} is not text; put it in quotes"
            yield Problem(f"{place}.{key}", wrong)
            continue
        if value in seen:
            yield Problem(f"{place}.{key}", f"{shown(value)} is also used by {path}[{seen[value]}]; use each once")
        seen.setdefault(value, index)
        yield from more(place, item)


def no_more(_place: str, _item: Manifest) -> Iterator[Problem]:
    """No further checks beside that of the key."""
    return iter(())


def variable_problems(place: str, variable: Manifest) -> Iterator[Problem]:
    """Problems of an environment variable."""
    name, value = variable["name"], variable.get("value")
    if name in OUR_VARIABLES:
        yield _taken(f"{place}.name", name, OUR_VARIABLES)
    if value is not None and not isinstance(value, str):
        yield Problem(f"{place}.value", f"{shown(value)} is not text; put it in quotes")


def volume_problems(place: str, volume: Manifest) -> Iterator[Problem]:
    """Problems of a volume."""
    name = volume["name"]
    if name in OUR_MOUNTS:
        yield _taken(f"{place}.name", name, OUR_MOUNTS)
    yield from restrictions.volume_problems(place, volume)


def mount_problems(place: str, mount: Manifest) -> Iterator[Problem]:
    """Problems of a volume mount."""
    path = PurePosixPath(mount["mountPath"])
    if not path.is_absolute() or ".." in path.parts:
        yield Problem(f"{place}.mountPath", f"{shown(str(path))} is not a plain absolute path; use one such as /data")
        return
    # One slash and two are the same place to a kubelet.
    path = PurePosixPath("/", *path.parts[1:])
    for ours in OUR_MOUNTS.values():
        own = PurePosixPath(ours)
        # Mounts inside /tmp are allowed; the content of the other paths is diloco's.
        inside = path == own or (path.is_relative_to(own) and ours != TEMPORARY_DIRECTORY)
        if inside or own.is_relative_to(path):
            yield Problem(
                f"{place}.mountPath",
                f"{shown(str(path))} conflicts with {ours}, which the operator mounts; use one such as /data",
            )
            return


def _taken(place: str, name: str, ours: Iterable[str]) -> Problem:
    return Problem(place, f"{name} is set by the operator; use a name other than {listed(ours)}")
