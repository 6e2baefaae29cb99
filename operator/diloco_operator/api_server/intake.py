"""Checks what the API server of another cluster sends, where it comes in.

Whoever runs that server may send anything as an object. What decisions read of one has the types here that a real API
server keeps to, so that nothing has to be checked again: a text, a whole number of 64 bits, a list, never a null. An
object that has not is refused as a whole. Pure.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from diloco_operator.api_server.kinds import CLAIM, CONFIG_MAP, CORE_EVENT, LEASE, POD, SECRET, STATEFUL_SET, Kind

DEEPEST: Final = 60
"""Levels of an object. The deepest kind, with CustomResourceDefinitions left out, has half of them."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LONGEST_ID: Final = 128
_LONGEST_LABEL: Final = 63
_MOST: Final = 2**63
_IDENTIFYING: Final = frozenset(
    {"name", "mountPath", "uid", "topologyKey", "whenUnsatisfiable", "ip", "containerPort", "protocol", "port"}
)
"""Fields that tell the items of a list apart (x-kubernetes-list-map-keys): each a text or a number."""


class UnreadableError(ValueError):
    """No API server sends this. The text names the field, and quotes nothing."""


class _Map:
    """Any keys; the values are texts, or with `numbers` numbers too."""

    def __init__(self, *, numbers: bool = False) -> None:
        self.types = (str, int, float) if numbers else (str,)


class _Count:
    """A whole number that is not negative."""


_TEXTS: Final = _Map()
_COUNT: Final = _Count()
_CONDITIONS: Final = [
    {"type": str, "status": str, "reason": str, "message": str, "lastTransitionTime": str},
]
_OBJECT: Final = {
    "apiVersion": str,
    "kind": str,
    "metadata": {
        "name": str,
        "namespace": str,
        "uid": str,
        "resourceVersion": str,
        "generation": _COUNT,
        "creationTimestamp": str,
        "deletionTimestamp": str,
        "deletionGracePeriodSeconds": _COUNT,
        "labels": _TEXTS,
        "annotations": _TEXTS,
        "finalizers": [str],
        "ownerReferences": [{"apiVersion": str, "kind": str, "name": str, "uid": str, "controller": bool}],
    },
}
_QUANTITIES: Final = _Map(numbers=True)
_CONTAINER: Final = {
    **dict.fromkeys(("name", "image"), str),
    "resources": {"limits": _QUANTITIES, "requests": _QUANTITIES},
    **{key: [{}] for key in ("env", "volumeMounts")},
    **{key: {} for key in ("startupProbe", "readinessProbe", "livenessProbe")},
}
_STATE: Final = {
    "waiting": {"reason": str, "message": str},
    "running": {"startedAt": str},
    "terminated": {
        **dict.fromkeys(("reason", "message", "startedAt", "finishedAt"), str),
        "exitCode": int,
        "signal": int,
    },
}
_CONTAINER_STATUS: Final = {
    "name": str,
    "image": str,
    "ready": bool,
    "restartCount": _COUNT,
    "state": _STATE,
    "lastState": _STATE,
}
_FIELDS: Final = {"matchFields": [{"key": str, "operator": str, "values": [str]}]}
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_AFFINITY: Final = {
    "nodeAffinity": {_PREFERRED: [{"preference": _FIELDS}]},
    "podAntiAffinity": {_PREFERRED: [{}]},
}
_COUNTS: Final = ("replicas", "readyReplicas", "updatedReplicas", "availableReplicas", "observedGeneration")
_BY_KIND: Final[Mapping[str, Any]] = {
    STATEFUL_SET.name: {
        "spec": {
            "replicas": _COUNT,
            "template": {
                "metadata": {"labels": _TEXTS, "annotations": _TEXTS},
                "spec": {
                    "containers": [_CONTAINER],
                    "initContainers": [_CONTAINER],
                    "volumes": [{}],
                    "affinity": _AFFINITY,
                    "topologySpreadConstraints": [{}],
                },
            },
        },
        "status": {
            **dict.fromkeys(_COUNTS, _COUNT),
            **dict.fromkeys(("currentRevision", "updateRevision"), str),
            "conditions": _CONDITIONS,
        },
    },
    SECRET.name: {"data": _TEXTS},
    CONFIG_MAP.name: {"data": _TEXTS},
    POD.name: {
        "spec": {
            "nodeName": str,
            "affinity": _AFFINITY,
            "volumes": [{"name": str, "persistentVolumeClaim": {"claimName": str}, "ephemeral": {}}],
        },
        "status": {
            **dict.fromkeys(("phase", "reason", "message", "startTime"), str),
            "conditions": _CONDITIONS,
            "initContainerStatuses": [_CONTAINER_STATUS],
            "containerStatuses": [_CONTAINER_STATUS],
        },
    },
    LEASE.name: {
        "spec": {
            **dict.fromkeys(("holderIdentity", "acquireTime", "renewTime"), str),
            **dict.fromkeys(("leaseDurationSeconds", "leaseTransitions"), _COUNT),
        }
    },
    CLAIM.name: {"spec": {"accessModes": [str]}},
    CORE_EVENT.name: {
        "involvedObject": {"uid": str},
        **dict.fromkeys(("type", "reason", "message", "lastTimestamp", "eventTime"), str),
    },
}


