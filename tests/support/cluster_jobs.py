"""Small jobs on a real cluster: their manifests, actions on them, and observations of them.

Every wait is for a state, with a long limit, because the machine may be busy.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from diloco.spec.status import Condition, JobStatus
from diloco.spec.syncer_status import LearnerStatus, SyncerStatus
from diloco_operator import labels, names
from diloco_operator.names import PoolKey
from testbed.kind import chart
from testbed.kind.clusters import Cluster
from testbed.kind.commands import run, succeeds
from testbed.kind.waiting import wait_until

T = TypeVar("T")

WAIT_SECONDS = 300.0
"""For anything to happen at all: reached only where something is broken, however busy the machine is."""
KINDS = (
    "statefulsets,deployments,replicasets,controllerrevisions,pods,services,endpointslices,configmaps,secrets,"
    "persistentvolumeclaims,poddisruptionbudgets,networkpolicies"
)
"""The kinds of all objects that a job can have, whatever creates them."""
TOKENS_PER_STEP = 128
"""Of each learner."""
CHECKPOINT_STEPS = 10
"""Between two checkpoints of a learner's own."""
_LITTLE = {"requests": {"cpu": "50m", "memory": "64Mi"}}


def pool(name: str, learners: int = 1, *, speed: float = 0.1, **fields: Any) -> dict[str, Any]:
    """A pool whose learners take a core to start, which tests wait for, and a tenth of one once they train.

    They train for as long as a test waits, beside other tests, whose pods need the machine to start.
    """
    environment = [{"name": "OMP_NUM_THREADS", "value": "1"}, {"name": "DILOCO_SPEED", "value": str(speed)}]
    resources = {**_LITTLE, "limits": {"cpu": "1"}}
    return {"name": name, "learners": learners, "resources": resources, "env": environment, **fields}


def on(node: str) -> dict[str, str]:
    """A selector of this node."""
    return {"kubernetes.io/hostname": node}


def manifest(name: str, *regions: dict[str, Any], tokens: int, **spec: Any) -> dict[str, Any]:
    """A job that trains a tiny model on the text that the trainer image has: its Python's standard library."""
    whole: dict[str, Any] = {
        "model": {"builtin": {"preset": "pico"}},
        "data": {"text": {}},
        "training": {"tokens": tokens, "sequenceLength": 32, "batchSize": 4, "checkpointEverySteps": CHECKPOINT_STEPS},
        "sync": {
            "fragments": 4,
            "interval": 8,
            "outerOptimizer": {"learningRate": 1.0, "momentum": 0.0},
            # No learner pauses while the syncer is away, however long that takes.
            "maxStalenessSteps": 1_000_000,
        },
        "syncer": {"checkpointEverySeconds": 2, "storage": {"size": "256Mi"}, "resources": _LITTLE},
        "regions": list(regions),
    }
    return {
        "apiVersion": "diloco.dev/v1alpha1",
        "kind": "DiLoCoJob",
        "metadata": {"name": name},
        "spec": whole | spec,
    }


@dataclass(frozen=True)
class PodSeen:
    """A pod with one container."""

    name: str
    uid: str
    node: str
    restarts: int
    container: str
    """The runtime's id of its container; empty: there is none yet."""
    ready: bool
    leaving: bool
    """It is to go."""


def pod_seen(item: dict[str, Any]) -> PodSeen:
    """The pod, from the API server's JSON."""
    status = (item["status"].get("containerStatuses") or [{}])[0]
    return PodSeen(
        name=item["metadata"]["name"],
        uid=item["metadata"]["uid"],
        node=item["spec"].get("nodeName", ""),
        restarts=status.get("restartCount", 0),
        container=status.get("containerID", "").rpartition("/")[2],
        ready=status.get("ready", False),
        leaving="deletionTimestamp" in item["metadata"],
    )


