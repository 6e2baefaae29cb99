"""Where learners of another cluster reach the syncer changes while they train: they follow without a restart."""

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from diloco.spec.names.syncer_name import syncer_name
from diloco_operator.manifests import common
from diloco_operator.manifests.common import SYNC_PORT
from testbed.kind import peers
from testbed.kind.clusters import Cluster
from testbed.kind.cuts import Cut, cut_off
from testbed.kind.project_images import Images
from testbed.kind.waiting import wait_until
from tests.cluster.pod_connections import connections_in
from tests.support import relays
from tests.support.across import EAST, WEST, Far, Pair, endpoint, look_again, reachable, region
from tests.support.cluster_jobs import ClusterJob, apply, identities, of

pytestmark = pytest.mark.timeout(600)


def unreachable(far: Far, address: str, port: int) -> AbstractContextManager[None]:
    """Run while learners in the other cluster get no answer from an address."""
    return cut_off(far.nodes.addresses, Cut((address,), their_port=port))


def addresses(home: Cluster) -> tuple[str, str]:
    """Of two nodes of home."""
    first, second, *_ = peers.nodes_of(home).all_addresses
    return first, second


def connects_to(there: ClusterJob, learner: str, address: str, port: int) -> bool:
    """Whether a learner has a connection to an address, by its pod's own kernel's account."""
    table = there.kubectl("exec", there.pod_name(learner), "--", "cat", "/proc/net/tcp", "/proc/net/tcp6")
    return any((one.peer, one.peer_port) == (address, port) for one in connections_in(table))


def follows(job: ClusterJob, far: Far, old: str, new: str, port: int) -> None:
    """Wait until the learner in the other cluster trains by way of ``new``, without a restart; ``old`` is away."""
    there = far.job(job.name)
    pods = identities(there.pods())
    wait_until(lambda: endpoint(job) == f"{new}:{port}", "the status has the new address")
    look_again(there, there.pod_name(WEST))
    with unreachable(far, old, port):
        wait_until(lambda: connects_to(there, WEST, new, port), "it connects to the new address")
        job.wait_for_account(lambda now: of(now, WEST).state == "Training", "it trains")
        job.train_on(WEST)
    assert identities(there.pods()) == pods


def test_another_node_as_the_nodeports_host_is_followed_without_a_restart(pair: Pair) -> None:
    before, _, port = endpoint(pair.job).rpartition(":")
    (after,) = {*addresses(pair.home)} - {before}
    pair.job.patch(syncer={"expose": {"host": after}})
    follows(pair.job, pair.west, before, after, int(port))
    pair.job.all_train(EAST, WEST)


def test_a_load_balancers_address_may_come_late_and_change(cluster: Cluster, namespace: str, west: Far) -> None:
    wanted = reachable(cluster, "balanced", region("west", west.name))
    wanted["spec"]["syncer"]["expose"] = {"type": "LoadBalancer"}
    job, there = apply(cluster, namespace, wanted), west.job("balanced")
    job.wait_for(
        lambda now: "no address yet" in (now.syncer.external_endpoint_missing if now.syncer else ""),
        "it has no address",
    )
    wait_until(lambda: any("waiting for the address" in line for line in log(there)), "its learner waits")
    first, second = addresses(cluster)
    # In the place of a cloud's controller. kube-proxy leads what reaches a node at this address to the syncer.
    give_address(job, first)
    wait_until(lambda: endpoint(job) == f"{first}:{SYNC_PORT}", "the status has the address")
    look_again(there, there.pod_name(WEST))
    job.all_train(WEST)
    give_address(job, second)
    follows(job, west, first, second, SYNC_PORT)
    job.kubectl("delete", "dilocojob", job.name)
    # The job is gone only after what it had elsewhere, but for pods, which end after their set.
    assert all(one.startswith("pod/") for one in there.objects())
    wait_until(lambda: not there.objects(), "its pods end")


def log(there: ClusterJob) -> list[str]:
    """Of the one learner, if it has begun."""
    pod = there.find_pod(WEST)
    return there.log(pod.name) if pod is not None and pod.container else []


def give_address(job: ClusterJob, address: str) -> None:
    status = {"status": {"loadBalancer": {"ingress": [{"ip": address}]}}}
    how = ("--subresource=status", "--type=merge", "--patch", json.dumps(status))
    job.kubectl("patch", "service", f"{job.name}-syncer-exposed", *how)


def test_a_proxy_that_routes_by_the_server_name_is_followed(
    cluster: Cluster, images: Images, namespace: str, west: Far
) -> None:
    wanted = reachable(cluster, "behind", region("west", west.name))
    target = f"behind-syncer.{namespace}.svc:{SYNC_PORT}"
    cluster.apply(*sni_proxy(images.operator, {syncer_name("behind", namespace): target}), namespace=namespace)
    front = cluster.get("services", "front", namespace)["spec"]["ports"][0]["nodePort"]
    host = addresses(cluster)[0]
    wanted["spec"]["syncer"]["expose"] = {"type": "External", "host": host, "port": front}
    job = apply(cluster, namespace, wanted)
    job.all_train(WEST)
    assert endpoint(job) == f"{host}:{front}"
    assert connects_to(west.job(job.name), WEST, host, front)
    exposed = cluster.get("services", "behind-syncer-exposed", namespace)
    assert exposed["spec"]["type"] == "ClusterIP"
    seen = cluster.kubectl("logs", "front", "--namespace", namespace).split()
    assert set(seen) == {syncer_name("behind", namespace)}
    job.train_on(WEST)


def sni_proxy(image: str, routes: dict[str, str]) -> list[dict[str, Any]]:
    """A pod with the proxy of the tests, its program, and a Service that leads to it from outside."""
    program = Path(relays.__file__).read_text(encoding="utf-8")
    start = f"from relays import serve_by_name; serve_by_name({SYNC_PORT}, {routes!r})"
    container = {
        "name": "front",
        "image": image,
        "command": ["python3", "-u", "-c", start],
        "env": [{"name": "PYTHONPATH", "value": "/program"}],
        "securityContext": common.container_security(),
        "volumeMounts": [{"name": "program", "mountPath": "/program", "readOnly": True}],
    }
    spec = {
        "securityContext": common.pod_security(),
        "containers": [container],
        "volumes": [{"name": "program", "configMap": {"name": "front"}}],
    }
    ports = [{"port": SYNC_PORT, "protocol": "TCP"}]
    labels = {"app": "front"}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "front"}, "data": {"relays.py": program}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "front", "labels": labels}, "spec": spec},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "front"},
            "spec": {"type": "NodePort", "selector": labels, "ports": ports},
        },
    ]
