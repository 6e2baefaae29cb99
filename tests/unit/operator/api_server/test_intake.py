"""What another cluster's API server sends is an object that a real one could send, or it is refused as a whole."""

import copy
import json
import tracemalloc
from typing import Any

import pytest

from diloco_operator.api_server.intake import UnreadableError, received, received_page, size_of
from diloco_operator.api_server.kinds import CONFIG_MAP, CORE_EVENT, NETWORK_POLICY, POD, SECRET, SERVICE, STATEFUL_SET

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
METADATA = {
    "name": "demo--far-new",
    "namespace": "theirs",
    "uid": "0d1c0c0e-0000-4000-8000-000000000000",
    "resourceVersion": "7",
    "generation": 1,
    "creationTimestamp": "2026-01-02T03:04:05Z",
    "labels": {"a": "b"},
    "annotations": {"a": "b" * 100_000},
    "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": True}],
}
TEMPLATE = {
    "metadata": {"creationTimestamp": None, "labels": {"a": "b"}},
    "spec": {"containers": [{"name": "learner", "image": "i", "ports": [{"containerPort": 1, "name": "sync"}]}]},
}
SET: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": METADATA,
    "spec": {"replicas": 2, "template": TEMPLATE},
    "status": {"replicas": 2, "readyReplicas": 1, "conditions": [{"type": "A", "status": "True"}]},
}


def without(item: dict[str, Any], *path: str) -> dict[str, Any]:
    return changed(item, *path, to=None)


def changed(item: dict[str, Any], *path: Any, to: Any) -> dict[str, Any]:
    whole = copy.deepcopy(item)
    inner = whole
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return whole


def test_a_real_object_comes_in_without_nulls_and_managed_fields() -> None:
    sent = changed(SET, "metadata", "managedFields", to=[{"manager": "m"}])
    found = received(STATEFUL_SET, "theirs", sent)
    expected = copy.deepcopy(SET)
    del expected["spec"]["template"]["metadata"]["creationTimestamp"]
    assert found == expected
    assert sent == changed(SET, "metadata", "managedFields", to=[{"manager": "m"}]), "what was sent is not changed"


@pytest.mark.parametrize("field", ["status", "generation", "labels", "annotations", "ownerReferences", "kind"])
def test_what_may_be_absent_may_be_null(field: str) -> None:
    within = SET if field in SET else SET["metadata"]
    sent = without(SET, *(() if within is SET else ("metadata",)), field)
    found = received(STATEFUL_SET, "theirs", sent)
    assert field not in (found if within is SET else found["metadata"])


