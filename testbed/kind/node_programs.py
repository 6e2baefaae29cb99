"""The programs of a Kubernetes node and of its control plane, and the versions of each."""

from dataclasses import replace
from pathlib import Path

from testbed.kind import versions
from testbed.kind.go_modules import Go, Module

KUBERNETES_VERSION = ("k8s.io/component-base/version.gitVersion", "k8s.io/client-go/pkg/version.gitVersion")
KUBERNETES = Module(
    "k8s.io/kubernetes",
    versions.KUBERNETES,
    (
        # The largest comes first: the others share most of what is compiled for it.
        ("kube-apiserver", "cmd/kube-apiserver"),
        ("kube-controller-manager", "cmd/kube-controller-manager"),
        ("kube-scheduler", "cmd/kube-scheduler"),
        ("kube-proxy", "cmd/kube-proxy"),
        ("kubelet", "cmd/kubelet"),
        ("kubeadm", "cmd/kubeadm"),
        ("kubectl", "cmd/kubectl"),
    ),
    version_variables=KUBERNETES_VERSION,
)
ETCD = Module("go.etcd.io/etcd/server/v3", versions.ETCD, (("etcd", ""),))
COREDNS = Module("github.com/coredns/coredns", versions.COREDNS, (("coredns", ""),))
CONTAINERD = Module(
    "github.com/containerd/containerd/v2",
    versions.CONTAINERD,
    (
        ("containerd", "cmd/containerd"),
        ("ctr", "cmd/ctr"),
        ("containerd-shim-runc-v2", "cmd/containerd-shim-runc-v2"),
    ),
)
CNI_PLUGINS = Module(
    "github.com/containernetworking/plugins",
    versions.CNI_PLUGINS,
    (
        ("ptp", "plugins/main/ptp"),
        ("loopback", "plugins/main/loopback"),
        ("portmap", "plugins/meta/portmap"),
        ("host-local", "plugins/ipam/host-local"),
    ),
)
STORAGE = Module(
    "github.com/rancher/local-path-provisioner",
    versions.LOCAL_PATH_PROVISIONER,
    (("local-path-provisioner", ""),),
)
MODULES = (KUBERNETES, ETCD, COREDNS, CONTAINERD, CNI_PLUGINS, STORAGE)

ON_THE_NODE = {
    "containerd": ("containerd", "ctr", "containerd-shim-runc-v2"),
    "cni": ("ptp", "loopback", "portmap", "host-local"),
    "kubernetes": ("kubelet", "kubeadm", "kubectl"),
}
"""Programs by the folder of the Dockerfile's context that they go into."""


def build(go: Go) -> dict[str, Path]:
    """Every program by name; minutes the first time, nothing after.

    Raises:
        Unavailable: One cannot be built.
    """
    return {name: path for module in MODULES for name, path in go.build(module).items()}


def build_api_server(go: Go) -> None:
    """What an API server alone takes, which is enough for tests that need no node.

    Raises:
        Unavailable: It cannot be built.
    """
    wanted = tuple(program for program in KUBERNETES.programs if program[0] in ("kube-apiserver", "kubectl"))
    go.build(replace(KUBERNETES, programs=wanted))
    go.build(ETCD)


def said_versions() -> dict[str, str]:
    """What a node image is made of, for its digest."""
    return {module.path: module.version for module in MODULES} | {"kind": versions.KIND}
