"""The pods' network of clusters whose node image has none: a point-to-point link for each pod, a route to each node.

It does what kind's own plugin does, but once and from outside. That is enough, since a cluster's nodes stay the same.
It enforces no NetworkPolicy.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from testbed.kind.commands import run

_CONFIGURATION = "/etc/cni/net.d/10-ptp.conflist"


@dataclass(frozen=True)
class NodeAddresses:
    """A node and where it and its pods are."""

    name: str
    address: str
    pod_cidr: str


def addresses_of(nodes: Iterable[dict[str, Any]]) -> list[NodeAddresses] | None:
    """Of nodes, or None while one of them has no pod CIDR yet."""
    found = []
    for node in nodes:
        cidr = node["spec"].get("podCIDR")
        internal = [entry["address"] for entry in node["status"]["addresses"] if entry["type"] == "InternalIP"]
        if not cidr or not internal:
            return None
        found.append(NodeAddresses(node["metadata"]["name"], internal[0], cidr))
    return found


def configuration(pod_cidr: str) -> dict[str, Any]:
    """What containerd reads (CNI specification 0.3.1; the plugins' own fields)."""
    ranges = [[{"subnet": pod_cidr}]]
    # Which addresses are taken is forgotten with the pods when a node restarts.
    addresses = {"type": "host-local", "dataDir": "/run/cni-ipam-state", "ranges": ranges}
    link = {"type": "ptp", "ipMasq": True, "ipam": addresses | {"routes": [{"dst": "0.0.0.0/0"}]}}
    return {
        "cniVersion": "0.3.1",
        "name": "ptp",
        "plugins": [link, {"type": "portmap", "capabilities": {"portMappings": True}}],
    }


def wire(nodes: list[NodeAddresses]) -> None:
    """Configure every node. Can be done again, as after a restart of a node's container."""
    for node in nodes:
        text = json.dumps(configuration(node.pod_cidr))
        write = f"mkdir -p /etc/cni/net.d && cat > {_CONFIGURATION}.new && mv {_CONFIGURATION}.new {_CONFIGURATION}"
        run("docker", "exec", "-i", node.name, "sh", "-c", write, stdin=text)
        for other in nodes:
            if other != node:
                run("docker", "exec", node.name, "ip", "route", "replace", other.pod_cidr, "via", other.address)
