"""What a job may add to its pods is a strict part of Kubernetes' PodTemplateSpec."""

from typing import Any

import pytest

from diloco.spec import SpecError
from diloco.spec.reading.load import job_from
from tests.support.job_manifests import changed

SPEC = "spec.syncer.podTemplate.spec"
RECEIVING = "net.ipv4.tcp_rmem"


def told(**spec: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        job_from(changed({"spec.syncer.podTemplate": {"spec": spec}}))
    return [str(problem) for problem in caught.value.problems]


def buffers(*sizes: tuple[object, object]) -> dict[str, Any]:
    return {"sysctls": [{"name": name, "value": value} for name, value in sizes]}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("67108864", '"67108864" does not fit; use three sizes in bytes'),
        ("4096 131072 9999999999", '"4096 131072 9999999999" does not fit; use three sizes in bytes'),
        (4096, "4096 is not text; put it in quotes"),
    ],
)
def test_the_sizes_of_tcps_buffers_are_three(value: object, says: str) -> None:
    (line,) = told(securityContext=buffers((RECEIVING, value)))
    assert line.startswith(f"{SPEC}.securityContext.sysctls[0].value: {says}")


def test_of_a_pods_security_context_its_group_and_tcps_buffers_can_be_set() -> None:
    (user,) = told(securityContext={"runAsUser": 0})
    assert user.startswith(
        f"{SPEC}.securityContext.runAsUser: is set by the operator, as pods run by the Pod Security "
    )
    assert told(securityContext={"fsGroup": 0}) == [
        f"{SPEC}.securityContext.fsGroup: 0 is too small; use an integer from 1 to 2147483647"
    ]
    assert told(securityContext=buffers(("kernel.msgmax", "1 2 3"))) == [
        f'{SPEC}.securityContext.sysctls[0].name: "kernel.msgmax" is not known; use {RECEIVING} or net.ipv4.tcp_wmem'
    ]
    assert told(securityContext=buffers((RECEIVING, "1 2 3"), (RECEIVING, "1 2 3"))) == [
        f"{SPEC}.securityContext.sysctls[1].name: {RECEIVING} is there already; use each name once"
    ]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"hostNetwork": True}, "hostNetwork: is not allowed, as a job's pods get no access to their node; "),
        ({"restartPolicy": "Never"}, "restartPolicy: is set by the operator; remove it"),
        ({"serviceAccount": "old"}, "serviceAccount: is not a field here; did you mean serviceAccountName?"),
        (
            {"containers": [{"name": "syncer", "command": []}]},
            "containers[0].command: is set by the operator; remove it or, for a sidecar, use initContainers ",
        ),
        (
            {"containers": [{"name": "syncer", "securityContext": {"privileged": True}}]},
            "containers[0].securityContext: is set by the operator, as containers run without privileges; ",
        ),
        (
            {"containers": [{"name": "syncer"}, {"name": "logs", "image": "logs:1"}]},
            "containers[1].image: is not a field of the operator's container; use image beside podTemplate or, for a ",
        ),
        ({"containers": [{"name": "syncer", "foo": 1}]}, "containers[0].foo: is not a field here; use name, envFrom, "),
    ],
)
def test_what_the_operator_sets_itself_is_said_so(given: dict[str, Any], says: str) -> None:
    (line,) = told(**given)
    assert line.startswith(f"{SPEC}.{says}")


def test_only_mounts_and_sources_can_be_set_in_the_operators_container() -> None:
    place = f"{SPEC}.containers[0]"
    mounts = [{"name": "a", "mountPath": "/a"}, {"name": "b", "mountPath": "/a"}]
    assert told(containers=[{"name": "syncer", "volumeMounts": mounts}]) == [
        f"{place}.volumeMounts[1].mountPath: /a is there already; use each mountPath once"
    ]


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("initContainers", {"image": "fetch:1"}),
        ("imagePullSecrets", {}),
        ("volumes", {}),
        ("resourceClaims", {"resourceClaimName": "big"}),
    ],
)
def test_a_name_stands_once_in_a_list(field: str, more: dict[str, str]) -> None:
    assert told(**{field: [{"name": "a", **more}, {"name": "a", **more}]}) == [
        f"{SPEC}.{field}[1].name: a is there already; use each name once"
    ]


def test_a_quantity_is_text_or_an_integer() -> None:
    job = job_from(
        changed(
            {"spec.syncer": {"resources": {"limits": {"example.com/gpu": 1, "cpu": "1.5e1"}}, "storage": {"size": 5}}}
        )
    )
    assert job.spec.syncer.resources is not None
    assert job.spec.syncer.resources.limits == {"example.com/gpu": "1", "cpu": "1.5e1"}
    assert job.spec.syncer.storage.size == "5"
