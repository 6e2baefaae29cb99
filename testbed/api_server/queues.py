"""Kueue beside an API server or a cluster: its definitions, its core controllers and scheduler as a process, and quota.

Its webhooks are left out: they only check what others write. Whoever owns a Workload is in the test.

    with kueue(server, tmp_path / "kueue.log"):
        give_quota(server, "team", cpu="500m")
"""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from diloco_operator.api_server.kinds import QUEUE_PRIORITY, RESOURCE_FLAVOR, WORKLOAD, Kind
from testbed.api_server.server import ApiServer
from testbed.kind import go_programs
from testbed.kind.cache import Cache
from testbed.kind.waiting import wait_until

NODES: Final = {"example.com/pool": "spot"}
"""Labels of the flavor's nodes."""
TOLERATION: Final = {"key": "example.com/spot", "operator": "Exists", "effect": "NoSchedule"}
"""What the flavor has pods tolerate."""
_SOURCES: Final = Path(__file__).with_name("kueue")
_PLENTY: Final = "1000Gi"
_CLUSTER_QUEUE: Final = Kind("ClusterQueue", "clusterqueues", WORKLOAD.group, WORKLOAD.version)
_LOCAL_QUEUE: Final = Kind("LocalQueue", "localqueues", WORKLOAD.group, WORKLOAD.version)


class Kubectl(Protocol):
    """An API server of this machine, alone or of a cluster."""

    @property
    def kubeconfig(self) -> Path:
        """Of a user with all permissions."""

    def kubectl(self, *arguments: str) -> object:
        """``kubectl ARGUMENTS``, which must succeed."""


@contextmanager
def kueue(server: Kubectl, log: Path) -> Iterator[None]:
    """Kueue, until the end of the block. Its definitions stay (`forget`).

    Raises:
        Unavailable: it cannot be fetched or built.
    """
    program = go_programs.build_apart(Cache.of_user(), _SOURCES)
    definitions = _definitions()
    # Their descriptions are too long for an annotation of what was applied last.
    server.kubectl("apply", "--server-side", f"--filename={definitions}")
    server.kubectl("wait", "--for=condition=Established", "--timeout=100s", f"--filename={definitions}")
    with log.open("wb") as output:
        environment = {**os.environ, "KUBECONFIG": str(server.kubeconfig)}
        process = subprocess.Popen([str(program)], stdout=output, stderr=output, env=environment)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def forget(server: Kubectl) -> None:
    """Delete Kueue's definitions, and with them all of their objects."""
    server.kubectl("delete", "--ignore-not-found", f"--filename={_definitions()}")


def quota(namespace: str, cpu: str, **priorities: int) -> list[dict[str, Any]]:
    """A LocalQueue of the namespace's name, with so much ``cpu``, and WorkloadPriorityClasses by their names."""
    flavor = {"nodeLabels": NODES, "tolerations": [TOLERATION]}
    objects = [{**_named(RESOURCE_FLAVOR, "spot"), "spec": flavor}]
    objects += [{**_named(QUEUE_PRIORITY, name), "value": value} for name, value in priorities.items()]
    amounts = {"cpu": cpu, "memory": _PLENTY, "ephemeral-storage": _PLENTY}
    quotas = [{"name": name, "nominalQuota": amount} for name, amount in amounts.items()]
    group = {"coveredResources": list(amounts), "flavors": [{"name": "spot", "resources": quotas}]}
    spec = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [group],
    }
    objects.append({**_named(_CLUSTER_QUEUE, namespace), "spec": spec})
    queue = _named(_LOCAL_QUEUE, namespace)
    queue["metadata"]["namespace"] = namespace
    return [*objects, {**queue, "spec": {"clusterQueue": namespace}}]


def give_quota(server: ApiServer, namespace: str, cpu: str, **priorities: int) -> None:
    """Apply `quota`, also in place of an earlier one, and wait until Kueue takes it."""
    text = "\n---\n".join(map(json.dumps, quota(namespace, cpu, **priorities)))
    # Kueue writes to them too.
    server.kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", text=text)
    path = _CLUSTER_QUEUE.path(None, namespace)

    def is_active() -> bool:
        conditions = server.request("GET", path)[1].get("status", {}).get("conditions", [])
        return any((one["type"], one["status"]) == ("Active", "True") for one in conditions)

    wait_until(is_active, f"ClusterQueue {namespace} is active")


def _definitions() -> Path:
    return go_programs.folder_of("sigs.k8s.io/kueue", _SOURCES) / "config/components/crd/bases"


def _named(kind: Kind, name: str) -> dict[str, Any]:
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"name": name}}
