"""Makes and deletes kind clusters, and gives kubectl for those that were made here and no others."""

import json
import os
import shutil
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from testbed.kind import docker_network, guard, host_limits, network, tools
from testbed.kind.api import Api
from testbed.kind.cache import Cache, ClusterRecord
from testbed.kind.commands import CommandFailedError, run, step, succeeds
from testbed.kind.node_image import NodeImage
from testbed.kind.tools import Tools

DEFAULT_NAME = os.environ.get("DILOCO_KIND_CLUSTER", "diloco-test")
_READY_SECONDS = 300.0
_RESERVE_BYTES = 2 << 30
_LOST_SECONDS = 60.0
_MADE_WITHIN = timedelta(minutes=2)
"""A container is started for the first time."""
_REGISTRIES = """\
[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "/etc/containerd/certs.d"
"""
_PATCHES = "/kind/patches"
_STATISTICS = """\
[plugins."io.containerd.cri.v1.runtime"]
  stats_collect_period = "10m"
  stats_retention_period = "30m"
"""
_CONTROL_PLANE = "node-role.kubernetes.io/control-plane"


@dataclass(frozen=True)
class Cluster:
    """A cluster that was made here."""

    name: str
    kubeconfig: Path
    kubectl_path: Path

    def kubectl(self, *arguments: str | Path, stdin: str | None = None, timeout_seconds: float = 120) -> str:
        """What kubectl says.

        Raises:
            CommandFailedError: It refuses, or took longer.
        """
        command = (self.kubectl_path, "--kubeconfig", self.kubeconfig, *arguments)
        return run(*command, stdin=stdin, timeout_seconds=timeout_seconds)

    @cached_property
    def api(self) -> Api:
        """For whoever looks often."""
        return Api(self.kubeconfig)

    def get(self, kind: str, name: str, namespace: str = "") -> dict[str, Any]:
        """See `Api.get`."""
        return self.api.get(kind, name, namespace)

    def items(self, kinds: str, namespace: str = "", selector: str = "", fields: str = "") -> list[dict[str, Any]]:
        """See `Api.items`."""
        return self.api.items(kinds, namespace, selector, fields)

    def apply(self, *objects: dict[str, Any], namespace: str | None = None) -> None:
        """Server-side apply."""
        where = () if namespace is None else ("--namespace", namespace)
        made = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "--server-side", *where, "--filename", "-", stdin=json.dumps(made))

    @property
    def nodes(self) -> list[str]:
        """Its nodes, which are containers of the same names."""
        return self._nodes()

    @property
    def workers(self) -> list[str]:
        """Its nodes but for the control plane."""
        return self._nodes(f"!{_CONTROL_PLANE}")

    def _nodes(self, selector: str = "") -> list[str]:
        return sorted(node["metadata"]["name"] for node in self.items("nodes", selector=selector))


def numbered(name: str, index: int) -> str:
    """The name of one of several clusters: the first, 0, has the name itself, the next is called NAME-2. Pure."""
    return f"{name}-{index + 1}" if index else name


def create(cache: Cache, found: Tools, image: NodeImage, name: str, *, workers: int = 1, kept: bool = False) -> Cluster:
    """The cluster, made if it is not there. What was begun and not finished is made anew.

    Raises:
        NotOursError: One of this name exists and was not made here.
    """
    guard.check_name(name)
    exists = name in run(found.kind, "get", "clusters").split()
    record = cache.state.clusters.get(name)
    guard.check_record(name, cache.state.clusters, exists)
    if exists and record is not None and record.complete:
        resume(name)
        cluster = _answering(cache, name, image.name)
        if cluster is not None:
            cache.write(cache.state.with_cluster(name, replace(record, kept=record.kept or kept)))
            return cluster
    if record is not None:
        delete(cache, found, name)
    host_limits.raise_for_clusters(cache)
    _check_disk(image, name, 1 + workers)
    record = ClusterRecord(uuid.uuid4().hex, kept=kept)
    cache.write(cache.state.with_cluster(name, record))
    with step(f"creating cluster {name}"):
        cluster = _create(cache, found, image, name, workers)
    cache.write(cache.state.with_cluster(name, replace(record, complete=True)))
    return cluster


def attach(cache: Cache, name: str, node_image: str) -> Cluster:
    """A cluster that is up, after it was seen to be the one that was made here.

    Raises:
        NotOursError: It is not.
        CommandFailedError: It does not answer.
    """
    record = guard.check_ours(cache, name)
    kubeconfig = cache.kubeconfig(name)
    if not kubeconfig.exists():
        raise CommandFailedError(("kind",), -1, f"cluster {name}: its kubeconfig {kubeconfig} is gone")
    guard.check_kubeconfig(yaml.safe_load(kubeconfig.read_text(encoding="utf-8")), name)
    cluster = Cluster(name, kubeconfig, tools.kubectl(cache, node_image))
    nodes = json.loads(cluster.kubectl("get", "nodes", "--output", "json", timeout_seconds=60))
    guard.check_nodes(nodes, name, record)
    return cluster


