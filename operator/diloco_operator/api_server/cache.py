"""Children as last seen: filled by watches and by the answers to our own writes.

A watch lags behind a write. Without those answers the next reconcile would not see what the last one wrote. Versions
are compared as numbers, as API servers guarantee (KEP-5504).
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
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

    def __init__(self, namespace: str) -> None:
        super().__init__(f"no room for another object of namespace {namespace}")
        self.namespace = namespace


class Cache:
    """Objects by kind, namespace and name, and by the value of one label."""

    def __init__(self, group_label: str, share_of: Callable[[str], Share] | None = None) -> None:
        """`share_of`: a namespace's share of the bytes that may be kept; None: any number."""
        self._share_of = share_of
        self._bytes: Counter[str] = Counter()
        """By namespace."""
        self._lacking: dict[str, frozenset[str]] = {}
        """By kind: namespaces of which not every object is here."""
        self._group_label = group_label
        self._objects: dict[ObjectKey, Object] = {}
        self._sizes: dict[ObjectKey, int] = {}
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

    def lacks(self, namespace: str) -> bool:
        """Whether there was no room for all objects of a namespace when they were last listed or watched."""
        return any(namespace in lacking for lacking in self._lacking.values())

    def seen(self, kind: str, item: Object) -> GroupKey | None:
        """Add `item` from a watch. Returns its group; None: a later version is in the cache already.

        Raises:
            CacheFullError: there is no room for it.
        """
        key = _key(kind, item)
        known = self._objects.get(key)
        if known is not None and version_of(item) < version_of(known):
            return None
        try:
            return self._put(key, item)
        except CacheFullError:
            self._lacking[kind] = self._lacking.get(kind, frozenset()) | {key.namespace}
            raise

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

    def found(self, kind: str, item: Object) -> GroupKey | None:
        """Add `item` from a list. Returns its group; None: this version or a later one is in the cache already.

        Raises:
            CacheFullError: there is no room for it.
        """
        known = self._objects.get(_key(kind, item))
        return None if known is not None and version_of(item) <= version_of(known) else self.seen(kind, item)

    def listed(
        self,
        kind: str,
        namespace: str | None,
        names: Collection[tuple[str, str]],
        version: int,
        lacking: Collection[str] = (),
    ) -> set[GroupKey]:
        """End a list of a kind at `version`, whose objects were `found`. Returns the groups that lost an object.

        `names`: namespace and name of every object in the list. `lacking`: namespaces for which there was no room.
        """
        others = (one for one in self._lacking.get(kind, ()) if namespace not in (None, one))
        self._lacking[kind] = frozenset((*others, *lacking))
        changed = {
            self._drop(key)
            for key, known in list(self._objects.items())
            if key.kind == kind and namespace in (None, key.namespace)
            # The list does not contain our own writes that came after it.
            if key[1:] not in names and version_of(known) <= version
        }
        return {group for group in changed if group is not None}

    def _put(self, key: ObjectKey, item: Object) -> GroupKey | None:
        self._drop(key)
        slimmed = without_managed_fields(item)
        if self._share_of is not None:
            size = size_of(slimmed)
            if not self._share_of(key.namespace).hold("", self._bytes[key.namespace] + size):
                raise CacheFullError(key.namespace)
            self._bytes[key.namespace] += size
            self._sizes[key] = size
        self._objects[key] = slimmed
        group = self.group_of(slimmed)
        if group is not None:
            self._groups.setdefault(group, set()).add(key)
        return group

    def _drop(self, key: ObjectKey) -> GroupKey | None:
        known = self._objects.pop(key, None)
        if known is not None and self._share_of is not None:
            self._bytes[key.namespace] -= self._sizes.pop(key)
            self._share_of(key.namespace).hold("", self._bytes[key.namespace])
            if not self._bytes[key.namespace]:
                del self._bytes[key.namespace]
        group = None if known is None else self.group_of(known)
        if group is not None:
            members = self._groups[group]
            members.discard(key)
            if not members:
                del self._groups[group]
        return group


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