@dataclass(frozen=True)
class ClusterJob:
    """A job in a cluster. Learners are named by their ids, ``region/pool/index``."""

    cluster: Cluster
    namespace: str
    name: str

    def kubectl(self, *arguments: str) -> str:
        """In its namespace."""
        return self.cluster.kubectl(*arguments, *self._there)

    # What is wanted of it.

    def patch(self, **spec: Any) -> None:
        """Change its spec, as ``kubectl patch --type merge`` does."""
        self.kubectl("patch", "dilocojob", self.name, "--type=merge", "--patch", json.dumps({"spec": spec}))

    def scale(self, region: int, pool: int, learners: int) -> None:
        """Set the learners of a pool, by positions."""
        self._set_of_pool(region, pool, "learners", learners)

    def set_minimum(self, region: int, pool: int, learners: int) -> None:
        """Set the least learners of an elastic pool, by positions."""
        self._set_of_pool(region, pool, "minimumLearners", learners)

    def set_resources(self, region: int, pool: int, resources: dict[str, Any]) -> None:
        """Set what a pool's containers request and may take, by positions."""
        self._set_of_pool(region, pool, "resources", resources)

    def leave_out(self, region: int, pool: int, *indices: int) -> None:
        """Set which learners of a pool are left out, by positions."""
        self._set_of_pool(region, pool, "excludedIndices", list(indices))

    def set_claims(self, region: int, pool: int, **policy: str) -> None:
        """Change what becomes of the claims of a pool's learners, by positions."""
        for field, value in policy.items():
            self._set_of_pool(region, pool, f"storage/{field}", value)

    def claims(self) -> list[str]:
        """The names of the learners' claims that are not being deleted."""
        selector = f"{labels.JOB}={self.name},{labels.COMPONENT}={labels.LEARNER}"
        items = self.cluster.items("persistentvolumeclaims", self.namespace, selector)
        return sorted(one["metadata"]["name"] for one in items if "deletionTimestamp" not in one["metadata"])

    def _set_of_pool(self, region: int, pool: int, field: str, value: Any) -> None:
        # A merge would replace the list of regions.
        change = {"op": "add", "path": f"/spec/regions/{region}/pools/{pool}/{field}", "value": value}
        self.kubectl("patch", "dilocojob", self.name, "--type=json", "--patch", json.dumps([change]))

    # What Kubernetes says.

    def status(self) -> JobStatus:
        """What the operator reports."""
        found = self.cluster.get("dilocojobs", self.name, self.namespace)
        return JobStatus.model_validate(found.get("status") or {})

    def reasons(self) -> set[str]:
        """Reasons of its events."""
        selector = f"involvedObject.kind=DiLoCoJob,involvedObject.name={self.name}"
        return {item["reason"] for item in self.cluster.items("events", self.namespace, fields=selector)}

    def row(self) -> dict[str, str]:
        """``kubectl get dilocojob``: columns by their titles."""
        titles, values = self.kubectl("get", "dilocojob", self.name).splitlines()
        return dict(zip(titles.split(), values.split(), strict=True))

    def objects(self) -> list[str]:
        """``kind/name`` of everything that is there of it."""
        found = self.cluster.items(KINDS, self.namespace, f"{labels.JOB}={self.name}")
        return sorted(f"{one['kind'].lower()}/{one['metadata']['name']}" for one in found)

    def exists(self) -> bool:
        """Whether the job itself is there."""
        return bool(self.cluster.items("dilocojobs", self.namespace, fields=f"metadata.name={self.name}"))

    def pods(self) -> list[PodSeen]:
        """All of its pods, including those that are being deleted."""
        return [pod_seen(item) for item in self.cluster.items("pods", self.namespace, f"{labels.JOB}={self.name}")]

    def pod(self, learner: str) -> PodSeen | None:
        """A learner's pod, if there is one."""
        return next((one for one in self.pods() if one.name == self.pod_name(learner)), None)

    def syncer_pod(self) -> PodSeen | None:
        """The newest pod of the syncer that is not being deleted."""
        prefix = f"{names.syncer(self.name)}-"
        return next((one for one in self.pods() if one.name.startswith(prefix) and not one.leaving), None)

    def pod_name(self, learner: str) -> str:
        """The name of a learner's pod."""
        region, pool_name, index = learner.split("/")
        return f"{names.stateful_set(self.name, PoolKey(region, pool_name))}-{index}"

    # What its processes say.

    def account(self) -> SyncerStatus | None:
        """The syncer's ``/status``, if it answers."""
        pod = self.syncer_pod()
        text = "" if pod is None else self._ask(pod.name, "/status")
        return SyncerStatus.model_validate_json(text) if text else None

    def metrics(self, learner: str) -> dict[str, float]:
        """A learner's metrics without labels; empty while it does not answer."""
        families = text_string_to_metric_families(self._ask(self.pod_name(learner), "/metrics"))
        return {one.name: one.value for family in families for one in family.samples if not one.labels}

    def steps(self, learner: str) -> int:
        """Inner steps of a learner over all its processes, from its metrics; 0 while it does not answer."""
        return int(self.metrics(learner).get("diloco_learner_steps_total", 0))

    def log(self, pod: str) -> list[str]:
        """Messages that a pod has logged."""
        lines = self.kubectl("logs", pod).splitlines()
        return [json.loads(line)["message"] for line in lines if line.startswith("{")]

    def _ask(self, pod: str, path: str) -> str:
        status, text = self.cluster.api.page(self.namespace, pod, path)
        return text if status == HTTPStatus.OK else ""

    # Waiting.

    def kubectl_wait(self, what: str) -> None:
        """``kubectl wait --for``."""
        wait = ("wait", "dilocojob", self.name, f"--for={what}", f"--timeout={WAIT_SECONDS:.0f}s")
        self.cluster.kubectl(*wait, *self._there, timeout_seconds=WAIT_SECONDS + 30)

    def wait_for(self, what: Callable[[JobStatus], bool], words: str) -> JobStatus:
        """Wait for a status for which it is true."""
        return wait_until(lambda: _if(what, self.status()), words, WAIT_SECONDS) or JobStatus()

    def wait_for_account(self, what: Callable[[SyncerStatus], bool], words: str) -> SyncerStatus:
        """Wait for a status of the syncer for which it is true."""
        found = wait_until(lambda: _if(what, self.account()), words, WAIT_SECONDS)
        assert found is not None
        return found

    def all_train(self, *learners: str) -> SyncerStatus:
        """Wait until these learners train, and no others."""
        return self.wait_for_account(
            lambda account: {one.id for one in account.learners if one.state == "Training"} == set(learners),
            f"{', '.join(learners)} train",
        )

    def goes_on(self, learner: str, since: int) -> int:
        """Wait until a learner's metrics show more steps than ``since``; returns them."""
        return wait_until(lambda: max(0, self.steps(learner) - since), f"{learner} trains on", WAIT_SECONDS) + since

    @property
    def _there(self) -> tuple[str, str]:
        return ("--namespace", self.namespace)