def pause(name: str) -> None:
    """Stop all processes of a cluster that nobody uses yet: even an idle one keeps a third of a core busy."""
    run("docker", "pause", *_containers(name))


def resume(name: str) -> None:
    """Let a paused cluster go on. It takes some seconds: its leases have run out meanwhile."""
    if paused := _containers(name, "status=paused"):
        run("docker", "unpause", *paused)


def delete(cache: Cache, found: Tools, name: str) -> None:
    """Delete a cluster that was made here, or begun; and the network with the last one.

    Raises:
        NotOursError: It was not made here.
    """
    guard.check_name(name)
    exists = name in run(found.kind, "get", "clusters").split()
    guard.check_record(name, cache.state.clusters, exists)
    if (record := cache.state.clusters.get(name)) is not None:
        # Whoever is killed meanwhile leaves half of one, which is not to be used.
        cache.write(cache.state.with_cluster(name, replace(record, complete=False)))
    with step(f"deleting cluster {name}"):
        volumes = _volumes(name)
        run(found.kind, "delete", "cluster", "--name", name, "--kubeconfig", cache.kubeconfig(name))
        # A busy engine may remove a container and leave its volume of gigabytes behind, unreferenced.
        for volume in volumes:
            if succeeds("docker", "volume", "inspect", volume):
                run("docker", "volume", "rm", volume)
    cache.kubeconfig(name).unlink(missing_ok=True)
    cache.write(cache.state.without_cluster(name))
    docker_network.remove_if_unused()
    host_limits.put_back(cache)


def _check_disk(image: NodeImage, name: str, nodes: int) -> None:
    """Each node copies the images that it is made with; a disk that fills up later says so in many ways.

    Raises:
        CommandFailedError: The engine's disk has too little room.
    """
    size = int(run("docker", "image", "inspect", "--format", "{{.Size}}", image.name))
    folder = Path(run("docker", "info", "--format", "{{.DockerRootDir}}").strip())
    if folder.exists() and (lack := lacks(shutil.disk_usage(folder).free, nodes * size)):
        where = f"cluster {name}: {nodes} nodes need {lack} in {folder}"
        raise CommandFailedError(("kind",), -1, f"{where}; make room, or begin with `docker system prune`")


def lacks(free_bytes: int, needed_bytes: int) -> str:
    """What a disk with so much room lacks, with a reserve for what the cluster then writes; empty: nothing. Pure."""
    wanted = needed_bytes + _RESERVE_BYTES
    return "" if free_bytes >= wanted else f"{wanted / 1e9:.1f} GB, but {free_bytes / 1e9:.1f} GB are free"


def _answering(cache: Cache, name: str, node_image: str) -> Cluster | None:
    """The cluster, or None if it is lost: its nodes were stopped, with the engine. One that is only slow gets time."""
    if _restarted(name):
        return None
    end = time.monotonic() + _LOST_SECONDS
    while True:
        try:
            return attach(cache, name, node_image)
        except CommandFailedError:
            if time.monotonic() > end:
                return None
            time.sleep(1)


def started_again(made: str, started: str) -> bool:
    """Whether a container runs again that was stopped, by the engine's times. Pure.

    A node then may have another address, and its routes to pods are gone.
    """
    return datetime.fromisoformat(started) - datetime.fromisoformat(made) > _MADE_WITHIN


def _restarted(name: str) -> bool:
    times = run("docker", "inspect", "--format", "{{.Created}} {{.State.StartedAt}}", *_containers(name)).splitlines()
    return any(started_again(*each.split()) for each in times)


def _containers(name: str, *filters: str) -> list[str]:
    """Its nodes, whether its API server answers or not."""
    asked = (f"label=io.x-k8s.kind.cluster={name}", *filters)
    return run("docker", "ps", "--all", "--quiet", *(f"--filter={one}" for one in asked)).split()


def _volumes(name: str) -> list[str]:
    """Where its nodes' disks are."""
    nodes = _containers(name)
    mounts = '{{range .Mounts}}{{if eq .Type "volume"}}{{.Name}} {{end}}{{end}}'
    return run("docker", "inspect", "--format", mounts, *nodes).split() if nodes else []


