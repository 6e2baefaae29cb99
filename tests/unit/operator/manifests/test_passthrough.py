"""What a pool passes to its pods arrives; what conflicts with the operator's own is refused in one line."""

from typing import Any

import pytest

from diloco_operator.manifests import InvalidSpecError
from tests.support.made_objects import containers, made, templates, with_pool

FIELDS: dict[str, Any] = {
    "nodeSelector": {"kind": "big"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "priorityClassName": "training",
    "runtimeClassName": "accelerated",
    "imagePullSecrets": [{"name": "registry"}],
}


def learner_pod(pool: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = templates(made(with_pool(pool)))["StatefulSet/small--east-a"]["spec"]
    return pod


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_of_the_pod_arrives_as_it_is(field: str) -> None:
    ours = learner_pod({})["tolerations"] if field == "tolerations" else None
    assert learner_pod({field: FIELDS[field]})[field] == (FIELDS[field] if ours is None else FIELDS[field] + ours)


@pytest.mark.parametrize("field", [*sorted(FIELDS.keys() - {"affinity", "tolerations"}), "resources"])
def test_a_field_that_is_not_given_is_not_there(field: str) -> None:
    pod = learner_pod({})
    assert field not in pod
    assert field not in pod["containers"][0]


def test_what_belongs_to_the_container_arrives_beside_ours() -> None:
    data = {"name": "data", "persistentVolumeClaim": {"claimName": "corpus"}}
    mount = {"name": "data", "mountPath": "/data"}
    variable = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    pool = {"volumes": [data], "volumeMounts": [mount], "env": [variable], "resources": {"limits": {"gpu": 1}}}
    pod, bare = learner_pod(pool), learner_pod({})
    assert pod["volumes"] == [*bare["volumes"], data]
    (container,), (before,) = containers({"spec": pod}), containers({"spec": bare})
    assert container["volumeMounts"] == [*before["volumeMounts"], mount]
    assert container["env"] == [*before["env"], variable]
    assert container["resources"] == {"limits": {"gpu": "1"}}


def test_a_null_is_the_same_as_nothing_said() -> None:
    env = [{"name": "A", "value": None, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name", "apiVersion": None}}}]
    expected = {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    assert learner_pod({"env": env})["containers"][0]["env"][-1] == expected


def test_of_the_first_pools_fields_the_syncer_gets_only_the_pull_secrets() -> None:
    pool = {**FIELDS, "env": [{"name": "A", "value": "1"}], "volumes": [{"name": "data", "emptyDir": {}}]}
    bare = templates(made(with_pool({})))["Deployment/small-syncer"]["spec"]
    assert templates(made(with_pool(pool)))["Deployment/small-syncer"]["spec"] == {
        **bare,
        "imagePullSecrets": FIELDS["imagePullSecrets"],
    }


POOL = "spec.regions[0].pools[0]"
OTHER_NAME = "use a name other than HOME, POD_INDEX or DILOCO_POD"
MOUNTED = "which the operator mounts; use one such as /data"
VOLUMES = [{"name": "data", "emptyDir": {}}]


@pytest.mark.parametrize(
    ("pool", "line"),
    [
        *(
            (
                {"volumes": [{"name": name, "emptyDir": {}}]},
                f"{POOL}.volumes[0].name: {name} is set by the operator; use a name other than job, tls, state or tmp",
            )
            for name in ("job", "tls", "state", "tmp")
        ),
        *(
            (
                {"volumes": VOLUMES, "volumeMounts": [{"name": "data", "mountPath": path}]},
                f"{POOL}.volumeMounts[0].mountPath: {shown} conflicts with {ours}, {MOUNTED}",
            )
            for path, shown, ours in (
                ("/etc/diloco/job", "/etc/diloco/job", "/etc/diloco/job"),
                ("/etc/diloco/tls/", "/etc/diloco/tls", "/etc/diloco/tls"),
                ("/etc/diloco/tls/ca.crt", "/etc/diloco/tls/ca.crt", "/etc/diloco/tls"),
                ("/etc", "/etc", "/etc/diloco/job"),
                ("//tmp", "/tmp", "/tmp"),
                ("/", "/", "/etc/diloco/job"),
                ("/var/lib/diloco/more", "/var/lib/diloco/more", "/var/lib/diloco"),
            )
        ),
        (
            {"volumes": VOLUMES, "volumeMounts": [{"name": "data", "mountPath": "/data/../etc"}]},
            f"{POOL}.volumeMounts[0].mountPath: /data/../etc is not a plain absolute path; use one such as /data",
        ),
        (
            {"volumes": VOLUMES, "volumeMounts": [{"name": "dta", "mountPath": "/data"}]},
            f"{POOL}.volumeMounts[0].name: dta is not a volume of this pool; use data",
        ),
        (
            {"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
            f"{POOL}.volumeMounts[0].name: data is not a volume of this pool; it has none; add it to {POOL}.volumes",
        ),
        (
            {"volumes": VOLUMES, "volumeMounts": [{"mountPath": "/data"}]},
            f"{POOL}.volumeMounts[0].name: is missing; use data",
        ),
        (
            {"env": [{"name": "HOME", "value": "/root"}]},
            f"{POOL}.env[0].name: HOME is set by the operator; {OTHER_NAME}",
        ),
        (
            {"env": [{"name": "POD_INDEX", "value": "0"}]},
            f"{POOL}.env[0].name: POD_INDEX is set by the operator; {OTHER_NAME}",
        ),
        ({"env": [{"name": "A", "value": 1}]}, f"{POOL}.env[0].value: 1 is not text; put it in quotes"),
        ({"env": [{"name": "A", "value": True}]}, f"{POOL}.env[0].value: true is not text; put it in quotes"),
        ({"env": [{"value": "1"}]}, f"{POOL}.env[0].name: is missing; use text"),
        ({"env": [{"name": 1}]}, f"{POOL}.env[0].name: 1 is not text; put it in quotes"),
        (
            {"env": [{"name": "A"}, {"name": "B"}, {"name": "A"}]},
            f"{POOL}.env[2].name: A is also used by {POOL}.env[0]; use each once",
        ),
        (
            {"imagePullSecrets": [{"name": "a"}, {"name": "a"}]},
            f"{POOL}.imagePullSecrets[1].name: a is also used by {POOL}.imagePullSecrets[0]; use each once",
        ),
    ],
)
def test_what_gets_in_the_way_is_refused_in_one_line(pool: dict[str, Any], line: str) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        made(with_pool(pool))
    assert str(caught.value) == line


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(InvalidSpecError) as caught:
        made(with_pool({"volumes": [{"name": "tls"}], "env": [{"name": "HOME"}]}))
    assert [problem.path for problem in caught.value.problems] == [f"{POOL}.env[0].name", f"{POOL}.volumes[0].name"]


@pytest.mark.parametrize("path", ["/data", "/tmp/scratch", "/etc/other", "/var/lib/diloco-data", "/etcetera"])
def test_a_path_beside_ours_is_nobodys_business(path: str) -> None:
    mount = {"name": "data", "mountPath": path}
    assert learner_pod({"volumes": VOLUMES, "volumeMounts": [mount]})["containers"][0]["volumeMounts"][-1] == mount
