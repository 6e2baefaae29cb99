"""Who may connect to a job's syncer: its own learners, each as itself, by certificates and network policies."""

import base64
from typing import Any

import pytest

from diloco.runtime.process.exits import EXIT_REFUSED
from testbed.kind.bed import Bed
from testbed.kind.chart import POLL_SECONDS, Release
from testbed.kind.clusters import Cluster
from testbed.kind.commands import CommandFailedError
from testbed.kind.waiting import wait_until
from tests.cluster.pod_connections import Connection, connections_in
from tests.support.cluster_jobs import ClusterJob, apply, identities, manifest, of, pool, region
from tests.support.network_policies import allows, selects

pytestmark = [pytest.mark.usefixtures("chart"), pytest.mark.timeout(600)]

SYNC, HTTP = 29400, 8080
POOLS = region("here", pool("a"), pool("b"))
LEARNERS = ("here/a/0", "here/b/0")


@pytest.fixture(scope="module")
def job(cluster: Cluster, namespace: str) -> ClusterJob:
    """A job that trains, and another with the same pools that is suspended."""
    apply(cluster, namespace, manifest("other", POOLS, suspend=True))
    running = apply(cluster, namespace, manifest("guarded", POOLS))
    running.all_train(*LEARNERS)
    return running


def inside(job: ClusterJob, pod: str, *command: str) -> str:
    """The output of a command in a pod."""
    return job.cluster.kubectl("exec", pod, "--namespace", job.namespace, "--", *command)


def test_pods_run_under_restricted_without_tokens_or_the_authoritys_key(cluster: Cluster, job: ClusterJob) -> None:
    enforced = cluster.get("namespaces", job.namespace)["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    assert enforced == "restricted"
    rootful = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "root"}}
    with pytest.raises(CommandFailedError, match='violates PodSecurity "restricted:latest"'):
        cluster.apply({**rootful, "spec": {"containers": [{"name": "any", "image": "any"}]}}, namespace=job.namespace)
    pods = cluster.items("pods", job.namespace)
    assert {pod["status"]["phase"] for pod in pods} == {"Running"}
    assert len(pods) == 3
    for pod in pods:
        mounted = {str(volume) for volume in pod["spec"]["volumes"]}
        assert not any("-ca'" in volume or "serviceAccountToken" in volume for volume in mounted), mounted
        # Nor in another way: no environment variable comes from a Secret.
        assert "secret" not in str(pod["spec"]["containers"]).lower()
    held = cluster.get("secrets", "guarded-ca", job.namespace)["data"]
    assert {"ca.crt", "ca.key"} == set(held)
    for pod in pods:
        files = inside(job, pod["metadata"]["name"], "ls", "/etc/diloco/tls").split()
        assert files == ["ca.crt", "tls.crt", "tls.key"]


# An attacker who can start pods in the namespace, and read Secrets of other jobs there.


def template(cluster: Cluster, job: ClusterJob) -> dict[str, Any]:
    """The template of the pods of pool a."""
    found: dict[str, Any] = cluster.get("statefulsets", f"{job.name}--here-a", job.namespace)["spec"]
    made: dict[str, Any] = found["template"]
    return made


def impostor(cluster: Cluster, job: ClusterJob, name: str, learner: str, tls: dict[str, Any] | None) -> None:
    """A pod that only the syncer can distinguish from one of pool a; without ``tls`` it uses plain text."""
    live = template(cluster, job)
    labels = {**live["metadata"]["labels"], "apps.kubernetes.io/pod-index": "0"}
    spec = live["spec"]
    container = spec["containers"][0]
    arguments = [one for one in container["args"] if not one.startswith("--learner=")]
    if tls is None:
        arguments = [one for one in arguments if not one.startswith("--tls-")]
    else:
        spec["volumes"] = [tls if volume["name"] == "tls" else volume for volume in spec["volumes"]]
    container["args"] = [*arguments, f"--learner={learner}"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}}
    cluster.apply({**pod, "spec": {**spec, "restartPolicy": "Never"}}, namespace=job.namespace)


def secret_volume(name: str) -> dict[str, Any]:
    return {"name": "tls", "secret": {"secretName": name, "defaultMode": 0o440}}


