"""A job with a region at home and one in another cluster, and the Secret that leads there."""

import base64
from typing import Any

import yaml

from diloco_operator.cluster_state import CLUSTER_LABEL
from tests.support.operator_scene import Cluster, manifest
from tests.support.remote_scene import Far

ELSEWHERE = ["ConfigMap", "NetworkPolicy", "Secret", "Service", "StatefulSet"]
"""The kinds of what it has in the other cluster, one of each."""


def spread(name: str) -> dict[str, Any]:
    """The job; the other cluster's Secret is called ``far``."""
    body = manifest(name, {"near": {"fast": 1}, "away": {"slow": 2}})
    body["spec"]["regions"][1]["cluster"] = {"kubeconfigSecretRef": {"name": "far"}}
    body["spec"]["syncer"] = {"expose": {"type": "NodePort", "host": "192.0.2.1"}}
    return body


def give_kubeconfig(cluster: Cluster, far: Far) -> None:
    """Make or change the Secret with the kubeconfig."""
    data = {"kubeconfig": base64.b64encode(yaml.safe_dump(far.kubeconfig()).encode()).decode()}
    metadata = {"name": "far", "labels": {CLUSTER_LABEL: ""}}
    cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
