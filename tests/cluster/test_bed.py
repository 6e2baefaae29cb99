"""The test bed has what tests rely on: nodes, names, volumes and the rules for pods."""

from typing import Any

import pytest
import yaml
from kubernetes import dynamic

from testbed.kind.clusters import Cluster
from testbed.kind.commands import CommandFailedError
from testbed.kind.project_images import Images
from testbed.kind.versions import KUBERNETES
from testbed.kind.waiting import wait_until

CONTAINER = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
POD = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "runAsGroup": 10001,
    "fsGroup": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}


class OneLine:
    """A pod that runs a line of Python and ends."""

    def __init__(self, cluster: Cluster, namespace: str, name: str, **spec: Any) -> None:
        self._cluster = cluster
        self._where = (name, "--namespace", namespace)
        container = {"name": "main", "securityContext": CONTAINER, **spec.pop("container")}
        whole = {"restartPolicy": "Never", "securityContext": POD, "containers": [container], **spec}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole}
        cluster.apply(manifest, namespace=namespace)

    def said(self) -> str:
        """Its output, after it has succeeded."""
        assert wait_until(self._ended, "the pod ends", 120) == "Succeeded", self._cluster.kubectl("logs", *self._where)
        return self._cluster.kubectl("logs", *self._where).strip()

    def _ended(self) -> str:
        phase: str = self._cluster.get("pod", *self._where)["status"].get("phase", "")
        return phase if phase in {"Succeeded", "Failed"} else ""


def line(images: Images, program: str, **more: Any) -> dict[str, Any]:
    return {"image": images.operator, "command": ["python3", "-c", program], **more}


def test_every_node_is_ready_and_there_is_one_to_lose(cluster: Cluster) -> None:
    nodes = cluster.get("nodes")["items"]
    ready = [
        condition["status"]
        for node in nodes
        for condition in node["status"]["conditions"]
        if condition["type"] == "Ready"
    ]
    assert ready == ["True"] * len(nodes)
    assert {node["status"]["nodeInfo"]["kubeletVersion"] for node in nodes} == {f"v{KUBERNETES}"}
    assert cluster.workers


def test_a_volume_outlives_its_pod_and_is_writable_without_root(
    cluster: Cluster, namespace: str, images: Images
) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "kept"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    }
    cluster.apply(claim, namespace=namespace)
    mounts = [{"name": "kept", "mountPath": "/kept"}]
    volumes = [{"name": "kept", "persistentVolumeClaim": {"claimName": "kept"}}]
    write = line(images, "open('/kept/note', 'w').write('still here')", volumeMounts=mounts)
    OneLine(cluster, namespace, "writer", container=write, volumes=volumes).said()
    read = line(images, "print(open('/kept/note').read())", volumeMounts=mounts)
    assert OneLine(cluster, namespace, "reader", container=read, volumes=volumes).said() == "still here"
    bound = cluster.get("persistentvolumeclaim", "kept", "--namespace", namespace)
    assert bound["spec"]["storageClassName"] == "standard"


@pytest.mark.parametrize("on_control_plane", [True, False], ids=["control plane", "worker"])
def test_a_pod_on_each_node_resolves_names_and_reaches_services(
    cluster: Cluster, namespace: str, images: Images, on_control_plane: bool
) -> None:
    role = {
        "key": "node-role.kubernetes.io/control-plane",
        "operator": "Exists" if on_control_plane else "DoesNotExist",
    }
    required = {"nodeSelectorTerms": [{"matchExpressions": [role]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    program = "import socket; socket.create_connection(('kubernetes.default.svc', 443), 20); print('reached')"
    client = OneLine(cluster, namespace, "client", container=line(images, program), affinity=affinity)
    assert client.said() == "reached"


def test_a_pod_that_may_be_root_is_refused(cluster: Cluster, namespace: str, images: Images) -> None:
    with pytest.raises(CommandFailedError, match='violates PodSecurity "restricted:latest"'):
        OneLine(cluster, namespace, "root", container=line(images, "pass"), securityContext={})


def test_the_clients_speak_to_the_same_cluster(
    cluster: Cluster, dynamic_client: dynamic.DynamicClient, namespace: str
) -> None:
    kubeconfig = yaml.safe_load(cluster.kubeconfig.read_text(encoding="utf-8"))
    assert kubeconfig["current-context"] == f"kind-{cluster.name}"
    found = dynamic_client.resources.get(api_version="v1", kind="Namespace").get(name=namespace)
    assert found.metadata.labels["pod-security.kubernetes.io/enforce"] == "restricted"
