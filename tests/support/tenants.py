"""What one tenant of a cluster can do to the operator of all, by rights that every editor of a namespace has."""

from collections.abc import Iterator
from typing import Any

MANAGED = {"app.kubernetes.io/managed-by": "diloco-operator"}
"""The label by which the operator finds what it has made. Anybody may give it to anything."""
LEASES = "count/leases.coordination.k8s.io"


def config_map(name: str, text: str, owner: dict[str, Any] | None = None) -> dict[str, Any]:
    """A ConfigMap that looks like the operator's; ``owner``: and like that of a job."""
    owners = {} if owner is None else {"ownerReferences": [owner]}
    metadata = {"name": name, "labels": MANAGED, **owners}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": text}}


def too_long(name: str) -> dict[str, Any]:
    """A ConfigMap that is five times as long in an answer of the API server as in its store."""
    return config_map(name, "<" * 900_000)


def many_large(prefix: str, count: int, owner: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """ConfigMaps of a megabyte."""
    return (config_map(f"{prefix}-{number}", "x" * 1_000_000, owner) for number in range(count))


def owner_of(job: dict[str, Any]) -> dict[str, Any]:
    """An owner reference to a job, as its children have."""
    metadata = job["metadata"]
    reference = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": metadata["name"]}
    return {**reference, "uid": metadata["uid"], "controller": True}


def wide(regions: int, pools: int) -> list[dict[str, Any]]:
    """Regions of a job with so many pools each."""
    learners = [{"name": f"p{number}", "learners": 1} for number in range(pools)]
    return [{"name": f"r{number}", "pools": learners} for number in range(regions)]


def no_leases() -> dict[str, Any]:
    """A quota by which no Lease can be made in its namespace."""
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "no-leases"},
        "spec": {"hard": {LEASES: "0"}},
    }