def others_certificate() -> dict[str, Any]:
    """Another job's certificate, with this job's authority as trusted, so that only the syncer can object."""
    trusted = {"name": "guarded--here-a-tls", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    shown = {"name": "other--here-a-tls", "items": [{"key": one, "path": one} for one in ("tls.crt", "tls.key")]}
    sources = [{"secret": trusted}, {"secret": shown}]
    return {"name": "tls", "projected": {"sources": sources, "defaultMode": 0o440}}


def refusals(job: ClusterJob, name: str) -> list[str]:
    """The syncer's refusals in the impostor's log."""
    try:
        return [line for line in job.log(name) if "syncer" in line]
    except CommandFailedError:
        return []  # its container has not been started


_UNREACHED = "cannot reach the syncer yet ("
"""What a learner says that is not heard, and on a busy machine one that is heard a moment later."""


def answered(job: ClusterJob, name: str) -> list[str]:
    return [line for line in refusals(job, name) if not line.startswith(_UNREACHED)]


def test_foreign_certificates_and_plain_text_are_refused_and_count_nowhere(cluster: Cluster, job: ClusterJob) -> None:
    before = job.all_train(*LEARNERS)
    impostor(cluster, job, "of-another-job", "here/a/0", others_certificate())
    impostor(cluster, job, "without", "here/a/0", None)
    impostor(cluster, job, "of-another-pool", "here/b/0", secret_volume("guarded--here-a-tls"))
    try:
        claimed = "the certificate is that of pool here/a, the message says here/b/0"
        said = wait_until(lambda: answered(job, "of-another-pool"), "the syncer answers it")
        assert said == [f"the syncer refuses this learner: {claimed}"]
        job.kubectl("wait", "pod/of-another-pool", "--for=jsonpath={.status.phase}=Failed", "--timeout=100s")
        (container,) = cluster.get("pods", "of-another-pool", job.namespace)["status"]["containerStatuses"]
        assert container["state"]["terminated"]["exitCode"] == EXIT_REFUSED
        # The others fail before they can say who they are. They retry, as the fault may be the syncer's.
        for name in ("of-another-job", "without"):
            lines = wait_until(lambda name=name: refusals(job, name), f"{name} is turned away")  # type: ignore[misc]
            assert all(line.startswith(_UNREACHED) for line in lines), lines
        after = job.all_train(*LEARNERS)
        # No learner was superseded.
        incarnations = [[of(one, name).incarnation for name in LEARNERS] for one in (before, after)]
        assert incarnations[0] == incarnations[1]
        assert 'diloco_learners{state="Training"} 2.0' in metrics(job)
    finally:
        pods = ("of-another-job", "without", "of-another-pool")
        job.kubectl("delete", "pod", *pods, "--grace-period=0", "--force")


def metrics(job: ClusterJob) -> str:
    """The syncer's."""
    return job.cluster.api.page(job.namespace, job.syncer().name, "/metrics")[1]


def test_a_deleted_certificate_is_replaced_and_used_without_a_restart(cluster: Cluster, job: ClusterJob) -> None:
    learner, secret = job.pod_name("here/a/0"), "guarded--here-a-tls"
    account = job.all_train(*LEARNERS)
    before, lives, used = certificate(cluster, job, secret), identities(job.pods()), ports(job, learner)
    assert len(used) >= 2
    job.kubectl("delete", "secret", secret)
    new = wait_until(lambda: certificate(cluster, job, secret), "it is made anew")
    assert new != before
    # A change of the pod makes kubelet update its volumes at once, not only within a minute and a half.
    job.kubectl("annotate", "pod", learner, "example.com/touched=yes")
    shown = ("cat", "/etc/diloco/tls/tls.crt")
    wait_until(lambda: inside(job, learner, *shown).encode() == base64.b64decode(new), "the pod has it")
    wait_until(lambda: ports(job, learner) - used, "fragments go over a new connection")
    job.merges("here/a/0", since=job.all_train(*LEARNERS))
    assert identities(job.pods()) == lives
    assert of(job.all_train(*LEARNERS), "here/a/0").incarnation == of(account, "here/a/0").incarnation


def certificate(cluster: Cluster, job: ClusterJob, secret: str) -> str:
    """Base64 of a certificate; empty while its Secret does not exist."""
    for item in cluster.items("secrets", job.namespace):
        if item["metadata"]["name"] == secret:
            return str(item["data"]["tls.crt"])
    return ""


WATCH = """
import sys, time
end, seen = time.monotonic() + float(sys.argv[1]), set()
while True:
    for name in ("tcp", "tcp6"):
        with open("/proc/net/" + name) as table:
            seen.update(" ".join(line.split()[:4]) for line in table)
    if time.monotonic() >= end:
        break
    time.sleep(0.002)
print("\\n".join(seen))
"""
WATCH_SECONDS = 3.0 * POLL_SECONDS
"""Longer than the operator waits between two looks at a syncer."""


def connections(cluster: Cluster, namespace: str, pod: str, seconds: float = 0.0) -> set[Connection]:
    """A pod's connections, looked at for so long."""
    look = ("python3", "-I", "-S", "-c", WATCH, str(seconds))
    return set(connections_in(cluster.kubectl("exec", pod, "--namespace", namespace, "--", *look)))


def ports(job: ClusterJob, pod: str) -> set[int]:
    """A pod's own ends of its connections to the syncer."""
    return {one.port for one in connections(job.cluster, job.namespace, pod) if one.peer_port == SYNC}


# The network.


def test_policies_allow_exactly_the_connections_that_the_jobs_pods_make(
    cluster: Cluster, chart: Release, job: ClusterJob
) -> None:
    policies = {one["metadata"]["name"]: one for one in cluster.items("networkpolicies", job.namespace)}
    pods = {one["metadata"]["name"]: one for one in cluster.items("pods", job.namespace)}
    learners = {job.pod_name(name) for name in LEARNERS}
    assert {name for name, pod in pods.items() if selects(policies["guarded-syncer"], pod)} == {job.syncer().name}
    assert {name for name, pod in pods.items() if selects(policies["guarded-learners"], pod)} == learners
    assert not any(selects(policies[name], pod) for name in ("other-syncer", "other-learners") for pod in pods.values())

    everyone = cluster.items("pods")
    spaces = {one["metadata"]["name"]: one for one in cluster.items("namespaces")}
    may = {
        (pod["metadata"]["name"], port)
        for pod in everyone
        for port in (SYNC, HTTP)
        if allows(policies["guarded-syncer"], pod, spaces[pod["metadata"]["namespace"]], port)
    }
    of_operator = {pod["metadata"]["name"] for pod in everyone if pod["metadata"]["namespace"] == chart.namespace}
    assert of_operator
    assert may == {(name, SYNC) for name in learners} | {(name, HTTP) for name in of_operator}

    # The operator's connections are short, and the syncer closes them first: nothing of them stays at this end. At the
    # other end they may come from a node's address.
    services = {one["spec"]["clusterIP"] for one in cluster.items("services", job.namespace)}
    addresses = services | {pod["status"]["podIP"] for pod in pods.values()}
    asked = {(pod, job.namespace, 0.0) for pod in pods} | {(pod, chart.namespace, WATCH_SECONDS) for pod in of_operator}
    made: set[tuple[str, int]] = set()

    def seen() -> bool:
        made.update(
            (pod, one.peer_port)
            for pod, space, seconds in asked
            for one in connections(cluster, space, pod, seconds)
            if one.peer_port in (SYNC, HTTP) and one.peer in addresses
        )
        return made >= may

    wait_until(seen, f"all that may connect do: {sorted(may)}")
    assert made == may


CONNECT = """
import socket
for host, port in (("kubernetes.default.svc", 443), ("guarded-syncer", 29400), ("guarded-syncer", 8080)):
    try:
        socket.create_connection((host, port), 10).close()
    except OSError:
        continue
    print(port)
"""


def test_where_the_network_enforces_policies_a_foreign_pod_cannot_connect(
    bed: Bed, cluster: Cluster, job: ClusterJob
) -> None:
    if not bed.node_image.brings_network:
        pytest.skip("a node image that was built here enforces no NetworkPolicy; kind's own does")
    assert reached_by(cluster, job, "foreign", labels={"app": "foreign"}) == ["443"]
    assert reached_by(cluster, job, "learner", labels=template(cluster, job)["metadata"]["labels"]) == ["443", "29400"]


def reached_by(cluster: Cluster, job: ClusterJob, name: str, labels: dict[str, str]) -> list[str]:
    """The ports that a pod with these labels can reach."""
    spec = template(cluster, job)["spec"]
    (container,) = spec["containers"]
    kept = {key: container[key] for key in ("name", "image", "securityContext")}
    container = {**kept, "command": ["python3", "-c", CONNECT]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}}
    spec = {**spec, "restartPolicy": "Never", "volumes": [], "containers": [container]}
    cluster.apply({**pod, "spec": spec}, namespace=job.namespace)
    try:
        job.kubectl("wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=100s")
        return job.kubectl("logs", name).split()
    finally:
        job.kubectl("delete", "pod", name, "--grace-period=0", "--force")
