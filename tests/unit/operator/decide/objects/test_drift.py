import copy
from typing import Any

import pytest

from diloco_operator.decide.objects.drift import applied_as, difference, is_due, overwriting

DESIRED: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "x", "labels": {"a": "1"}},
    "spec": {
        "replicas": 2,
        "template": {
            "spec": {
                "containers": [{"name": "learner", "image": "i:1", "ports": [{"name": "http", "containerPort": 8080}]}],
                "volumes": [{"name": "tmp", "emptyDir": {}}],
            }
        },
    },
}


def pod(item: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = item["spec"]["template"]["spec"]
    return found


def container(item: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pod(item)["containers"][0]
    return found


def made() -> dict[str, Any]:
    """As the API server answers: with defaults, and what a webhook has added."""
    live = copy.deepcopy(DESIRED)
    live["metadata"] |= {"uid": "1", "resourceVersion": "7", "generation": 1}
    pod(live)["restartPolicy"] = "Always"
    pod(live)["containers"].insert(0, {"name": "proxy", "image": "p:1"})
    return live


def test_what_the_api_server_made_of_it_is_no_drift() -> None:
    last = applied_as(DESIRED, made())
    assert not is_due(DESIRED, made(), last)
    later = made()
    later["metadata"] |= {"resourceVersion": "9", "generation": 3, "managedFields": [{}]}
    later["metadata"] |= {"annotations": {"deployment.kubernetes.io/revision": "2"}, "finalizers": ["example.com/x"]}
    later["metadata"]["labels"]["team"] = "x"
    later["status"] = {"replicas": 2}
    assert not is_due(DESIRED, later, last)


def test_a_new_process_applies_once() -> None:
    assert is_due(DESIRED, made(), None)


@pytest.mark.parametrize("field", ["spec", "labels", "a new wish"])
def test_a_change_by_anybody_is_answered(field: str) -> None:
    last, live, wanted = applied_as(DESIRED, made()), made(), copy.deepcopy(DESIRED)
    if field == "spec":
        container(live)["image"] = "other"
    elif field == "labels":
        del live["metadata"]["labels"]
    else:
        del pod(wanted)["volumes"]
    assert is_due(wanted, live, last)


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396, section 2."""
    if not isinstance(patch, dict):
        return patch
    kept = {key: value for key, value in (target if isinstance(target, dict) else {}).items() if key not in patch}
    return kept | {key: merged(kept_of(target, key), value) for key, value in patch.items() if value is not None}


def kept_of(target: Any, key: str) -> Any:
    return target.get(key) if isinstance(target, dict) else None


def test_overwriting_removes_conflicting_fields_and_keeps_others_metadata() -> None:
    live = copy.deepcopy(DESIRED)
    live["metadata"] |= {"uid": "1", "annotations": {"a": "b"}}
    live["status"] = {"replicas": 2}
    live["metadata"]["labels"]["team"] = "research"
    live["metadata"]["finalizers"] = ["example.com/keeps"]
    live["spec"]["strategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}
    container(live)["ports"] = [{"name": "http", "containerPort": 8081}]
    pod(live)["volumes"][0]["hostPath"] = {"path": "/"}
    desired = copy.deepcopy(DESIRED)
    desired["spec"]["strategy"] = {"type": "Recreate"}
    after = merged(live, overwriting(desired, live))
    assert after["spec"] == desired["spec"]
    assert after["metadata"] == live["metadata"]
    assert after["status"] == live["status"]


def test_overwriting_is_for_the_very_object_that_was_seen() -> None:
    live = copy.deepcopy(DESIRED) | {"metadata": {"name": "x", "uid": "7", "ownerReferences": [{"uid": "job"}]}}
    assert overwriting(DESIRED, live)["metadata"]["uid"] == "7"
    assert "ownerReferences" not in overwriting(DESIRED, live)["metadata"]


@pytest.mark.parametrize(
    ("kind", "live", "told"),
    [
        ("StatefulSet", {"replicas": 0, "a": 1}, ".spec.replicas is 0 instead of 3"),
        ("StatefulSet", {"a": 1}, ".spec.replicas is null instead of 3"),
        ("StatefulSet", {"replicas": 3, "a": "x" * 99}, ".spec.a was changed"),
        ("Secret", {"replicas": 0, "a": 1}, ".spec.replicas was changed"),
        ("StatefulSet", {"replicas": 3, "a": 1}, "a field was changed"),
        ("StatefulSet", None, "it was deleted"),
    ],
)
def test_what_was_changed_is_named_with_both_values(kind: str, live: dict[str, Any] | None, told: str) -> None:
    made = {"kind": kind, "metadata": {"name": "x"}, "spec": {"replicas": 3, "a": 1}}
    assert difference(made, made, None if live is None else {**made, "spec": live}) == told
