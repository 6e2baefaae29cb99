"""Whether a live object still has everything that the operator sets.

Pure. Only fields that the operator sets are compared; what others added (defaults, an injected sidecar, a status, an
annotation) is ignored. Lists whose items have a key are compared item by item, as server-side apply merges them; other
lists as a whole (structured-merge-diff, "listType"). Missing, null and empty are equal; so are ``1Gi`` and ``1024Mi``
in a quantity.

This comparison cannot see a field that was set once and is no longer wanted (a limit removed from the manifest). So
every object carries a digest of what was applied; a different digest means that it has to be applied again.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from diloco_operator.decide.observed import Object
from diloco_operator.manifests.holds import left_over
from diloco_operator.manifests.quantity import canonical

_LIST_KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "imagePullSecrets": ("name",),
    "volumeMounts": ("mountPath",),
    "ownerReferences": ("uid",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "hostAliases": ("ip",),
    "schedulingGates": ("name",),
}
"""List fields that are maps (x-kubernetes-list-map-keys of the built-in types), by the field's name."""
_PORT_KEYS = (("containerPort", "protocol"), ("port", "protocol"))
"""Ports of a container and of a Service. A NetworkPolicy's ports have ``port`` too, and are compared as a whole."""
_QUANTITY_MAPS = frozenset({"requests", "limits", "capacity", "hard"})
_QUANTITY = "quantity"
_QUANTITY_FIELDS = frozenset({"sizeLimit", _QUANTITY})
_ALWAYS_WRITTEN = frozenset({"emptyDir", "podSelector", "namespaceSelector"})
"""Fields whose empty value has a meaning, so that a missing one is a difference."""
_TRUE_BY_DEFAULT = frozenset({"automountServiceAccountToken", "allowPrivilegeEscalation", "enableServiceLinks"})
"""Fields whose absence means true; of all others false is not kept by the API server."""

NEVER_APPLIED_AGAIN = frozenset({"PersistentVolumeClaim"})
"""A claim's spec is written only once: nearly all of it is immutable, and a claim enlarged by hand must not be
shrunk."""


APPLIED = "diloco.dev/applied"
"""Annotation of every object of a job, on the object and never on pods: digest of what was applied."""


def marked(desired: Object) -> Object:
    """``desired`` with the digest of itself."""
    digest = hashlib.sha256(json.dumps(desired, sort_keys=True).encode()).hexdigest()[:16]
    metadata = desired["metadata"]
    annotations = {**metadata.get("annotations", {}), APPLIED: digest}
    return {**desired, "metadata": {**metadata, "annotations": annotations}}


def differs(desired: Object, live: Object) -> str | None:
    """The path of the first field that is not as the operator sets it; None: all are."""
    if desired["kind"] in NEVER_APPLIED_AGAIN:
        return None
    if left_over(desired, live):
        return "spec.updateStrategy"
    for field in desired:
        if field in ("apiVersion", "kind", "status"):
            continue
        path = _difference(desired[field], live.get(field), field, field)
        if path is not None:
            return path
    return None


def template_differs(desired: Object, live: Object) -> bool:
    """Whether the template of a set is not as the operator sets it."""
    template = (live.get("spec") or {}).get("template")
    return _difference(desired["spec"]["template"], template, "spec.template", "template") is not None


def overwriting(desired: Object, live: Object) -> Object:
    """A merge patch (RFC 7396) that leaves of ``live`` what ``desired`` says and no more, but for metadata of others.

    For where ``desired`` cannot be applied beside what others set: another member of a union, the same port's name at
    another number. Their other fields go with it. It is for the very object ``live``, and for none made after it.
    """
    metadata = desired["metadata"]
    kept = {key: metadata[key] for key in ("name", "namespace", "labels", "annotations") if key in metadata}
    patch = {field: _instead(value, live.get(field)) for field, value in desired.items()}
    return {**patch, "metadata": {**kept, "uid": live["metadata"]["uid"]}}


def _instead(desired: Any, live: Any) -> Any:
    if not (isinstance(desired, dict) and isinstance(live, dict)):
        return desired
    removed: dict[str, Any] = {key: None for key in live if key not in desired}
    return removed | {key: _instead(value, live.get(key)) for key, value in desired.items()}


def _difference(desired: Any, live: Any, path: str, field: str) -> str | None:
    # Most of it is equal, and this check is fast.
    if desired == live or (_empty(desired) and _empty(live)):
        return None
    if isinstance(desired, dict):
        return _mapping_difference(desired, live, path, field)
    if isinstance(desired, list | tuple):
        return _list_difference(desired, live, path, field)
    return None if _equal(desired, live, field) else path


def _mapping_difference(desired: dict[str, Any], live: Any, path: str, field: str) -> str | None:
    if not isinstance(live, dict):
        return path
    for key, value in desired.items():
        if key in _ALWAYS_WRITTEN and key not in live:
            return f"{path}.{key}"
        inner = _QUANTITY if field in _QUANTITY_MAPS else key
        found = _difference(value, live.get(key), f"{path}.{key}", inner)
        if found is not None:
            return found
    return None


def _list_difference(desired: Sequence[Any], live: Any, path: str, field: str) -> str | None:
    if not isinstance(live, list | tuple):
        return path
    keys = _keys(desired, field, path)
    if keys is None:
        if len(desired) != len(live):
            return path
        pairs = [(f"{path}[{index}]", *pair) for index, pair in enumerate(zip(desired, live, strict=True))]
    else:
        found = {_key(item, keys): item for item in live if isinstance(item, dict)}
        pairs = [(f"{path}[{_key(item, keys)[0]}]", item, found.get(_key(item, keys))) for item in desired]
    for inner, wanted, there in pairs:
        if there is None and wanted is not None:
            return inner
        difference = _difference(wanted, there, inner, field)
        if difference is not None:
            return difference
    return None


def _keys(items: Sequence[Any], field: str, path: str) -> tuple[str, ...] | None:
    """The keys that identify an item of this list; None: its position."""
    if not all(isinstance(item, dict) for item in items):
        return None
    candidates = _PORT_KEYS if field == "ports" and ".ingress" not in path else (_LIST_KEYS.get(field, ()),)
    return next((keys for keys in candidates if keys and all(keys[0] in item for item in items)), None)


def _key(item: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(item.get(key, "TCP" if key == "protocol" else None) for key in keys)


def _equal(desired: Any, live: Any, field: str) -> bool:
    if live is None:
        return desired is False and field not in _TRUE_BY_DEFAULT
    return field in _QUANTITY_FIELDS and canonical(desired) == canonical(live)


def _empty(value: Any) -> bool:
    return value is None or value in ("", [], {}, ())
