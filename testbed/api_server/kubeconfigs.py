"""Kubeconfigs of one cluster and one user."""

from collections.abc import Mapping
from typing import Any

_NAME = "test"


def kubeconfig(cluster: Mapping[str, str], user: Mapping[str, str], namespace: str = "default") -> dict[str, Any]:
    """Where the cluster is, and who the user is."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _NAME, "cluster": cluster}],
        "users": [{"name": _NAME, "user": user}],
        "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": _NAME, "namespace": namespace}}],
        "current-context": _NAME,
    }
