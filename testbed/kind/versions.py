"""Which versions the clusters are made of, and which of the user's own tools go with them. Pure."""

import re
from dataclasses import dataclass

KUBERNETES = "1.36.3"
KIND = "0.33.0"
HELM = "3.22.0"
CONTAINERD = "2.3.4"
COREDNS = "1.14.2"
ETCD = "3.6.10"
CNI_PLUGINS = "1.9.1"
LOCAL_PATH_PROVISIONER = "0.0.30"

Version = tuple[int, int, int]


@dataclass(frozen=True)
class Allowed:
    """From ``first`` on and before ``end``."""

    first: Version
    end: Version

    def __contains__(self, version: Version) -> bool:
        return self.first <= version < self.end


# kind writes kubeadm's configuration: one older than the node image's Kubernetes may write one it refuses.
KIND_ALLOWED = Allowed((0, 33, 0), (1, 0, 0))
HELM_ALLOWED = Allowed((3, 14, 0), (4, 0, 0))
# One minor version to each side of the API server's (https://kubernetes.io/releases/version-skew-policy/).
KUBECTL_ALLOWED = Allowed((1, 35, 0), (1, 38, 0))


def version_in(text: str) -> Version | None:
    """The first version in a program's answer, without what follows its three numbers."""
    found = re.search(r"\bv?(\d+)\.(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None
