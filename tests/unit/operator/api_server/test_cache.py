from typing import Any

import pytest

from diloco_operator.api_server.cache import Cache, CacheFullError, GroupKey, ObjectKey
from diloco_operator.api_server.intake import size_of
from diloco_operator.shares import Room, Share

GROUP = GroupKey("ns", "job")
KEY = ObjectKey("Service", "ns", "a")


def item(version: int, name: str = "a", **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ns", "resourceVersion": str(version), "labels": {"job": "job", **labels}}
    return {"kind": "Service", "metadata": {**metadata, "managedFields": [{"manager": "x"}]}}


def version_in(cache: Cache, key: ObjectKey = KEY) -> str | None:
    known = cache.get(key)
    return None if known is None else known["metadata"]["resourceVersion"]


def listed(
    cache: Cache, items: list[dict[str, Any]], version: int, namespace: str | None = None
) -> set[GroupKey | None]:
    """What has changed with a list of everything."""
    changed = {cache.found("Service", one) for one in items} - {None}
    there = {(one["metadata"]["namespace"], one["metadata"]["name"]) for one in items}
    return changed | cache.listed("Service", namespace, there, version)


def names_in(cache: Cache) -> list[str]:
    return [key.name for key, _ in cache.group(GROUP)]


def test_what_a_watch_brings_is_found_by_group_and_without_managed_fields() -> None:
    cache = Cache("job")
    assert cache.seen("Service", item(5)) == GROUP
    assert names_in(cache) == ["a"]
    assert "managedFields" not in cache.get(KEY)["metadata"]  # type: ignore[index] # it is there


def test_an_older_event_does_not_take_back_our_own_write() -> None:
    cache = Cache("job")
    cache.written("Service", item(7), watched_version=3)
    assert cache.seen("Service", item(5)) is None
    assert version_in(cache) == "7"


def test_an_answer_that_follows_the_deletion_does_not_restore_the_object() -> None:
    cache = Cache("job")
    cache.seen("Service", item(5))
    # Written at 6, deleted at 8: the watch was quicker than the answer.
    assert cache.gone("Service", item(8)) == GROUP
    cache.written("Service", item(6), watched_version=8)
    assert version_in(cache) is None
    assert names_in(cache) == []


def test_the_end_of_an_earlier_object_leaves_a_later_one_of_its_name() -> None:
    cache = Cache("job")
    cache.written("Service", item(9), watched_version=6)
    assert cache.gone("Service", item(8)) is None
    assert version_in(cache) == "9"


def test_a_list_drops_what_it_lacks_but_not_what_was_written_after_it() -> None:
    cache = Cache("job")
    for name, version in (("gone", 3), ("kept", 4)):
        cache.seen("Service", item(version, name))
    cache.written("Service", item(12, "ours"), watched_version=4)
    assert listed(cache, [item(4, "kept"), item(9, "new")], 10) == {GROUP}
    assert names_in(cache) == ["kept", "new", "ours"]


def test_a_list_that_brings_nothing_new_changes_no_group() -> None:
    cache = Cache("job")
    listed(cache, [item(4)], 10)
    assert listed(cache, [item(4)], 20) == set()


def test_a_list_of_one_namespace_says_nothing_of_another() -> None:
    cache = Cache("job")
    cache.seen("Service", item(3))
    listed(cache, [], 10, namespace="elsewhere")
    assert version_in(cache) == "3"


def test_an_object_whose_label_changes_moves_between_groups() -> None:
    cache = Cache("job")
    cache.seen("Service", item(3))
    assert cache.seen("Service", item(4, job="other")) == GroupKey("ns", "other")
    assert names_in(cache) == []
    assert len(cache) == 1


def size_of_one() -> int:
    metadata = {key: one for key, one in item(5)["metadata"].items() if key != "managedFields"}
    return size_of({**item(5), "metadata": metadata})


def test_objects_are_kept_as_long_as_there_is_room() -> None:
    share = Share(Room(9 * size_of_one() // 2 + 1), "tenant", "cache")
    cache = Cache("job", lambda _: share)
    for name in ("a", "b", "c"):
        cache.seen("Service", item(5, name))
    cache.written("Service", item(6, "e"), watched_version=5)
    assert names_in(cache) == ["a", "b", "c"], "what was written is left to the watch"
    assert not cache.lacks("ns")
    with pytest.raises(CacheFullError):
        cache.seen("Service", item(5, "d"))
    assert cache.lacks("ns")
    cache.seen("Service", item(6, "a"))
    cache.gone("Service", item(7, "b"))
    cache.seen("Service", item(8, "f"))
    listed(cache, [item(9, "a")], 9)
    assert not cache.lacks("ns")
    listed(cache, [item(9, "g"), item(9, "h")], 9)
    with pytest.raises(CacheFullError):
        listed(cache, [item(9, name) for name in "ghij"], 9)


def test_a_namespace_without_room_takes_none_from_another() -> None:
    room = Room(9 * size_of_one())
    cache = Cache("job", lambda namespace: Share(room, namespace, "objects"))
    for name in "abcdef":
        cache.seen("Service", item(5, name))
    with pytest.raises(CacheFullError, match="namespace ns"):
        cache.seen("Service", item(5, "g"))
    other = item(6)
    other["metadata"]["namespace"] = "other"
    cache.seen("Service", other)
    assert (cache.lacks("ns"), cache.lacks("other")) == (True, False)
    assert len(names_in(cache)) == 6
    cache.listed("Service", "other", {("other", "a")}, 10)
    assert cache.lacks("ns"), "a list of another namespace says nothing of this one"
