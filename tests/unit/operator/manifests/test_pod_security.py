"""Every pod meets the Pod Security Standard 'restricted'; and the rules that check this find violations."""

from copy import deepcopy
from typing import Any

import pytest

from tests.support.made_objects import containers, every_job, made, templates
from tests.support.pod_security import violations

PODS = {
    f"{job}: {name}": template["spec"]
    for job, manifest in every_job().items()
    for name, template in templates(made(manifest)).items()
}


@pytest.mark.parametrize("pod", PODS)
def test_every_pod_is_restricted(pod: str) -> None:
    assert violations(PODS[pod]) == []


@pytest.mark.parametrize(
    ("breach", "told"),
    [
        ({"hostNetwork": True}, "hostNetwork is set"),
        ({"hostPID": True}, "hostPID is set"),
        ({"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}, r"volumes[host] is a hostPath"),
        ({"securityContext": {}}, "may run as root"),
        ({"securityContext": {"runAsNonRoot": True}}, "has no seccomp profile"),
        ({"securityContext": {"runAsUser": 0}}, "runs as root"),
        ({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}, "sysctl kernel.msgmax"),
        ({"securityContext": {"seLinuxOptions": {"user": "root"}}}, "has SELinux options"),
        ({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}, "has no AppArmor profile"),
        ({"container": {"securityContext": {}}}, "may escalate its privileges"),
        ({"container": {"securityContext": {}}}, "does not drop ALL capabilities"),
        ({"container": {"securityContext": {"privileged": True}}}, "is privileged"),
        ({"container": {"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}}, "adds capabilities"),
        ({"container": {"securityContext": {"procMount": "Unmasked"}}}, "has procMount Unmasked"),
        ({"container": {"ports": [{"containerPort": 1, "hostPort": 1}]}}, "has a host port"),
        ({"container": {"livenessProbe": {"httpGet": {"host": "example.org"}}}}, "calls another host"),
    ],
)
def test_a_pod_that_breaks_a_rule_is_found(breach: dict[str, Any], told: str) -> None:
    pod = deepcopy(next(iter(PODS.values())))
    pod["containers"][0].update(breach.get("container", {}))
    pod.update({key: value for key, value in breach.items() if key != "container"})
    assert [found for found in violations(pod) if told in found]


def test_containers_cannot_write_outside_volumes_or_reach_the_api_server() -> None:
    for manifest in every_job().values():
        for template in templates(made(manifest)).values():
            assert template["spec"]["automountServiceAccountToken"] is False
            assert "serviceAccountName" not in template["spec"]
            assert all(one["securityContext"]["readOnlyRootFilesystem"] is True for one in containers(template))
