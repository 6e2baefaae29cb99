"""Which versions the clusters are made of, and which of the user's own tools go with them."""

import re
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).with_name("programs")
"""The Go module whose requirements say the versions."""

Version = tuple[int, int, int]


def required(module: str) -> str:
    """The version of a module that the programs are built from."""
    found = re.search(
        rf"^\s*{re.escape(module)} v(\S+)", (PROGRAMS / "go.mod").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert found is not None, f"{PROGRAMS / 'go.mod'} does not require {module}"
    return found[1]


KUBERNETES = required("k8s.io/kubernetes")
HELM = required("helm.sh/helm/v3")


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
