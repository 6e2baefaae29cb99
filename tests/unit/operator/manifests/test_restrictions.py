"""A user who may create jobs but not pods gets no privileged pod and no key of the job's authority."""

import re
from typing import Any

import pytest

from diloco.spec import DiLoCoJob
from diloco_operator.manifests import InvalidSpecError
from tests.support.made_objects import live, made, templates, with_pool
from tests.support.pod_security import violations

POOL = "spec.regions[0].pools[0]"
SPEC = f"{POOL}.podTemplate.spec"
INIT = f"{SPEC}.initContainers[0]"


def with_init(more: dict[str, Any]) -> DiLoCoJob:
    return with_pool({"podTemplate": {"spec": {"initContainers": [{"name": "fetch", "image": "fetch:1", **more}]}}})


def pod(job: DiLoCoJob) -> dict[str, Any]:
    spec: dict[str, Any] = templates(made(job))["StatefulSet/small--east-a"]["spec"]
    return spec


def told(job: DiLoCoJob) -> list[str]:
    with pytest.raises(InvalidSpecError) as caught:
        made(job)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("context", "line"),
    [
        ({"privileged": True}, "privileged: true is refused by"),
        ({"allowPrivilegeEscalation": True}, "allowPrivilegeEscalation: true is refused by"),
        ({"runAsUser": 0}, "runAsUser: 0 is refused by"),
        ({"runAsNonRoot": False}, "runAsNonRoot: false is refused by"),
        ({"capabilities": {"add": ["NET_BIND_SERVICE", "SYS_ADMIN"]}}, "capabilities.add[1]: SYS_ADMIN is refused by"),
        ({"seccompProfile": {"type": "Unconfined"}}, "seccompProfile.type: Unconfined is refused by"),
        ({"appArmorProfile": {"type": "Unconfined"}}, "appArmorProfile.type: Unconfined is refused by"),
        ({"procMount": "Unmasked"}, "procMount: Unmasked is refused by"),
        ({"seLinuxOptions": {"type": "spc_t"}}, "seLinuxOptions.type: spc_t is refused by"),
        ({"seLinuxOptions": {"user": "system_u"}}, "seLinuxOptions.user: system_u is refused by"),
        ({"seLinuxOptions": {"role": "system_r"}}, "seLinuxOptions.role: system_r is refused by"),
        ({"windowsOptions": {"hostProcess": True}}, "windowsOptions.hostProcess: true is refused by"),
        ({"ofALaterKubernetes": True}, "ofALaterKubernetes: cannot be set here; use "),
        ({"capabilities": ["ALL"]}, "capabilities: is not an object"),
        ({"capabilities": {"add": "ALL"}}, "capabilities.add: is not a list"),
        ({"capabilities": {"ad": ["ALL"]}}, "capabilities.ad: cannot be set here; use add or drop"),
    ],
)
def test_an_init_container_gets_no_privileges(context: dict[str, Any], line: str) -> None:
    (only,) = told(with_init({"securityContext": context}))
    assert only.startswith(f"{INIT}.securityContext.{line}")
    assert "; use " in only or "is not a" in only


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"securityContext": "privileged"}, "securityContext: is not an object"),
        ({"ports": [{"containerPort": 1}, {"containerPort": 2, "hostPort": 2}]}, "ports[1].hostPort: 2 is refused by"),
        (
            {"livenessProbe": {"httpGet": {"port": 1, "host": "169.254.169.254"}}},
            "livenessProbe.httpGet.host: 169.254.169.254 is refused by",
        ),
        (
            {"lifecycle": {"postStart": {"tcpSocket": {"port": 1, "host": "a"}}}},
            "lifecycle.postStart.tcpSocket.host: a is refused by",
        ),
        (
            {"volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, {"name": "tls", "mountPath": "/tls"}]},
            "volumeMounts[1].name: tls is for the operator's container alone; use job, tmp or a volume of your own",
        ),
        ({"volumeMounts": [{"name": "state", "mountPath": "/s"}]}, "volumeMounts[0].name: state is for the operator's"),
        ({"volumeDevices": [{"name": "state", "devicePath": "/s"}]}, "volumeDevices[0].name: state is for the"),
    ],
)
def test_an_init_container_gets_neither_the_node_nor_our_keys(more: dict[str, Any], line: str) -> None:
    (only,) = told(with_init(more))
    assert only.startswith(f"{INIT}.{line}")


@pytest.mark.parametrize(
    "context",
    [
        {},
        None,
        {"privileged": False, "allowPrivilegeEscalation": None, "runAsUser": 1000, "runAsGroup": 0},
        {"capabilities": {"add": ["NET_BIND_SERVICE"]}},
        {"capabilities": {"drop": ["NET_RAW"]}},
        {"capabilities": {"drop": []}},
        {"seccompProfile": {"type": "Localhost", "localhostProfile": "mine"}, "procMount": "Default"},
        {"seLinuxOptions": {"type": "container_t", "level": "s0:c1,c2"}, "appArmorProfile": {"type": "RuntimeDefault"}},
        {"readOnlyRootFilesystem": False},
    ],
)
def test_what_is_not_refused_leaves_the_pod_restricted(context: Any) -> None:
    mounts = [{"name": "tmp", "mountPath": "/tmp"}, {"name": "job", "mountPath": "/etc/diloco/job"}]
    probe = {"httpGet": {"port": 1, "path": "/"}}
    job = with_init({"securityContext": context, "volumeMounts": mounts, "startupProbe": probe})
    assert violations(pod(job)) == []


