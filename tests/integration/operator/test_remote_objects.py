"""What a real API server sends is let in, however odd its owner makes it: all kinds, defaults, pods and events."""

from typing import Any

from diloco_operator import labels
from diloco_operator.api_server.api import Selection
from diloco_operator.api_server.kinds import CORE_EVENT, POD, REMOTE_CHILDREN, Kind, Object
from diloco_operator.api_server.limits import REMOTE
from testbed.api_server.server import ApiServer
from testbed.virtual_cluster.world_pods import crashed
from tests.support.operator_scene import api_at

TEMPLATE: Object = {
    "metadata": {"labels": {"a": "b"}},
    "spec": {
        "containers": [
            {
                "name": "learner",
                "image": "registry.example/trainer:1",
                "ports": [{"containerPort": 1}, {"containerPort": 1, "protocol": "UDP"}],
                "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "b", "key": "c"}}}],
                "resources": {"limits": {"cpu": 1, "memory": "1Gi"}},
            }
        ],
        "volumes": [{"name": "v", "projected": {"sources": [{"configMap": {"name": "x"}}]}}],
    },
}
SPECS: dict[str, Object] = {
    "StatefulSet": {"spec": {"selector": {"matchLabels": {"a": "b"}}, "serviceName": "s", "template": TEMPLATE}},
    "Service": {"spec": {"ports": [{"port": 80, "name": "a"}, {"port": 443, "name": "b", "targetPort": "sync"}]}},
    "ConfigMap": {"data": {"a": "b"}, "binaryData": {"c": "AAAA"}},
    "Secret": {"data": {"a": "AAAA"}},
    "NetworkPolicy": {
        "spec": {
            "podSelector": {},
            "ingress": [{"ports": [{"port": "sync"}], "from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}],
        }
    },
}
OWNER = {"apiVersion": "example.com/v1", "kind": "Unknown", "name": "o", "uid": "any text", "controller": True}


def made(server: ApiServer, kind: Kind, namespace: str, name: str, **fields: Any) -> Object:
    metadata = {
        "name": name,
        "labels": {**labels.of_job("demo", labels.LEARNER), **labels.of_home("x" * 63, "-".join("a" * 30), "X_y.z")},
        "annotations": {"a/b": "\N{SNOWMAN}" * 50_000},
        "ownerReferences": [OWNER],
        "finalizers": ["example.com/never"],
    }
    return dict(server.put(kind.path(namespace), {"metadata": metadata, **fields}))


async def all_of(server: ApiServer, namespace: str, *kinds: Kind) -> dict[str, list[Object]]:
    """Lists, gets and one watch event each, with the checks for other clusters' servers."""
    found: dict[str, list[Object]] = {}
    async with api_at(server.kubeconfig, limits=REMOTE) as api:
        for kind in kinds:
            items = await api.items(Selection(kind, namespace))
            found[kind.name] = items
            name = items[0]["metadata"]["name"]
            assert (await api.get(kind, namespace, name))["metadata"] == items[0]["metadata"]
            metadata = await api.find_metadata(kind, namespace, name)
            assert metadata is not None
            assert metadata["metadata"] == items[0]["metadata"]
            assert await api.items(Selection(kind, namespace, metadata_only=True))
            async for event in api.watch(Selection(kind, namespace), "0"):
                assert event["object"]["metadata"]["uid"] in {item["metadata"]["uid"] for item in items}
                break
    return found


async def test_every_kind_of_a_real_server_comes_in(server: ApiServer, namespace: str) -> None:
    for kind in REMOTE_CHILDREN:
        made(server, kind, namespace, "odd", **SPECS[kind.name])
    found = await all_of(server, namespace, *REMOTE_CHILDREN)
    for kind in REMOTE_CHILDREN:
        sent = server.request("GET", kind.path(namespace, "odd"))[1]
        (came,) = [item for item in found[kind.name] if item["metadata"]["name"] == "odd"]
        assert came["metadata"]["annotations"] == sent["metadata"]["annotations"]
        assert came.get("spec", {}).keys() == sent.get("spec", {}).keys()
        assert "managedFields" not in came["metadata"]


async def test_pods_and_events_of_a_real_server_come_in(server: ApiServer, namespace: str) -> None:
    pod = made(server, POD, namespace, "odd-0", spec=TEMPLATE["spec"])
    status = crashed(1, "torch is not there")
    (container,) = status["containerStatuses"]
    states = [{**container, "name": "learner", "image": "i", "imageID": ""}]
    told = {"phase": "Running", "containerStatuses": states, "conditions": [{"type": "Ready", "status": "False"}]}
    server.set_status(POD.path(namespace, "odd-0"), told)
    about = {"kind": "Pod", "namespace": namespace, "name": "odd-0", "uid": pod["metadata"]["uid"]}
    made(server, CORE_EVENT, namespace, "odd-0.17", involvedObject=about, reason="BackOff", message="m", type="Warning")
    found = await all_of(server, namespace, POD, CORE_EVENT)
    assert found["Pod"][0]["status"]["containerStatuses"][0]["name"] == "learner"
    assert found["Event"][0]["involvedObject"]["uid"] == pod["metadata"]["uid"]
