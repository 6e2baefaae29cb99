"""Processes of a cluster's control plane that stop answering and go on later, as on an overloaded machine."""

from collections.abc import Iterator
from contextlib import contextmanager

from testbed.kind.clusters import Cluster
from testbed.kind.commands import run, succeeds
from testbed.kind.peers import nodes_of
from testbed.kind.waiting import wait_until

LONGEST_SECONDS = 90
"""Kubelet starts an API server anew that has not answered its probes for longer."""
_API_SERVER = "kube-apiserver"
_READY_SECONDS = 180.0


@contextmanager
def hanging_api_server(cluster: Cluster) -> Iterator[None]:
    """Run while the cluster's API server accepts connections and answers nothing; it answers again afterwards."""
    plane = nodes_of(cluster).control_plane
    _signal(plane, "STOP")
    try:
        yield
    finally:
        _signal(plane, "CONT")
        answers = (cluster.kubectl_path, "--kubeconfig", cluster.kubeconfig, "get", "--raw", "/readyz")
        wait_until(lambda: succeeds(*answers, timeout_seconds=10), "the API server answers again", _READY_SECONDS)


def _signal(node: str, name: str) -> None:
    run("docker", "exec", node, "pkill", f"-{name}", "--exact", _API_SERVER)