def received(kind: Kind, namespace: str, item: Any, *, metadata_only: bool = False) -> dict[str, Any]:
    """An object as another cluster's server sent it, without ``managedFields`` and without nulls.

    Args:
        kind: What was asked for.
        namespace: Where.
        item: What came.
        metadata_only: Only its metadata was asked for.

    Raises:
        UnreadableError: it is no such object.
    """
    found: dict[str, Any] = _plain(item, 0)
    _fit(found, _OBJECT if metadata_only else {**_OBJECT, **_BY_KIND.get(kind.name, {"spec": {}, "status": {}})}, "")
    metadata = found.get("metadata", {})
    metadata.pop("managedFields", None)
    kinds = ("PartialObjectMetadata",) if metadata_only else (kind.name,)
    if found.get("kind", kinds[0]) not in kinds:
        raise UnreadableError("kind: is another one")
    name, uid = metadata.get("name", ""), metadata.get("uid", "")
    # Of events only newer API servers check the name.
    if kind is not CORE_EVENT and _NAME.fullmatch(name) is None:
        raise UnreadableError("metadata.name: is no name")
    if metadata.get("namespace") != namespace:
        raise UnreadableError("metadata.namespace: is another one")
    if not 0 < len(uid) <= _LONGEST_ID or not uid.isprintable():
        raise UnreadableError("metadata.uid: is no uid")
    if any(len(value) > _LONGEST_LABEL for value in metadata.get("labels", {}).values()):
        raise UnreadableError("metadata.labels: has a value that is too long")
    if kind is STATEFUL_SET and not metadata_only and "spec" not in found.get("spec", {}).get("template", {}):
        raise UnreadableError("spec.template.spec: is missing")
    return found


def received_page(kind: Kind, namespace: str, page: Any, *, metadata_only: bool = False) -> dict[str, Any]:
    """A page of a list, checked likewise.

    Raises:
        UnreadableError: it is none, or one of its items is no such object.
    """
    metadata, items = page.get("metadata"), page.get("items")
    items = [] if items is None else items
    if not isinstance(metadata, dict) or not isinstance(items, list):
        raise UnreadableError("the list has no metadata or no items")
    head = {key: value for key, value in metadata.items() if key in ("resourceVersion", "continue")}
    _fit(_plain(head, 0), {"resourceVersion": str, "continue": str}, "metadata")
    if "resourceVersion" not in head:
        raise UnreadableError("metadata.resourceVersion: is missing")
    return {"metadata": head, "items": [received(kind, namespace, one, metadata_only=metadata_only) for one in items]}


def size_of(value: Any) -> int:
    """Roughly how many bytes of memory an object takes that came in here."""
    if isinstance(value, dict):
        return 64 + sum(64 + len(key) + size_of(one) for key, one in value.items())
    if isinstance(value, list):
        return 64 + sum(map(size_of, value))
    return 56 + len(value) if isinstance(value, str) else 32


def _plain(value: Any, depth: int) -> Any:
    if depth > DEEPEST:
        raise UnreadableError("the object is too deep")
    if isinstance(value, dict):
        return {_text(key): _plain(one, depth + 1) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        for one in value:
            if isinstance(one, dict) and any(isinstance(one.get(key), dict | list) for key in _IDENTIFYING):
                raise UnreadableError("an item of a list has no name")
        return [_plain(one, depth + 1) for one in value]
    if isinstance(value, int | float) and not -_MOST <= value < _MOST:  # NaN among them
        raise UnreadableError("a number is too large")
    return _text(value) if isinstance(value, str) else value


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:  # half a character, which JSON can express
        raise UnreadableError("a text is not Unicode") from None
    return value


def _fit(value: Any, shape: Any, path: str) -> None:
    if isinstance(shape, type):
        fits = isinstance(value, shape) and (shape is bool or not isinstance(value, bool))
    elif isinstance(shape, _Count):
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    elif isinstance(shape, list):
        fits = isinstance(value, list)
        for one in value if fits else ():
            _fit(one, shape[0], f"{path}[]")
    elif isinstance(shape, _Map):
        fits = isinstance(value, dict) and all(isinstance(one, shape.types) for one in value.values())
    else:
        fits = isinstance(value, dict)
        for key, inner in shape.items() if fits else ():
            if key in value:
                _fit(value[key], inner, f"{path}.{key}" if path else key)
    if not fits:
        raise UnreadableError(f"{path or 'the object'}: is of another type")
