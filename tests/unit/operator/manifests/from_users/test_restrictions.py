"""A user who may create jobs but not pods gets no privileged pod and no key of the job's authority."""

import re
from typing import Any

import pytest
import yaml

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


INIT_CONTAINERS: dict[str, dict[str, Any]] = yaml.safe_load("""
"securityContext: is set by the operator, as for its own container": {securityContext: {runAsUser: 1000}}
"ports[1].hostPort: 2 is refused by": {ports: [{containerPort: 1}, {containerPort: 2, hostPort: 2}]}
"livenessProbe.httpGet.host: 169.254.169.254 is refused by":
  {restartPolicy: Always, livenessProbe: {httpGet: {port: 1, host: 169.254.169.254}}}
"lifecycle.postStart.tcpSocket.host: a is refused by":
  {restartPolicy: Always, lifecycle: {postStart: {tcpSocket: {port: 1, host: a}}}}
"volumeMounts[1].name: tls is for the operator's container alone; use job, tmp or a volume of your own":
  {volumeMounts: [{name: tmp, mountPath: /tmp}, {name: tls, mountPath: /tls}]}
"volumeMounts[0].name: state is for the operator's": {volumeMounts: [{name: state, mountPath: /s}]}
"volumeMounts[0].name: is not a volume of this pod; use": {volumeMounts: [{name: data, mountPath: /d}]}
"volumeDevices[0].name: state is for the": {volumeDevices: [{name: state, devicePath: /s}]}
""")


@pytest.mark.parametrize("line", INIT_CONTAINERS)
def test_an_init_container_gets_neither_the_node_nor_our_keys(line: str) -> None:
    (only,) = told(with_init(INIT_CONTAINERS[line]))
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


OWN: dict[str, dict[str, Any]] = yaml.safe_load("""
containers[0].envFrom[0].secretRef.name: {containers: [{name: learner, envFrom: [{secretRef: {name: small-ca}}]}]}
initContainers[0].envFrom[0].secretRef.name:
  {initContainers: [{name: fetch, image: "fetch:1", envFrom: [{secretRef: {name: small-ca}}]}]}
initContainers[0].env[0].valueFrom.secretKeyRef.name:
  initContainers:
  - {name: fetch, image: "fetch:1", env: [{name: KEY, valueFrom: {secretKeyRef: {name: small-ca, key: ca.key}}}]}
volumes[0].projected.sources[1].secret.name:
  {volumes: [{name: v, projected: {sources: [{configMap: {name: a}}, {secret: {name: small-ca}}]}}]}
volumes[0].csi.nodePublishSecretRef.name:
  {volumes: [{name: v, csi: {driver: d, nodePublishSecretRef: {name: small-ca}}}]}
volumes[1].secret.secretName: {volumes: [{name: v, emptyDir: {}}, {name: w, secret: {secretName: small-syncer-tls}}]}
volumes[0].secret.secretName: {volumes: [{name: v, secret: {secretName: small--east-a-tls}}]}
volumes[0].persistentVolumeClaim.claimName:
  {volumes: [{name: v, persistentVolumeClaim: {claimName: small-syncer}}]}
volumes[0].ephemeral.volumeClaimTemplate.spec.dataSource.name:
  volumes:
  - name: v
    ephemeral: {volumeClaimTemplate: {spec: {dataSource: {kind: PersistentVolumeClaim, name: small-syncer}}}}
""")


@pytest.mark.parametrize("place", OWN)
def test_the_jobs_own_secrets_and_claim_are_the_operators(place: str) -> None:
    (only,) = told(with_pool(pods(**OWN[place])))
    assert re.match(
        re.escape(f"{SPEC}.{place}: small-") + r"(ca|syncer|syncer-tls|-east-a-tls) is .*; use another", only
    )


def test_no_variable_is_one_of_the_jobs_own_secrets() -> None:
    (only,) = told(with_pool({"env": [variable("small-ca")]}))
    assert only.startswith(f"{POOL}.env[0].valueFrom.secretKeyRef.name: small-ca is ")


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
