"""A cluster as others on the same Docker network see it: its addresses, and a namespace of it for their regions."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.kind import network
from testbed.kind.clusters import Cluster
from testbed.kind.commands import run

API_PORT = 6443
_CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
_DILOCO = Path(sys.executable).parent / "diloco"


@dataclass(frozen=True)
class Nodes:
    """A cluster's nodes, which are containers, and their addresses on the network that all clusters share."""

    control_plane: str
    addresses: dict[str, str]
    """By the name of the node."""

    @property
    def api_server(self) -> str:
        """Where pods of other clusters reach the API server; the address is in its certificate."""
        return f"https://{self.addresses[self.control_plane]}:{API_PORT}"

    @property
    def all_addresses(self) -> tuple[str, ...]:
        """What other clusters see as the source of everything from here: pods' own addresses are masked."""
        return tuple(self.addresses[name] for name in sorted(self.addresses))


def nodes_in(listed: list[dict[str, Any]]) -> Nodes:
    """The nodes that an API server lists. Pure.

    Raises:
        ValueError: a node has no address, or none is the control plane.
    """
    found = network.addresses_of(listed)
    planes = [node["metadata"]["name"] for node in listed if _CONTROL_PLANE in node["metadata"]["labels"]]
    if found is None or not planes:
        raise ValueError("a node has no address, or there is no control plane")
    return Nodes(planes[0], {node.name: node.address for node in found})


def nodes_of(cluster: Cluster) -> Nodes:
    """The nodes of a cluster."""
    return nodes_in(cluster.items("nodes"))


def diloco(*arguments: str | Path) -> str:
    """What the program says, as its user runs it.

    Raises:
        CommandFailedError: it fails.
    """
    return run(_DILOCO, *arguments, timeout_seconds=60)


def prepare(cluster: Cluster, namespace: str) -> str:
    """Make a namespace ready for another cluster's regions; returns what was applied."""
    prepared = diloco("cluster", "prepare", namespace)
    cluster.kubectl("apply", "--filename", "-", stdin=prepared)
    return prepared


def kubeconfig_secret(cluster: Cluster, namespace: str, name: str, *flags: str) -> str:
    """The Secret, as YAML, by which home's operator reaches a prepared namespace.

    Raises:
        CommandFailedError: the cluster refuses a token.
    """
    access = ("--kubeconfig", cluster.kubeconfig, "--namespace", namespace, "--name", name)
    return diloco("cluster", "kubeconfig", *access, "--server", nodes_of(cluster).api_server, *flags)