def test_capabilities_of_an_init_container_are_beside_the_drop_of_all() -> None:
    def found(capabilities: dict[str, Any]) -> Any:
        job = with_init({"securityContext": {"capabilities": capabilities}})
        return pod(job)["initContainers"][0]["securityContext"]["capabilities"]

    assert found({"add": ["NET_BIND_SERVICE"]}) == {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}
    assert found({"drop": ["NET_RAW"]}) == {"drop": ["ALL", "NET_RAW"]}
    assert found({"drop": ["ALL"]}) == {"drop": ["ALL"]}


HOST = {"name": "host", "hostPath": {"path": "/"}}


def test_no_pod_gets_a_path_of_its_node() -> None:
    says = "hostPath: / is refused by restricted Pod Security; use a claim, an emptyDir or another volume"
    assert told(with_pool({"volumes": [HOST]})) == [f"{POOL}.volumes[0].{says}"]
    assert told(with_pool({"podTemplate": {"spec": {"volumes": [HOST]}}})) == [f"{SPEC}.volumes[0].{says}"]


def secret(name: str) -> dict[str, Any]:
    return {"name": "found", "secret": {"secretName": name}}


def variable(name: str) -> dict[str, Any]:
    return {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": name, "key": "ca.key"}}}


CLONE = {"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "small-syncer"}}}


@pytest.mark.parametrize(
    ("pool", "line"),
    [
        ({"volumes": [secret("small-ca")]}, "volumes[0].secret.secretName: small-ca is "),
        ({"env": [variable("small-ca")]}, "env[0].valueFrom.secretKeyRef.name: small-ca is "),
        (
            {"podTemplate": {"spec": {"volumes": [secret("small-ca")]}}},
            "podTemplate.spec.volumes[0].secret.secretName: small-ca is ",
        ),
        *(
            (
                {"podTemplate": {"spec": {kind: [{"name": name, **given}]}}},
                f"podTemplate.spec.{kind}[0].{place}: small-ca is ",
            )
            for kind, name in (("containers", "learner"), ("initContainers", "fetch"))
            for given, place in (
                ({"env": [variable("small-ca")]}, "env[0].valueFrom.secretKeyRef.name"),
                ({"envFrom": [{"secretRef": {"name": "small-ca"}}]}, "envFrom[0].secretRef.name"),
            )
        ),
        *(
            ({"volumes": [{"name": "v", **source}]}, f"volumes[0].{place}: {value} is ")
            for source, place, value in (
                (
                    {"projected": {"sources": [{"configMap": {"name": "a"}}, {"secret": {"name": "small-ca"}}]}},
                    "projected.sources[1].secret.name",
                    "small-ca",
                ),
                (
                    {"csi": {"driver": "d", "nodePublishSecretRef": {"name": "small-ca"}}},
                    "csi.nodePublishSecretRef.name",
                    "small-ca",
                ),
                ({"secret": {"secretName": "small-syncer-tls"}}, "secret.secretName", "small-syncer-tls"),
                ({"secret": {"secretName": "small--east-a-tls"}}, "secret.secretName", "small--east-a-tls"),
                (
                    {"persistentVolumeClaim": {"claimName": "small-syncer"}},
                    "persistentVolumeClaim.claimName",
                    "small-syncer",
                ),
                (
                    {"ephemeral": {"volumeClaimTemplate": CLONE}},
                    "ephemeral.volumeClaimTemplate.spec.dataSource.name",
                    "small-syncer",
                ),
            )
        ),
    ],
)
def test_the_jobs_own_secrets_and_claim_are_the_operators(pool: dict[str, Any], line: str) -> None:
    (only,) = told(with_pool(pool))
    assert only.startswith(f"{POOL}.{line}")
    assert "; use another" in only


def test_the_authoritys_key_is_named_as_such() -> None:
    (only,) = told(with_pool({"volumes": [secret("small-ca")]}))
    says = "small-ca is the Secret with the key of this job's certificate authority; use another Secret"
    assert only == f"{POOL}.volumes[0].secret.secretName: {says}"


def test_the_syncers_template_is_held_to_the_same() -> None:
    patch = {"spec": {"volumes": [secret("small-ca"), HOST], "initContainers": [{"name": "a", **PRIVILEGED}]}}
    job = with_pool({})
    job = live(job, syncer=type(job.spec.syncer).model_validate({"podTemplate": patch}))
    places = [re.sub(r": .*", "", line) for line in told(job)]
    assert places == [
        f"spec.syncer.podTemplate.spec.{place}"
        for place in (
            "volumes[1].hostPath",
            "volumes[0].secret.secretName",
            "initContainers[0].securityContext.privileged",
        )
    ]


PRIVILEGED = {"securityContext": {"privileged": True}}


def test_other_secrets_claims_and_config_maps_arrive() -> None:
    volumes = [
        {"name": "a", "secret": {"secretName": "hub"}},
        {"name": "b", "configMap": {"name": "small-ca"}},
        {"name": "c", "persistentVolumeClaim": {"claimName": "corpus"}},
        {"name": "d", "emptyDir": {}},
    ]
    assert pod(with_pool({"volumes": volumes, "env": [variable("hub")]}))["volumes"][-4:] == volumes


def test_an_annotation_does_not_switch_apparmor_off() -> None:
    key = "container.apparmor.security.beta.kubernetes.io/learner"

    def annotated(value: str) -> DiLoCoJob:
        return with_pool({"podTemplate": {"metadata": {"annotations": {key: value}}}})

    (only,) = told(annotated("unconfined"))
    place = f"{POOL}.podTemplate.metadata.annotations.{key}"
    assert only == f"{place}: unconfined is refused by restricted Pod Security; use runtime/default"
    for allowed in ("runtime/default", "localhost/mine"):
        assert made(annotated(allowed))
