"""Whether an object has to be applied: what is wanted of it has changed, or somebody has changed it.

What an apply would change is not worked out here: only the API server knows its defaults, the keys of its lists and who
owns which field. An object is applied if what is wanted is not what was applied last, or if it is no longer what the
API server made of that. Once too often changes nothing, so a new process applies everything once (KEP-555). Pure.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Final

from diloco_operator.decide.observed import Applied, Object

_LONGEST_VALUE: Final = 40


def applied_as(desired: Object, made: Object) -> Applied:
    """What to remember of an apply; ``made``: the API server's answer."""
    return Applied(digest(desired), digest(_ours(desired, made)))


def is_due(desired: Object, live: Object, last: Applied | None) -> bool:
    """Whether an object that exists has to be applied; ``last``: None if this process has not applied it yet."""
    return last != applied_as(desired, live)


def difference(desired: Object, made: Object, live: Object | None) -> str:
    """How ``live``, an object that was changed, differs from what was ``made`` of it again: the first field."""
    if live is None:
        return "it was deleted"
    fields = _differences(_ours(desired, made), _ours(desired, live))
    path, ours, theirs = next(fields, ("a field", None, None))
    shown = [json.dumps(value) for value in (theirs, ours)]
    if ours == theirs or desired["kind"] == "Secret" or max(map(len, shown)) > _LONGEST_VALUE:
        return f"{path} was changed"
    return f"{path} is {shown[0]} instead of {shown[1]}"


def _differences(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            yield from _differences(ours.get(key), theirs.get(key), f"{path}.{key}")
    elif ours != theirs:
        yield path, ours, theirs


def digest(value: Any) -> str:
    """Of plain JSON values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def overwriting(desired: Object, live: Object) -> Object:
    """A merge patch (RFC 7396) that leaves of ``live`` what ``desired`` says and no more, but for metadata of others.

    For where ``desired`` cannot be applied beside what others set: another member of a union, the same port's name at
    another number. Their other fields go with it. It is for the very object ``live``, and for none made after it.
    """
    metadata = desired["metadata"]
    kept = {key: metadata[key] for key in ("name", "namespace", "labels", "annotations") if key in metadata}
    patch = {field: _instead(value, live.get(field)) for field, value in desired.items()}
    return {**patch, "metadata": {**kept, "uid": live["metadata"]["uid"]}}


def _ours(desired: Object, live: Object) -> Object:
    """The parts of ``live`` that are compared: the top-level fields that we set, and of the metadata our keys.

    Status, versions, and annotations and finalizers of others change without our fields.
    """
    wanted, there = desired["metadata"], live["metadata"]
    metadata = {
        field: {key: (there.get(field) or {}).get(key) for key in wanted.get(field, {})}
        for field in ("labels", "annotations")
    }
    fields = {field: live.get(field) for field in desired if field != "metadata"}
    return {**fields, "metadata": {**metadata, "ownerReferences": there.get("ownerReferences")}}


def _instead(desired: Any, live: Any) -> Any:
    if not (isinstance(desired, dict) and isinstance(live, dict)):
        return desired
    removed: dict[str, Any] = {key: None for key in live if key not in desired}
    return removed | {key: _instead(value, live.get(key)) for key, value in desired.items()}
