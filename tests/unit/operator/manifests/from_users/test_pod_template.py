"""A user's podTemplate is added to the operator's template; attempts to replace the operator's fields are refused."""

from typing import Any

import pytest

from diloco_operator.manifests import InvalidSpecError
from tests.support.job_manifests import pods
from tests.support.made_objects import made, templates, with_pool, with_syncer

SET, DEPLOYMENT = "StatefulSet/small--east-a", "Deployment/small-syncer"
POOL = "spec.regions[0].pools[0].podTemplate"


def both(template: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The templates of a learner's and of the syncer's pod with it."""
    own = {"podTemplate": template}
    return templates(made(with_pool(own)))[SET], templates(made(with_syncer(own)))[DEPLOYMENT]


BARE = templates(made(with_pool({})))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("affinity", {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}),
        ("imagePullSecrets", [{"name": "registry"}]),
        ("nodeSelector", {"disk": "fast"}),
        ("priorityClassName", "merging"),
        ("resourceClaims", [{"name": "gpu", "resourceClaimTemplateName": "big"}]),
        ("runtimeClassName", "accelerated"),
        ("schedulerName", "batch"),
        ("serviceAccountName", "bucket"),
        ("tolerations", [{"key": "spot", "operator": "Exists"}]),
        ("topologySpreadConstraints", [{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}]),
    ],
)
def test_a_field_arrives_in_pods_of_learners_and_syncer(field: str, value: Any) -> None:
    for template, name in zip(both({"spec": {field: value}}), (SET, DEPLOYMENT), strict=True):
        ours = BARE[name]["spec"].get("tolerations", []) if field == "tolerations" else []
        assert template["spec"] == {**BARE[name]["spec"], field: [*value, *ours] if ours else value}


def test_what_a_pool_adds_is_for_its_own_pods_alone() -> None:
    job = with_pool(pods(nodeSelector={"disk": "fast"}, imagePullSecrets=[{"name": "registry"}]))
    assert templates(made(job))[DEPLOYMENT] == BARE[DEPLOYMENT]


def test_labels_and_annotations_stand_beside_ours() -> None:
    given = {"labels": {"team": "research"}, "annotations": {"sidecar.example/inject": "false"}}
    for template, name in zip(both({"metadata": given}), (SET, DEPLOYMENT), strict=True):
        assert template["metadata"]["labels"] == {**BARE[name]["metadata"]["labels"], "team": "research"}
        assert template["metadata"]["annotations"] == given["annotations"]


def test_mounts_volumes_and_init_containers_are_added() -> None:
    volume, mount = {"name": "cache", "emptyDir": {}}, {"name": "cache", "mountPath": "/cache"}
    fetch, source = {"name": "fetch", "image": "fetch:1"}, {"configMapRef": {"name": "tuning"}}
    for name in (SET, DEPLOYMENT):
        own = {"name": "learner" if name == SET else "syncer", "envFrom": [source], "volumeMounts": [mount]}
        own["imagePullPolicy"] = "Always"
        patch = {"spec": {"volumes": [volume], "containers": [own], "initContainers": [fetch]}}
        job = (with_pool if name == SET else with_syncer)({"podTemplate": patch})
        spec, bare = templates(made(job))[name]["spec"], BARE[name]["spec"]
        assert spec["volumes"] == [*bare["volumes"], volume]
        ((container,), (before,)) = spec["containers"], bare["containers"]
        mounts = [*before["volumeMounts"], mount]
        assert container == {**before, "envFrom": [source], "imagePullPolicy": "Always", "volumeMounts": mounts}
        assert spec["initContainers"] == [{**fetch, "securityContext": before["securityContext"]}]


SYSCTLS = [
    {"name": "net.ipv4.tcp_rmem", "value": "4096 131072 67108864"},
    {"name": "net.ipv4.tcp_wmem", "value": "4096 131072 67108864"},
]


def test_the_sizes_of_tcps_buffers_stand_beside_our_security_context() -> None:
    for template, name in zip(
        both({"spec": {"securityContext": {"sysctls": SYSCTLS}}}), (SET, DEPLOYMENT), strict=True
    ):
        bare = BARE[name]["spec"]
        assert template["spec"] == {**bare, "securityContext": {**bare["securityContext"], "sysctls": SYSCTLS}}
    empty: list[Any] = [{"sysctls": []}, {}, None]
    for nothing in empty:
        unchanged = [one["spec"] for one in both({"spec": {"securityContext": nothing}})]
        assert unchanged == [BARE[name]["spec"] for name in (SET, DEPLOYMENT)]


DATA = [{"name": "data", "emptyDir": {}}]
MOUNT = "spec.containers[0].volumeMounts[0]"


def mounted(path: str, name: str = "data") -> dict[str, Any]:
    """A template with a volume, and a mount in the learner's container."""
    template: dict[str, Any] = pods({"name": name, "mountPath": path}, volumes=DATA)["podTemplate"]
    return template


@pytest.mark.parametrize(
    ("template", "place", "says"),
    [
        ({"spec": {"containers": [{"name": "mine"}]}}, "spec.containers[0].name", "mine is not learner"),
        (mounted("/x", "x"), f"{MOUNT}.name", "is not a volume of this pod"),
        (mounted("/data/../etc"), f"{MOUNT}.mountPath", "/data/../etc is not a plain absolute path; use one"),
        *(
            (mounted(path), f"{MOUNT}.mountPath", f"{shown} conflicts with {ours}, which the operator mounts; use one")
            for path, shown, ours in (
                ("/etc/diloco/job", "/etc/diloco/job", "/etc/diloco/job"),
                ("/etc/diloco/tls/", "/etc/diloco/tls", "/etc/diloco/tls"),
                ("/etc/diloco/tls/ca.crt", "/etc/diloco/tls/ca.crt", "/etc/diloco/tls"),
                ("/etc", "/etc", "/etc/diloco/job"),
                ("//tmp", "//tmp", "/tmp"),
                ("/", "/", "/etc/diloco/job"),
                ("/var/lib/diloco/more", "/var/lib/diloco/more", "/var/lib/diloco"),
            )
        ),
        *(
            (
                {"spec": {"volumes": [{"name": name, "emptyDir": {}}]}},
                "spec.volumes[0].name",
                f"{name} is set by the operator; use a name other than job, tls, state, tmp or shared-memory",
            )
            for name in ("job", "tls", "state", "tmp")
        ),
        (
            {"spec": {"initContainers": [{"name": "learner", "image": "fetch:1"}]}},
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
        made(with_pool({"podTemplate": template}))
    assert str(caught.value).startswith(f"{POOL}.{place}: {says}")


def test_the_syncers_is_checked_as_well() -> None:
    with pytest.raises(InvalidSpecError, match=r"^spec\.syncer\.podTemplate\.spec\.containers\[0\]\.name: learner is "):
        made(with_syncer({"podTemplate": {"spec": {"containers": [{"name": "learner"}]}}}))


@pytest.mark.parametrize("path", ["/data", "/tmp/scratch", "/etc/other", "/var/lib/diloco-data", "/etcetera"])
def test_a_path_beside_ours_is_nobodys_business(path: str) -> None:
    template = templates(made(with_pool({"podTemplate": mounted(path)})))[SET]
    assert template["spec"]["containers"][0]["volumeMounts"][-1] == {"name": "data", "mountPath": path}
