"""A user's podTemplate is added to the operator's template; attempts to replace the operator's fields are refused."""

from typing import Any

import pytest

from diloco.spec import DiLoCoJob
from diloco_operator.manifests import InvalidSpecError
from tests.support.made_objects import live, made, templates, with_pool
from tests.support.pod_security import violations

SET, DEPLOYMENT = "StatefulSet/small--east-a", "Deployment/small-syncer"
POOL = "spec.regions[0].pools[0].podTemplate"


def with_syncer(template: dict[str, Any]) -> DiLoCoJob:
    job = with_pool({})
    return live(job, syncer=type(job.spec.syncer).model_validate({"podTemplate": template}))


def both(template: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The templates of a learner's and of the syncer's pod with it."""
    return templates(made(with_pool({"podTemplate": template})))[SET], templates(made(with_syncer(template)))[
        DEPLOYMENT
    ]


BARE = templates(made(with_pool({})))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("affinity", {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}),
        ("nodeSelector", {"disk": "fast"}),
        ("priorityClassName", "merging"),
        ("resourceClaims", [{"name": "gpu", "resourceClaimTemplateName": "big"}]),
        ("schedulerName", "batch"),
        ("serviceAccountName", "bucket"),
        ("tolerations", [{"key": "spot", "operator": "Exists"}]),
    ],
)
def test_a_field_arrives_in_pods_of_learners_and_syncer(field: str, value: Any) -> None:
    for template, name in zip(both({"spec": {field: value}}), (SET, DEPLOYMENT), strict=True):
        ours = BARE[name]["spec"].get("tolerations", []) if field == "tolerations" else []
        assert template["spec"] == {**BARE[name]["spec"], field: [*value, *ours] if ours else value}


def test_labels_and_annotations_stand_beside_ours() -> None:
    given = {"labels": {"team": "research"}, "annotations": {"sidecar.example/inject": "false"}}
    for template, name in zip(both({"metadata": given}), (SET, DEPLOYMENT), strict=True):
        assert template["metadata"]["labels"] == {**BARE[name]["metadata"]["labels"], "team": "research"}
        assert template["metadata"]["annotations"] == given["annotations"]


def test_variables_volumes_and_init_containers_are_added() -> None:
    volume, mount = {"name": "cache", "emptyDir": {}}, {"name": "cache", "mountPath": "/cache"}
    fetch = {"name": "fetch", "image": "fetch:1", "securityContext": {"readOnlyRootFilesystem": False}}
    for name in (SET, DEPLOYMENT):
        own = {"name": "learner" if name == SET else "syncer", "env": [{"name": "A", "value": "1"}]}
        containers = [{**own, "volumeMounts": [mount]}]
        patch = {"spec": {"volumes": [volume], "containers": containers, "initContainers": [fetch]}}
        job = with_pool({"podTemplate": patch}) if name == SET else with_syncer(patch)
        spec, bare = templates(made(job))[name]["spec"], BARE[name]["spec"]
        assert spec["volumes"] == [*bare["volumes"], volume]
        ((container,), (before,)) = spec["containers"], bare["containers"]
        assert container["env"] == [*before["env"], *own["env"]]
        assert container["volumeMounts"] == [*before["volumeMounts"], mount]
        assert {**container, "env": before["env"], "volumeMounts": before["volumeMounts"]} == before
        (init,) = spec["initContainers"]
        assert init["securityContext"] == {**before["securityContext"], "readOnlyRootFilesystem": False}


SYSCTLS = "spec.securityContext.sysctls"
BUFFERS = {"name": "net.ipv4.tcp_rmem", "value": "4096 131072 67108864"}


def sysctl(name: str | None = BUFFERS["name"], value: object = BUFFERS["value"], **more: object) -> dict[str, Any]:
    """A template with one sysctl."""
    return {"spec": {"securityContext": {"sysctls": [{"name": name, "value": value, **more}]}}}


def test_the_sizes_of_tcps_buffers_stand_beside_our_security_context() -> None:
    sysctls = [BUFFERS, {**BUFFERS, "name": "net.ipv4.tcp_wmem"}]
    for template, name in zip(
        both({"spec": {"securityContext": {"sysctls": sysctls}}}), (SET, DEPLOYMENT), strict=True
    ):
        bare = BARE[name]["spec"]
        assert template["spec"] == {**bare, "securityContext": {**bare["securityContext"], "sysctls": sysctls}}
        assert violations(template["spec"]) == []
    empty: list[Any] = [{"sysctls": []}, {}, None]
    for nothing in empty:
        unchanged = [one["spec"] for one in both({"spec": {"securityContext": nothing}})]
        assert unchanged == [BARE[name]["spec"] for name in (SET, DEPLOYMENT)]


@pytest.mark.parametrize(
    ("template", "place", "says"),
    [
        ({"spec": {"hostNetwork": True}}, "spec.hostNetwork", "cannot be set here"),
        ({"spec": {"securityContext": {"runAsUser": 0}}}, "spec.securityContext.runAsUser", "cannot be set here"),
        ({"spec": {"securityContext": []}}, "spec.securityContext", "is not an object"),
        ({"spec": {"securityContext": {"sysctls": {}}}}, "spec.securityContext.sysctls", "is not a list of objects"),
        (sysctl("kernel.msgmax", "1 2 3"), f"{SYSCTLS}[0].name", "kernel.msgmax cannot be set here; use net.ipv4.tcp_"),
        (sysctl(None, "1 2 3"), f"{SYSCTLS}[0].name", "null cannot be set here"),
        (sysctl(value="67108864"), f"{SYSCTLS}[0].value", "67108864 is not three sizes"),
        (sysctl(value="4096 131072 65536"), f"{SYSCTLS}[0].value", "4096 131072 65536 is not three sizes"),
        (sysctl(value="4096 131072 9999999999"), f"{SYSCTLS}[0].value", "4096 131072 9999999999 is not three sizes"),
        (sysctl(value=4096), f"{SYSCTLS}[0].value", "4096 is not three sizes"),
        (sysctl(more=1), f"{SYSCTLS}[0].more", "is not a field of a sysctl"),
        (
            {"spec": {"securityContext": {"sysctls": [BUFFERS, BUFFERS]}}},
            f"{SYSCTLS}[1].name",
            "net.ipv4.tcp_rmem is there already",
        ),
        ({"spec": {"nodeSelectr": {}}}, "spec.nodeSelectr", "cannot be set here"),
        ({"spec": {"tolerations": "all"}}, "spec.tolerations", "is not a list of objects"),
        ({"spec": {"schedulerName": 1}}, "spec.schedulerName", "is not text"),
        ({"spec": {"nodeSelector": {"a": "b"}}}, "spec.nodeSelector", "is also set outside podTemplate"),
        ({"spec": {"containers": [{"name": "mine"}]}}, "spec.containers[0].name", "is not learner"),
        ({"spec": {"containers": [{"name": "learner", "command": []}]}}, "spec.containers[0].command", "cannot be set"),
        (
            {"spec": {"containers": [{"name": "learner", "env": [{"name": "HOME", "value": "/"}]}]}},
            "spec.containers[0].env[0].name",
            "HOME is set by the operator",
        ),
        (
            {"spec": {"containers": [{"name": "learner", "volumeMounts": [{"name": "x", "mountPath": "/x"}]}]}},
            "spec.containers[0].volumeMounts[0].name",
            "is not a volume of this pod",
        ),
        ({"spec": {"volumes": [{"name": "state", "emptyDir": {}}]}}, "spec.volumes[0].name", "state is set by"),
        (
            {"spec": {"initContainers": [{"name": "learner"}]}},
            "spec.initContainers[0].name",
            "learner is the operator's",
        ),
        (
            {"metadata": {"labels": {"diloco.dev/job": "other"}}},
            "metadata.labels.diloco.dev/job",
            "is reserved for Kubernetes",
        ),
    ],
)
def test_what_is_not_the_users_is_refused_by_name(template: dict[str, Any], place: str, says: str) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        made(with_pool({"nodeSelector": {"a": "c"}, "podTemplate": template}))
    assert str(caught.value).startswith(f"{POOL}.{place}: {says}")


def test_the_syncers_is_checked_as_well() -> None:
    with pytest.raises(InvalidSpecError, match=r"^spec\.syncer\.podTemplate\.spec\.hostPID: cannot be set here"):
        made(with_syncer({"spec": {"hostPID": True}}))


def test_pull_secrets_of_the_syncer_stand_beside_those_of_the_pools() -> None:
    pool = {"imagePullSecrets": [{"name": "registry"}, {"name": "mirror"}]}
    patch = {"podTemplate": {"spec": {"imagePullSecrets": [{"name": "mirror"}, {"name": "sidecars"}]}}}
    job = with_pool(pool)
    spec = templates(made(live(job, syncer=type(job.spec.syncer).model_validate(patch))))[DEPLOYMENT]["spec"]
    assert spec["imagePullSecrets"] == [{"name": "registry"}, {"name": "mirror"}, {"name": "sidecars"}]
    alone = templates(made(with_syncer(patch["podTemplate"])))[DEPLOYMENT]["spec"]
    assert alone["imagePullSecrets"] == [{"name": "mirror"}, {"name": "sidecars"}]


@pytest.mark.parametrize(
    ("field", "items"),
    [
        ("containers", [{"name": "learner"}, {"name": "learner", "env": [{"name": "A", "value": "1"}]}]),
        ("initContainers", [{"name": "fetch"}, {"name": "fetch"}]),
        ("imagePullSecrets", [{"name": "registry"}, {"name": "registry"}]),
    ],
)
def test_a_name_that_stands_twice_is_refused(field: str, items: list[Any]) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        made(with_pool({"podTemplate": {"spec": {field: items}}}))
    place = f"{POOL}.spec.{field}"
    assert str(caught.value) == f"{place}[1].name: {items[0]['name']} is also used by {place}[0]; use each once"
