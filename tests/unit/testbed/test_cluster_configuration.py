"""The configuration of kind and of the nodes' network plugin, for each kind of node image."""

from typing import Any

import pytest
import yaml

from testbed.kind.clusters import configuration
from testbed.kind.guard import IDENTITY_LABEL
from testbed.kind.network import NodeAddresses, addresses_of
from testbed.kind.network import configuration as plugin_configuration
from testbed.kind.node_image import NodeImage, image_for, sandbox_image

PULLED = NodeImage("node:1", brings_network=True, is_restricted=False)
BUILT = NodeImage("node:1", brings_network=False, is_restricted=True)


def test_every_node_carries_the_identity() -> None:
    nodes = configuration(PULLED, "a1b2", workers=2)["nodes"]
    assert [node["role"] for node in nodes] == ["control-plane", "worker", "worker"]
    assert [node["labels"] for node in nodes] == [{IDENTITY_LABEL: "a1b2"}] * 3


def test_only_an_image_without_a_network_goes_without_kinds_own() -> None:
    assert "networking" not in configuration(PULLED, "x", 1)
    assert configuration(BUILT, "x", 1)["networking"] == {"disableDefaultCNI": True}


def test_only_a_restricted_kubelet_is_told_so() -> None:
    assert "featureGates" not in configuration(PULLED, "x", 1)
    assert configuration(BUILT, "x", 1)["featureGates"] == {"KubeletInUserNamespace": True}


def node(name: str, cidr: str | None, address: str) -> dict[str, Any]:
    addresses = [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": address}]
    return {"metadata": {"name": name}, "spec": {"podCIDR": cidr}, "status": {"addresses": addresses}}


def test_nodes_are_wired_when_each_has_its_range() -> None:
    first = node("a", "10.244.0.0/24", "172.18.0.2")
    assert addresses_of([first, node("b", None, "172.18.0.3")]) is None
    assert addresses_of([first]) == [NodeAddresses("a", "172.18.0.2", "10.244.0.0/24")]


def test_pods_get_addresses_of_their_nodes_range() -> None:
    link = plugin_configuration("10.244.7.0/24")["plugins"][0]
    assert link["ipam"]["ranges"] == [[{"subnet": "10.244.7.0/24"}]]


def test_images_have_the_names_that_kubeadm_uses() -> None:
    listed = ["registry.example/kube-proxy:v1", "registry.example/coredns/coredns:v2", "registry.example/etcd:3"]
    assert image_for("coredns", listed) == "registry.example/coredns/coredns:v2"
    with pytest.raises(ValueError, match="kubeadm names 0 images of kube-apiserver"):
        image_for("kube-apiserver", listed)


@pytest.mark.parametrize("key", ["sandbox_image", "sandbox"])
def test_the_sandbox_is_the_one_that_containerd_starts(key: str) -> None:
    assert sandbox_image(f'[plugins]\n  {key} = "registry.example/pause:9"\n') == "registry.example/pause:9"
    with pytest.raises(ValueError, match="no sandbox image"):
        sandbox_image("[plugins]\n")


def test_nodes_and_containers_are_waited_for_less_long_than_by_default() -> None:
    kubelet, cluster = (yaml.safe_load(patch) for patch in configuration(PULLED, "x", 1)["kubeadmConfigPatches"])
    assert kubelet["crashLoopBackOff"] == {"maxContainerRestartPeriod": "5s"}
    (grace,) = cluster["controllerManager"]["extraArgs"]
    # A lost node is one whose lease was not renewed: each quarter of its duration.
    assert int(grace["value"].removesuffix("s")) > kubelet["nodeLeaseDurationSeconds"]
