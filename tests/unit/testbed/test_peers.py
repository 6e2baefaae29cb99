"""Where other clusters reach a cluster's nodes."""

from typing import Any

import pytest

from testbed.kind.peers import nodes_in

PLANE = {"node-role.kubernetes.io/control-plane": ""}


def node(name: str, address: str, labels: dict[str, str], cidr: str | None = "10.244.0.0/24") -> dict[str, Any]:
    status = {"addresses": [{"type": "InternalIP", "address": address}]}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"podCIDR": cidr}, "status": status}


def test_the_api_server_is_at_the_control_planes_own_address() -> None:
    found = nodes_in([node("a-worker", "172.18.0.2", {}), node("a-plane", "172.18.0.3", PLANE)])
    assert found.control_plane == "a-plane"
    assert found.api_server == "https://172.18.0.3:6443"
    assert found.all_addresses == ("172.18.0.3", "172.18.0.2")


@pytest.mark.parametrize("listed", [[], [node("a", "172.18.0.2", {})], [node("a", "172.18.0.2", PLANE, None)]])
def test_a_cluster_that_is_not_up_yet_has_no_addresses(listed: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match="no control plane"):
        nodes_in(listed)