UNREADABLE: dict[str, Any] = {
    "no object": ["metadata"],
    "no metadata": {"kind": "StatefulSet"},
    "a text for metadata": {**SET, "metadata": "x"},
    "no name": without(SET, "metadata", "name"),
    "a name that leads elsewhere": changed(SET, "metadata", "name", to="../../secrets/x"),
    "two dots": changed(SET, "metadata", "name", to=".."),
    "a long name": changed(SET, "metadata", "name", to="a" * 254),
    "no uid": without(SET, "metadata", "uid"),
    "a long uid": changed(SET, "metadata", "uid", to="a" * 129),
    "a uid of two lines": changed(SET, "metadata", "uid", to="a\nb"),
    "another namespace": changed(SET, "metadata", "namespace", to="kube-system"),
    "another kind": changed(SET, "kind", to="Node"),
    "a number for a version": changed(SET, "metadata", "resourceVersion", to=7),
    "a list of labels": changed(SET, "metadata", "labels", to=["a=b"]),
    "a number for a label": changed(SET, "metadata", "labels", "a", to=1),
    "a label without an end": changed(SET, "metadata", "labels", "a", to="b" * 64),
    "a text for an owner": changed(SET, "metadata", "ownerReferences", to=["me"]),
    "an object for owners": changed(SET, "metadata", "ownerReferences", to={"uid": "u"}),
    "a list for an owner's uid": changed(SET, "metadata", "ownerReferences", 0, "uid", to=["u"]),
    "a number for a time": changed(SET, "metadata", "deletionTimestamp", to=1),
    "a text for a count": changed(SET, "status", "replicas", to="2"),
    "a fraction for a count": changed(SET, "status", "readyReplicas", to=1.5),
    "a truth for a count": changed(SET, "spec", "replicas", to=True),
    "less than none": changed(SET, "status", "readyReplicas", to=-1),
    "a count of 70 bits": changed(SET, "status", "replicas", to=2**70),
    "no number": changed(SET, "status", "anything", to=json.loads("NaN")),
    "a text for conditions": changed(SET, "status", "conditions", to="True"),
    "a text for a condition": changed(SET, "status", "conditions", to=["True"]),
    "no template": without(SET, "spec", "template"),
    "no spec": without(SET, "spec"),
    "a text for containers": changed(SET, "spec", "template", "spec", "containers", to="learner"),
    "a number for constraints": changed(SET, "spec", "template", "spec", "topologySpreadConstraints", to=5),
    "a text for a constraint": changed(SET, "spec", "template", "spec", "topologySpreadConstraints", to=["x"]),
    "a text for an affinity": changed(SET, "spec", "template", "spec", "affinity", to={"podAntiAffinity": "x"}),
    "a text for a term": changed(
        SET, "spec", "template", "spec", "affinity", to={"podAntiAffinity": {PREFERRED: ["x"]}}
    ),
    "a list for a port": changed(SET, "spec", "template", "spec", "containers", 0, "ports", 0, "containerPort", to=[]),
    "half a character": changed(SET, "metadata", "annotations", to={"a": "\ud800"}),
    "half a character in a key": changed(SET, "metadata", "annotations", to={"\ud800": "a"}),
    "levels without an end": changed(SET, "status", "deep", to=json.loads("[" * 900 + "]" * 900)),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_no_api_server_sends_is_refused(what: str) -> None:
    with pytest.raises(UnreadableError):
        received(STATEFUL_SET, "theirs", UNREADABLE[what])


def test_the_refusal_names_the_field_and_quotes_nothing() -> None:
    with pytest.raises(UnreadableError, match=r"^status\.replicas: is of another type$"):
        received(STATEFUL_SET, "theirs", changed(SET, "status", "replicas", to="secret-text"))
    with pytest.raises(UnreadableError, match=r"^metadata\.ownerReferences\[\]\.uid: is of another type$"):
        received(STATEFUL_SET, "theirs", changed(SET, "metadata", "ownerReferences", to=[{"uid": 5}]))


def test_each_kind_has_its_own_types() -> None:
    one = {"metadata": METADATA}
    for kind in (SECRET, CONFIG_MAP):
        assert received(kind, "theirs", {**one, "data": {"a": "b"}})["data"] == {"a": "b"}
        with pytest.raises(UnreadableError, match="data"):
            received(kind, "theirs", {**one, "data": {"a": 1}})
    for kind in (SERVICE, NETWORK_POLICY):
        with pytest.raises(UnreadableError, match="spec"):
            received(kind, "theirs", {**one, "spec": "x"})
    waiting = {"name": "learner", "ready": False, "restartCount": 3, "state": {"waiting": {"reason": 5}}}
    with pytest.raises(UnreadableError, match=r"state\.waiting\.reason"):
        received(POD, "theirs", {**one, "status": {"containerStatuses": [waiting]}})
    with pytest.raises(UnreadableError, match="involvedObject"):
        received(CORE_EVENT, "theirs", {**one, "involvedObject": {"uid": {}}})


def test_only_of_events_the_name_may_be_any_text() -> None:
    named = {"metadata": {**METADATA, "name": "Node_A.17"}}
    assert received(CORE_EVENT, "theirs", named)["metadata"]["name"] == "Node_A.17"
    with pytest.raises(UnreadableError):
        received(POD, "theirs", named)


def test_of_metadata_nothing_else_is_needed() -> None:
    sent = {"kind": "PartialObjectMetadata", "metadata": METADATA}
    assert received(STATEFUL_SET, "theirs", sent, metadata_only=True)["metadata"]["name"] == METADATA["name"]
    with pytest.raises(UnreadableError, match="kind"):
        received(STATEFUL_SET, "theirs", {**sent, "kind": "Status"}, metadata_only=True)


def test_a_page_holds_checked_objects_and_a_version() -> None:
    page = received_page(
        SECRET, "theirs", {"metadata": {"resourceVersion": "9", "x": 1}, "items": [{"metadata": METADATA}]}
    )
    assert page["metadata"] == {"resourceVersion": "9"}
    assert page["items"][0]["metadata"]["uid"] == METADATA["uid"]
    assert received_page(SECRET, "theirs", {"metadata": {"resourceVersion": "9"}, "items": None})["items"] == []


@pytest.mark.parametrize(
    "page",
    [
        {},
        {"metadata": {}},
        {"metadata": {"resourceVersion": 9}},
        {"metadata": {"resourceVersion": "9", "continue": []}},
        {"metadata": {"resourceVersion": "9"}, "items": {}},
        {"metadata": {"resourceVersion": "9"}, "items": [None]},
    ],
    ids=str,
)
def test_a_page_that_makes_no_sense_is_refused(page: dict[str, Any]) -> None:
    with pytest.raises(UnreadableError):
        received_page(SECRET, "theirs", page)


@pytest.mark.parametrize("text", ["{}", "[]", '{"a": 1}', '"' + "b" * 1000 + '"', '{"a": ["b", {"c": "d"}]}'])
def test_no_object_takes_much_more_memory_than_its_size_says(text: str) -> None:
    # Every text that is not the same as another's is a new one, as in an answer.
    body = "[" + ", ".join(text.replace("b", f"b{number}") for number in range(10_000)) + "]"
    tracemalloc.start()
    try:
        made = json.loads(body)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / 2 < size_of(made) < 2 * taken
