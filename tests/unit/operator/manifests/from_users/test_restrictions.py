"""A user who may create jobs but not pods gets no privileged pod and no key of the job's authority."""

import re
from typing import Any

import pytest

from diloco.spec import DiLoCoJob
from diloco_operator.manifests import InvalidSpecError
from tests.support.job_manifests import pods
from tests.support.made_objects import learner_pod, made, with_pool, with_syncer

POOL = "spec.regions[0].pools[0]"
SPEC = f"{POOL}.podTemplate.spec"
INIT = f"{SPEC}.initContainers[0]"
FETCH = {"name": "fetch", "image": "fetch:1"}
ALWAYS = {"restartPolicy": "Always"}


def with_init(more: dict[str, Any]) -> DiLoCoJob:
    return with_pool({"podTemplate": {"spec": {"initContainers": [{**FETCH, **more}]}}})


def told(job: DiLoCoJob) -> list[str]:
    with pytest.raises(InvalidSpecError) as caught:
        made(job)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"securityContext": {"runAsUser": 1000}}, "securityContext: is set by the operator, as for its own container"),
        ({"ports": [{"containerPort": 1}, {"containerPort": 2, "hostPort": 2}]}, "ports[1].hostPort: 2 is refused by"),
        (
            {**ALWAYS, "livenessProbe": {"httpGet": {"port": 1, "host": "169.254.169.254"}}},
            "livenessProbe.httpGet.host: 169.254.169.254 is refused by",
        ),
        (
            {**ALWAYS, "lifecycle": {"postStart": {"tcpSocket": {"port": 1, "host": "a"}}}},
            "lifecycle.postStart.tcpSocket.host: a is refused by",
        ),
        (
            {"volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, {"name": "tls", "mountPath": "/tls"}]},
            "volumeMounts[1].name: tls is for the operator's container alone; use job, tmp or a volume of your own",
        ),
        ({"volumeMounts": [{"name": "state", "mountPath": "/s"}]}, "volumeMounts[0].name: state is for the operator's"),
        (
            {"volumeMounts": [{"name": "data", "mountPath": "/d"}]},
            "volumeMounts[0].name: is not a volume of this pod; use",
        ),
        ({"volumeDevices": [{"name": "state", "devicePath": "/s"}]}, "volumeDevices[0].name: state is for the"),
    ],
)
def test_an_init_container_gets_neither_the_node_nor_our_keys(more: dict[str, Any], line: str) -> None:
    (only,) = told(with_init(more))
    assert only.startswith(f"{INIT}.{line}")


def test_an_init_container_is_restricted_as_ours_is() -> None:
    mounts = [{"name": "tmp", "mountPath": "/tmp"}, {"name": "job", "mountPath": "/etc/diloco/job"}]
    probe = {"httpGet": {"port": 1, "path": "/"}}
    found = learner_pod(with_init({**ALWAYS, "securityContext": None, "volumeMounts": mounts, "startupProbe": probe}))
    assert found["initContainers"][0]["securityContext"] == found["containers"][0]["securityContext"]


HOST = {"name": "host", "hostPath": {"path": "/"}}


def test_no_pod_gets_a_path_of_its_node() -> None:
    says = "hostPath: / is refused by restricted Pod Security; use a claim, an emptyDir or another volume"
    assert told(with_pool(pods(volumes=[HOST]))) == [f"{SPEC}.volumes[0].{says}"]


def secret(name: str) -> dict[str, Any]:
    return {"name": "found", "secret": {"secretName": name}}


def variable(name: str) -> dict[str, Any]:
    return {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": name, "key": "ca.key"}}}


FROM = {"envFrom": [{"secretRef": {"name": "small-ca"}}]}
CLONE = {"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "small-syncer"}}}


@pytest.mark.parametrize(
    ("pool", "line"),
    [
        ({"env": [variable("small-ca")]}, "env[0].valueFrom.secretKeyRef.name: small-ca is "),
        *(
            (pods(**{kind: [{**own, **given}]}), f"podTemplate.spec.{kind}[0].{place}: small-ca is ")
            for kind, own, given, place in (
                ("containers", {"name": "learner"}, FROM, "envFrom[0].secretRef.name"),
                ("initContainers", FETCH, FROM, "envFrom[0].secretRef.name"),
                ("initContainers", FETCH, {"env": [variable("small-ca")]}, "env[0].valueFrom.secretKeyRef.name"),
            )
        ),
        *(
            (pods(volumes=[{"name": "v", **source}]), f"podTemplate.spec.volumes[0].{place}: {value} is ")
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
    (only,) = told(with_pool(pods(volumes=[secret("small-ca")])))
    says = "small-ca is the Secret with the key of this job's certificate authority; use another Secret"
    assert only == f"{SPEC}.volumes[0].secret.secretName: {says}"


def test_the_syncers_template_is_held_to_the_same() -> None:
    patch = {"spec": {"volumes": [secret("small-ca"), HOST], "initContainers": [{**FETCH, **PRIVILEGED}]}}
    places = [re.sub(r": .*", "", line) for line in told(with_syncer({"podTemplate": patch}))]
    assert places == [
        f"spec.syncer.podTemplate.spec.{place}"
        for place in ("volumes[1].hostPath", "volumes[0].secret.secretName", "initContainers[0].securityContext")
    ]


PRIVILEGED = {"securityContext": {"privileged": True}}


def test_other_secrets_claims_and_config_maps_arrive() -> None:
    volumes = [
        {"name": "a", "secret": {"secretName": "hub"}},
        {"name": "b", "configMap": {"name": "small-ca"}},
        {"name": "c", "persistentVolumeClaim": {"claimName": "corpus"}},
        {"name": "d", "emptyDir": {}},
    ]
    assert learner_pod(with_pool({"env": [variable("hub")], **pods(volumes=volumes)}))["volumes"][-4:] == volumes


def test_an_annotation_does_not_switch_apparmor_off() -> None:
    key = "container.apparmor.security.beta.kubernetes.io/learner"

    def annotated(value: str) -> DiLoCoJob:
        return with_pool({"podTemplate": {"metadata": {"annotations": {key: value}}}})

    (only,) = told(annotated("unconfined"))
    place = f"{POOL}.podTemplate.metadata.annotations.{key}"
    assert only == f"{place}: unconfined is refused by restricted Pod Security; use runtime/default"
    for allowed in ("runtime/default", "localhost/mine"):
        assert made(annotated(allowed))
