"""Children as last seen: filled by watches and by the answers to our own writes.

A watch lags behind a write. Without those answers the next reconcile would not see what the last one wrote. Versions
are compared as numbers, as API servers guarantee (KEP-5504).
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from diloco_operator.api_server.intake import size_of
from diloco_operator.api_server.kinds import Object
from diloco_operator.shares import Share


class ObjectKey(NamedTuple):
    """One object in the cluster."""

    kind: str
    namespace: str
    name: str


class GroupKey(NamedTuple):
    """What the objects of a group have in common: the value of a label, and the namespace."""

    namespace: str
    value: str


class CacheFullError(ValueError):
    """There is no room for an object."""


class Cache:
    """Objects by kind, namespace and name, and by the value of one label."""

    def __init__(self, group_label: str, share: Share | None = None) -> None:
        """`share`: of the bytes that may be kept; None: any number."""
        self.share = share
        self._bytes = 0
        self._group_label = group_label
        self._objects: dict[ObjectKey, Object] = {}
        self._groups: dict[GroupKey, set[ObjectKey]] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: ObjectKey) -> Object | None:
        """The object; None: it is not in the cache."""
        return self._objects.get(key)

    def everything(self) -> Iterator[tuple[ObjectKey, Object]]:
        """Every object, as it is now."""
        return iter(tuple(self._objects.items()))

    def group(self, key: GroupKey) -> Iterator[tuple[ObjectKey, Object]]:
        """Every object of a group."""
        return ((member, self._objects[member]) for member in sorted(self._groups.get(key, ())))

    def group_of(self, item: Object) -> GroupKey | None:
        """The group an object belongs to; None: it lacks the label."""
        metadata = item["metadata"]
        value = (metadata.get("labels") or {}).get(self._group_label)
        return None if value is None else GroupKey(metadata["namespace"], value)

    def reading(self, kind: str, size: int) -> None:
        """Take in that so many bytes of a list of this kind have come; 0: the list has ended.

        Raises:
            CacheFullError: there is no room for them.
        """
        if self.share is not None and not self.share.hold(kind, size):
            raise CacheFullError("no room for a list")

    def seen(self, kind: str, item: Object) -> GroupKey | None:
        """Add `item` from a watch. Returns its group; None: a later version is in the cache already.

        Raises:
            CacheFullError: there is no room for it.
        """
        key = _key(kind, item)
        known = self._objects.get(key)
        if known is not None and version_of(item) < version_of(known):
            return None
        return self._put(key, item)

    def gone(self, kind: str, item: Object) -> GroupKey | None:
        """Remove `item`, whose deletion a watch reported. Returns its group; None: a later version is in the cache."""
        key = _key(kind, item)
        known = self._objects.get(key)
        # The version of a deletion is later than every version of the object.
        if known is None or version_of(item) < version_of(known):
            return None
        return self._drop(key)

    def written(self, kind: str, item: Object, watched_version: int) -> None:
        """Add the answer to one of our writes; `watched_version` is how far the kind's watch has come.

        Up to there the watch has reported everything, including the object's deletion.
        """
        key = _key(kind, item)
        known = self._objects.get(key)
        if version_of(item) > max(watched_version, 0 if known is None else version_of(known)):
            with contextlib.suppress(CacheFullError):  # the watch finds it too
                self._put(key, item)

    def listed(self, kind: str, namespace: str | None, items: Iterable[Object], version: int) -> set[GroupKey]:
        """Replace the objects of a kind by a list of everything at `version`. Returns the groups that have changed.

        Raises:
            CacheFullError: there is no room for all of them.
        """
        there = {_key(kind, item): item for item in items}
        changed = {
            self._drop(key)
            for key, known in list(self._objects.items())
            if key.kind == kind and namespace in (None, key.namespace)
            # The list does not contain our own writes that came after it.
            if key not in there and version_of(known) <= version
        }
        for key, item in there.items():
            known = self._objects.get(key)
            if known is None or version_of(item) > version_of(known):
                changed.add(self._put(key, item))
        return {group for group in changed if group is not None}

    def _put(self, key: ObjectKey, item: Object) -> GroupKey | None:
        self._drop(key)
        slimmed = without_managed_fields(item)
        self._count(slimmed, 1)
        self._objects[key] = slimmed
        group = self.group_of(slimmed)
        if group is not None:
            self._groups.setdefault(group, set()).add(key)
        return group

    def _drop(self, key: ObjectKey) -> GroupKey | None:
        known = self._objects.pop(key, None)
        if known is not None:
            self._count(known, -1)
        group = None if known is None else self.group_of(known)
        if group is not None:
            members = self._groups[group]
            members.discard(key)
            if not members:
                del self._groups[group]
        return group

    def _count(self, item: Object, sign: int) -> None:
        if self.share is None:
            return
        size = self._bytes + sign * size_of(item)
        if not self.share.hold("", size):
            raise CacheFullError("no room for an object")
        self._bytes = size


def without_managed_fields(item: Object) -> Object:
    """The object without ``managedFields``, which are often the larger half of it and never read here."""
    metadata = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    return {**item, "metadata": metadata}


def version_of(item: Object) -> int:
    """The object's resource version; 0 if it has none."""
    return as_version(item["metadata"].get("resourceVersion"))


def as_version(text: str | None) -> int:
    """A resource version as a number (KEP-5504); 0 if there is none."""
    return int(text) if text and text.isdecimal() else 0


def _key(kind: str, item: Object) -> ObjectKey:
    return ObjectKey(kind, item["metadata"]["namespace"], item["metadata"]["name"])