def _create(cache: Cache, found: Tools, image: NodeImage, name: str, workers: int) -> Cluster:
    identity = cache.state.clusters[name].identity
    kubeconfig = cache.kubeconfig(name)
    kubeconfig.unlink(missing_ok=True)
    command = ("create", "cluster", "--name", name, "--kubeconfig", kubeconfig, "--config", "-")
    config = yaml.safe_dump(configuration(image, identity, workers, kubeadm_patches(cache.folder("patches"))))
    # kind knows no other way to be given a network.
    run(found.kind, *command, stdin=config, env={"KIND_EXPERIMENTAL_DOCKER_NETWORK": docker_network.ensure()})
    cluster = Cluster(name, kubeconfig, tools.kubectl(cache, image.name))
    if not image.brings_network:
        network.wire(_addresses(cluster))
    if workers:
        # There is little memory: the control plane's node runs pods too, and a worker can go without theirs.
        cluster.kubectl("taint", "nodes", "--selector", _CONTROL_PLANE, f"{_CONTROL_PLANE}:NoSchedule-")
    wait = ("wait", "--all", f"--timeout={_READY_SECONDS:.0f}s")
    cluster.kubectl(*wait, "--for=condition=Ready", "nodes", timeout_seconds=_READY_SECONDS + 10)
    # Names are resolved and volumes provisioned from now on.
    available = (*wait, "--for=condition=Available", "deployments", "--all-namespaces")
    cluster.kubectl(*available, timeout_seconds=_READY_SECONDS + 10)
    return cluster


def kubeadm_patches(folder: Path) -> Path:
    """What the control plane's pods are asked each second is asked each 20 s: nobody reads the answer."""
    for name in ("kube-apiserver", "kube-scheduler", "etcd"):
        seldom = {"name": name, "readinessProbe": {"periodSeconds": 20}}
        (folder / f"{name}+strategic.yaml").write_text(yaml.safe_dump({"spec": {"containers": [seldom]}}), "utf-8")
    return folder


def configuration(image: NodeImage, identity: str, workers: int, patches: Path) -> dict[str, Any]:
    """What kind is to make (kind.x-k8s.io/v1alpha4); ``patches``: the folder of kubeadm's. Pure."""
    node = {"image": image.name, "labels": {guard.IDENTITY_LABEL: identity}}
    first = {"extraMounts": [{"hostPath": str(patches), "containerPath": _PATCHES, "readOnly": True}]}
    patched = {"kind": "InitConfiguration", "patches": {"directory": _PATCHES}}
    kubelet = {
        "kind": "KubeletConfiguration",
        # Newer kubelets refuse cgroup v1 unless told not to; under v2 it says nothing.
        "failCgroupV1": False,
        # Restarts wait for 10 s and then so long, instead of up to 300 s. Each costs six seconds of a core.
        "crashLoopBackOff": {"maxContainerRestartPeriod": "15s"},
        # An image that was given to a node may also be pulled by another name, and then counts as pulled by nobody here
        # (KEP-2535): a pod that has it by its first name would wait for a registry that does not exist.
        "imagePullCredentialsVerificationPolicy": "NeverVerify",
        # Renewed each quarter of it. A kubelet that starves for less than the grace below loses no pod.
        "nodeLeaseDurationSeconds": 12,
    }
    # One of each runs, and none outlives its cluster: they need neither renew leases all the time nor wait for a disk.
    alone = {"leader-elect": "false"}
    control_plane = {
        "kind": "ClusterConfiguration",
        "controllerManager": _with_arguments({"node-monitor-grace-period": "16s", **alone}),
        "scheduler": _with_arguments(alone),
        "etcd": {"local": _with_arguments({"unsafe-no-fsync": "true"})},
    }
    cluster: dict[str, Any] = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        # Tests push to a registry of their own, which nodes find by files there. And containerd 2.3 asks each container
        # for its use of the CPU once a second, which nobody reads: a third of an idle cluster's work.
        "containerdConfigPatches": [_REGISTRIES, _STATISTICS],
        "kubeadmConfigPatches": [yaml.safe_dump(patch) for patch in (kubelet, control_plane, patched)],
        "nodes": [{"role": "control-plane", **first, **node}, *({"role": "worker", **node} for _ in range(workers))],
    }
    if not image.brings_network:
        cluster["networking"] = {"disableDefaultCNI": True}
    if image.is_restricted:
        # Lets the kubelet start where it cannot set what only CAP_SYS_RESOURCE may.
        cluster["featureGates"] = {"KubeletInUserNamespace": True}
    return cluster


def _with_arguments(arguments: Mapping[str, str]) -> dict[str, Any]:
    return {"extraArgs": [{"name": name, "value": value} for name, value in arguments.items()]}


def _addresses(cluster: Cluster) -> list[network.NodeAddresses]:
    end = time.monotonic() + _READY_SECONDS
    while (found := network.addresses_of(cluster.items("nodes"))) is None:
        if time.monotonic() > end:
            raise CommandFailedError(("kind",), -1, f"cluster {cluster.name}: its nodes get no addresses for pods")
        time.sleep(0.5)
    return found
