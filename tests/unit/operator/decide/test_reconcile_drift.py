"""Which changes by others are drift, and which ones the operator ignores."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from diloco_operator.decide.drift import APPLIED, differs, marked, overwriting
from tests.support.made_objects import every_job, made

DESIRED: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "x", "labels": {"a": "1"}, "annotations": {}},
    "spec": {
        "replicas": 2,
        "template": {
            "spec": {
                "automountServiceAccountToken": False,
                "hostNetwork": False,
                "containers": [
                    {
                        "name": "learner",
                        "image": "i:1",
                        "args": ["a", "b"],
                        "env": [{"name": "A", "value": "1"}, {"name": "EMPTY", "value": ""}],
                        "ports": [{"name": "http", "containerPort": 8080}],
                        "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi", "nvidia.com/gpu": 1}},
                        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, {"name": "v", "mountPath": "/v"}],
                    }
                ],
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}],
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


def as_served(item: dict[str, Any]) -> None:
    """The object as an API server returns it: with defaults and canonical quantities, without empty or false values."""
    item["metadata"] |= {"uid": "1", "resourceVersion": "7", "generation": 1}
    item["status"] = {"replicas": 2}
    item["spec"]["updateStrategy"] = {"type": "RollingUpdate"}
    del item["metadata"]["annotations"]
    del pod(item)["hostNetwork"]
    pod(item)["restartPolicy"] = "Always"
    one = container(item)
    del one["env"][1]["value"]
    one["ports"][0]["protocol"] = "TCP"
    one["resources"]["limits"] = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}


def sidecar(item: dict[str, Any]) -> None:
    pod(item)["containers"].insert(0, {"name": "proxy", "image": "p:1"})
    pod(item)["volumes"].append({"name": "injected", "emptyDir": {}})
    container_of = pod(item)["containers"][1]
    container_of["env"].insert(0, {"name": "INJECTED", "value": "1"})
    container_of["volumeMounts"].reverse()


def others(item: dict[str, Any]) -> None:
    item["metadata"]["annotations"] = {"autoscaling.example/seen": "1"}
    item["metadata"]["labels"]["team"] = "x"


THEIRS: dict[str, Callable[[dict[str, Any]], None]] = {
    "what the API server makes of it": as_served,
    "an injected sidecar": sidecar,
    "labels and annotations of others": others,
}


@pytest.mark.parametrize("change", THEIRS.values(), ids=THEIRS)
def test_what_others_add_is_left_alone(change: Callable[[dict[str, Any]], None]) -> None:
    live = copy.deepcopy(DESIRED)
    change(live)
    assert differs(DESIRED, live) is None


def set_at(*path: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    def change(item: dict[str, Any]) -> None:
        node: Any = item
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value

    return change


TEMPLATE = ("spec", "template", "spec")
CONTAINER = (*TEMPLATE, "containers", 0)
OURS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "replicas": (set_at("spec", "replicas", value=3), "spec.replicas"),
    "an image": (set_at(*CONTAINER, "image", value="i:2"), "spec.template.spec.containers[learner].image"),
    "the container is gone": (set_at(*TEMPLATE, "containers", value=[]), "spec.template.spec.containers[learner]"),
    "an argument": (set_at(*CONTAINER, "args", value=["a", "c"]), "spec.template.spec.containers[learner].args[1]"),
    "an argument more": (
        set_at(*CONTAINER, "args", value=["a", "b", "c"]),
        "spec.template.spec.containers[learner].args",
    ),
    "a variable": (
        set_at(*CONTAINER, "env", 0, "value", value="2"),
        "spec.template.spec.containers[learner].env[A].value",
    ),
    "a quantity": (
        set_at(*CONTAINER, "resources", "limits", "memory", value="1G"),
        "spec.template.spec.containers[learner].resources.limits.memory",
    ),
    "a port": (
        set_at(*CONTAINER, "ports", 0, "containerPort", value=80),
        "spec.template.spec.containers[learner].ports[8080]",
    ),
    "another toleration": (
        set_at(*TEMPLATE, "tolerations", value=[{"key": "gpu", "operator": "Exists"}, {"operator": "Exists"}]),
        "spec.template.spec.tolerations",
    ),
    "an emptyDir that became a hostPath": (
        set_at(*TEMPLATE, "volumes", 0, value={"name": "tmp", "hostPath": {"path": "/"}}),
        "spec.template.spec.volumes[tmp].emptyDir",
    ),
    "a token that is mounted by default": (
        set_at(*TEMPLATE, "automountServiceAccountToken", value=None),
        "spec.template.spec.automountServiceAccountToken",
    ),
    "a label": (set_at("metadata", "labels", value={}), "metadata.labels.a"),
}


@pytest.mark.parametrize(("change", "path"), OURS.values(), ids=OURS)
def test_a_field_that_we_set_is_found_changed_by_its_path(change: Callable[[dict[str, Any]], None], path: str) -> None:
    live = copy.deepcopy(DESIRED)
    as_served(live)
    live["spec"]["template"]["spec"] = copy.deepcopy(DESIRED["spec"]["template"]["spec"])
    change(live)
    assert differs(DESIRED, live) == path


def test_a_field_that_is_wanted_no_longer_changes_the_digest() -> None:
    without = copy.deepcopy(DESIRED)
    del container(without)["resources"]["limits"]["memory"]
    live = marked(DESIRED)
    assert differs(marked(DESIRED), live) is None
    assert differs(marked(without), live) == f"metadata.annotations.{APPLIED}"
    assert differs(without, live) is None, "which nothing else tells"


def test_the_digest_is_on_no_pod() -> None:
    assert APPLIED not in str(marked(DESIRED)["spec"])


@pytest.mark.parametrize("job", every_job().values(), ids=every_job())
def test_every_object_equals_itself_and_misses_each_of_its_parts(job: Any) -> None:
    for item in made(job):
        assert differs(item, copy.deepcopy(item)) is None
        if item["kind"] == "PersistentVolumeClaim":
            continue
        for part in set(item) - {"apiVersion", "kind", "metadata"}:
            live = {key: value for key, value in item.items() if key != part}
            assert differs(item, live) is not None


def test_a_claim_that_is_there_is_left_alone() -> None:
    claim = {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "x"},
        "spec": {"resources": {"requests": {"storage": "1Gi"}}},
    }
    enlarged = copy.deepcopy(claim)
    enlarged["spec"] = {"resources": {"requests": {"storage": "20Gi"}}}
    assert differs(claim, enlarged) is None


def test_a_network_policys_ports_are_compared_as_a_whole() -> None:
    policy = {
        "kind": "NetworkPolicy",
        "metadata": {},
        "spec": {"ingress": [{"ports": [{"port": 8080, "protocol": "TCP"}]}]},
    }
    opened = copy.deepcopy(policy)
    opened["spec"] = {"ingress": [{"ports": [{"port": 8080, "protocol": "TCP"}, {"port": 22, "protocol": "TCP"}]}]}
    assert differs(policy, opened) == "spec.ingress[0].ports"


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
    as_served(live)
    live["metadata"]["labels"]["team"] = "research"
    live["metadata"]["finalizers"] = ["example.com/keeps"]
    live["spec"]["strategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}
    container(live)["ports"] = [{"name": "http", "containerPort": 8081}]
    pod(live)["volumes"][0]["hostPath"] = {"path": "/"}
    desired = copy.deepcopy(DESIRED)
    desired["spec"]["strategy"] = {"type": "Recreate"}
    after = merged(live, overwriting(desired, live))
    assert after["spec"] == desired["spec"]
    assert differs(desired, after) is None
    assert after["metadata"] == live["metadata"] | {"annotations": {}}
    assert after["status"] == live["status"]


def test_overwriting_is_for_the_very_object_that_was_seen() -> None:
    live = copy.deepcopy(DESIRED) | {"metadata": {"name": "x", "uid": "7", "ownerReferences": [{"uid": "job"}]}}
    assert overwriting(DESIRED, live)["metadata"]["uid"] == "7"
    assert "ownerReferences" not in overwriting(DESIRED, live)["metadata"]