def new_namespace(cluster: Cluster, words: str) -> Iterator[str]:
    """For a fixture: a namespace in which Pod Security `restricted` is enforced, deleted afterwards."""
    name = f"{words}-{secrets.token_hex(3)}"
    chart.make_namespace(cluster, name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


def apply(cluster: Cluster, namespace: str, job: dict[str, Any]) -> ClusterJob:
    """Apply a manifest."""
    cluster.apply(job, namespace=namespace)
    return ClusterJob(cluster, namespace, job["metadata"]["name"])


def shorten_grace(job: ClusterJob, pod: str) -> None:
    """Do not wait for the grace period of a pod that is to go already; its node cannot answer anyway."""
    job.kubectl("delete", "pod", pod, "--grace-period=5", "--wait=false")


@contextmanager
def lost_node(cluster: Cluster, node: str) -> Iterator[None]:
    """Run without a node, which is back and ready afterwards."""
    _pause(node)
    try:
        yield
    finally:
        run("docker", "unpause", node)
        cluster.kubectl("wait", "node", node, "--for=condition=Ready", "--timeout=180s", timeout_seconds=200)


def _pause(node: str) -> None:
    # On a busy machine not every process of the node stops within the engine's time limit; it then undoes the pause.
    wait_until(lambda: succeeds("docker", "pause", node), f"{node} is paused", WAIT_SECONDS)


@contextmanager
def deleted_node(cluster: Cluster, node: str) -> Iterator[None]:
    """A node that is gone: its machine does not answer, and its object is deleted. Afterwards it joins again."""
    labels = cluster.get("nodes", node)["metadata"]["labels"]
    _pause(node)
    try:
        cluster.kubectl("delete", "node", node)
        yield
    finally:
        run("docker", "unpause", node)
        run("docker", "exec", node, "systemctl", "restart", "kubelet")
        wait_until(lambda: node in cluster.workers, f"{node} joins again", WAIT_SECONDS)
        cluster.kubectl("wait", "node", node, "--for=condition=Ready", "--timeout=180s", timeout_seconds=200)
        assert cluster.get("nodes", node)["metadata"]["labels"] == labels


def of(account: SyncerStatus, learner: str) -> LearnerStatus:
    """One learner of a syncer's status."""
    return next(one for one in account.learners if one.id == learner)


def condition(status: JobStatus, kind: str) -> Condition:
    """One condition of a status."""
    return next(one for one in status.conditions if one.type == kind)


BUSY_REASONS = ("LinkTooThin", "RoundTooLong")
"""Of Degraded, where other work on this machine slows learners and links down."""


def holds(status: JobStatus, kind: str, reason: str | None = None) -> bool:
    """Whether a condition exists and is True, with that reason."""
    return any(one.type == kind and one.status == "True" and reason in (None, one.reason) for one in status.conditions)


def is_degraded(status: JobStatus) -> bool:
    """Whether the job is Degraded, ignoring links and steps, which a busy machine sometimes makes unfit."""
    return holds(status, "Degraded") and not any(holds(status, "Degraded", reason) for reason in BUSY_REASONS)


def kill_container(pod: PodSeen) -> None:
    """SIGKILL from the node, because no process in the container can kill the first process of its namespace."""
    run("docker", "exec", pod.node, "ctr", "-n", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", pod.container)


def identities(pods: Iterable[PodSeen]) -> dict[str, tuple[str, int]]:
    """(uid, restarts) by pod: equal as long as neither a pod nor its container is restarted."""
    return {one.name: (one.uid, one.restarts) for one in pods}


def bystanders(job: ClusterJob, *learners: str) -> dict[str, tuple[str, int]]:
    """Identities of these learners' pods and of the syncer's."""
    pods = [job.pod(learner) for learner in learners]
    return identities(pod for pod in [*pods, job.syncer_pod()] if pod is not None)


@contextmanager
def cordoned(cluster: Cluster, *nodes: str) -> Iterator[None]:
    """Meanwhile no pod is scheduled to these nodes."""
    cluster.kubectl("cordon", *nodes)
    try:
        yield
    finally:
        cluster.kubectl("uncordon", *nodes)


def _if(what: Callable[[T], bool], value: T | None) -> T | None:
    return value if value is not None and what(value) else None
