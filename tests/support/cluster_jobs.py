"""Small jobs on a real cluster: their manifests, actions on them, and observations of them.

Every wait is for a state, with a long limit, because the machine may be busy.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from diloco.spec.status.engine import LearnerStatus
from diloco.spec.status.job import Condition, JobStatus
from diloco.spec.status.syncer import SyncerStatus
from diloco_operator import labels, names
from diloco_operator.names import PoolKey
from testbed.kind import chart
from testbed.kind.clusters import Cluster
from testbed.kind.waiting import WAIT_SECONDS, wait_for, wait_until

KINDS = (
    "statefulsets,deployments,replicasets,controllerrevisions,pods,services,endpointslices,configmaps,secrets,"
    "persistentvolumeclaims,poddisruptionbudgets,networkpolicies"
)
"""The kinds of all objects that a job can have, whatever creates them."""
ENDLESS = 10**12
"""Tokens that no test reaches."""
TOKENS_PER_STEP = 128
"""Of each learner."""
CHECKPOINT_STEPS = 3
"""Between two checkpoints of a learner's own."""
BUSY_REASONS = ("ScheduleMisfit",)
"""Of Degraded, where other work on this machine slows learners and links down."""
_LITTLE = {"requests": {"cpu": "50m", "memory": "64Mi"}}


def pool(name: str, learners: int = 1, *, speed: float = 0.025, **fields: Any) -> dict[str, Any]:
    """A pool whose learners take a core to start, which tests wait for, and a fortieth of one once they train.

    They train for as long as a test waits, beside other tests, whose pods need the machine to start.
    """
    environment = [{"name": "OMP_NUM_THREADS", "value": "1"}, {"name": "DILOCO_SPEED", "value": str(speed)}]
    resources = {**_LITTLE, "limits": {"cpu": "1"}}
    return {"name": name, "learners": learners, "resources": resources, "env": environment, **fields}


def region(name: str, *pools: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "pools": list(pools)}


def manifest(
    name: str, *regions: dict[str, Any], tokens: int = ENDLESS, interval: int = 2, **spec: Any
) -> dict[str, Any]:
    """A job that trains a tiny model on the text that the trainer image has: its Python's standard library.

    Without ``regions`` it has one learner, ``here/cpu/0``. The interval suits learners of the usual speed: it is three
    seconds of theirs.
    """
    whole: dict[str, Any] = {
        "model": {"builtin": {"preset": "pico"}},
        "data": {"text": {}},
        "training": {"tokens": tokens, "sequenceLength": 32, "batchSize": 4, "checkpointEverySteps": CHECKPOINT_STEPS},
        "sync": {
            "fragments": 2,
            "interval": interval,
            "outerOptimizer": {"learningRate": 1.0, "momentum": 0.0},
            # Merging begins then, whatever share of the learners has come.
            "startupSeconds": 60,
            # No learner pauses while the syncer is away, however long that takes.
            "maxStalenessSteps": 1_000_000,
        },
        "syncer": {"checkpointEverySeconds": 2, "storage": {"size": "256Mi"}, "resources": _LITTLE},
        "regions": list(regions) or [region("here", pool("cpu"))],
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
        """In its namespace, which is said first: what follows ``--`` is another program's."""
        return self.cluster.kubectl("--namespace", self.namespace, *arguments, timeout_seconds=WAIT_SECONDS + 30)

    # What is wanted of it.

    def patch(self, **spec: Any) -> None:
        """Change its spec, as ``kubectl patch --type merge`` does."""
        self.kubectl("patch", "dilocojob", self.name, "--type=merge", "--patch", json.dumps({"spec": spec}))

    def set_pool(self, region: int, pool: int, **fields: Any) -> None:
        """Set fields of a pool, by positions; a double underscore leads into a field."""
        # A merge would replace the list of regions.
        place = f"/spec/regions/{region}/pools/{pool}/"
        changes = [
            {"op": "add", "path": place + name.replace("__", "/"), "value": value} for name, value in fields.items()
        ]
        self.kubectl("patch", "dilocojob", self.name, "--type=json", "--patch", json.dumps(changes))

    def kill_pods(self, *learners: str) -> None:
        """Delete learners' pods without a grace period, if they are there."""
        pods = map(self.pod_name, learners)
        self.kubectl("delete", "pods", *pods, "--grace-period=0", "--force", "--ignore-not-found")

    def delete(self) -> None:
        """Delete it, and wait until nothing of it is left."""
        self.kubectl("delete", "dilocojob", self.name)
        wait_until(lambda: not self.objects(), f"nothing is left of {self.name}")

    # What Kubernetes says.

    def status(self) -> JobStatus:
        """What the operator reports."""
        found = self.cluster.get("dilocojobs", self.name, self.namespace)
        return JobStatus.model_validate(found.get("status") or {})

    def events(self) -> dict[str, str]:
        """The messages of its events, by their reason."""
        selector = f"involvedObject.kind=DiLoCoJob,involvedObject.name={self.name}"
        found: dict[str, str] = {}
        for one in self.cluster.items("events", self.namespace, fields=selector):
            found[one["reason"]] = f"{found.get(one['reason'], '')}{one['message']}\n"
        return found

    def row(self, *flags: str) -> dict[str, str]:
        """``kubectl get dilocojob``: columns by their titles."""
        titles, values = self.kubectl("get", "dilocojob", self.name, *flags).splitlines()
        starts = [title.start() for title in re.finditer(r"\S+", titles)]
        cells = [values[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]
        return dict(zip(titles.split(), cells, strict=True))

    def items(self, kinds: str = KINDS) -> list[dict[str, Any]]:
        """Its objects of these kinds."""
        return self.cluster.items(kinds, self.namespace, f"{labels.JOB}={self.name}")

    def objects(self) -> list[str]:
        """``kind/name`` of everything that is there of it."""
        return sorted(f"{one['kind'].lower()}/{one['metadata']['name']}" for one in self.items())

    def exists(self) -> bool:
        """Whether the job itself is there."""
        return bool(self.cluster.items("dilocojobs", self.namespace, fields=f"metadata.name={self.name}"))

    def pods(self) -> list[PodSeen]:
        """All of its pods, including those that are being deleted."""
        return [pod_seen(item) for item in self.items("pods")]

    def find_pod(self, learner: str) -> PodSeen | None:
        """A learner's pod, if there is one."""
        return next((one for one in self.pods() if one.name == self.pod_name(learner)), None)

    def pod(self, learner: str) -> PodSeen:
        """A learner's pod, which is there."""
        return _present(self.find_pod(learner))

    def find_syncer(self) -> PodSeen | None:
        """The newest pod of the syncer that is not being deleted, if there is one."""
        prefix = f"{names.syncer(self.name)}-"
        return next((one for one in self.pods() if one.name.startswith(prefix) and not one.leaving), None)

    def syncer(self) -> PodSeen:
        """The syncer's pod, which is there."""
        return _present(self.find_syncer())

    def pod_name(self, learner: str) -> str:
        """The name of a learner's pod."""
        region, pool_name, index = learner.split("/")
        return f"{names.stateful_set(self.name, PoolKey(region, pool_name))}-{index}"

    # What its processes say.

    def account_now(self) -> SyncerStatus | None:
        """The syncer's ``/status``, if it answers."""
        pod = self.find_syncer()
        text = "" if pod is None else self._ask(pod.name, "/status")
        return SyncerStatus.model_validate_json(text) if text else None

    def account(self) -> SyncerStatus:
        """The syncer's ``/status``, as soon as it answers."""
        return self.wait_for_account(lambda _: True, f"the syncer of {self.name} answers")

    def steps(self, learner: str) -> int:
        """Inner steps of a learner over all its processes, from its metrics; 0 while it does not answer."""
        families = text_string_to_metric_families(self._ask(self.pod_name(learner), "/metrics"))
        samples = {one.name: one.value for family in families for one in family.samples if not one.labels}
        return int(samples.get("diloco_learner_steps", 0))

    def log(self, pod: str, *, previous: bool = False) -> list[str]:
        """Messages that a pod has logged; ``previous``: those of the container before the one that runs."""
        lines = self.kubectl("logs", pod, *(["--previous"] if previous else [])).splitlines()
        return [json.loads(line)["message"] for line in lines if line.startswith("{")]

    def _ask(self, pod: str, path: str) -> str:
        status, text = self.cluster.api.page(self.namespace, pod, path)
        return text if status == HTTPStatus.OK else ""

    # Waiting.

    def tells(self, *reasons: str) -> None:
        """Wait for events of these reasons, which are recorded after the status that they go with."""
        wait_until(lambda: {*reasons} <= self.events().keys(), f"{self.name} tells {', '.join(reasons)}")

    def kubectl_wait(self, what: str) -> None:
        """``kubectl wait --for``."""
        self.kubectl("wait", "dilocojob", self.name, f"--for={what}", f"--timeout={WAIT_SECONDS:.0f}s")

    def wait_for(self, what: Callable[[JobStatus], bool], words: str) -> JobStatus:
        """Wait for a status for which it is true."""
        return wait_for(self.status, what, words)

    def becomes(self, kind: str, reason: str | None = None) -> JobStatus:
        """Wait until a condition is True, with that reason."""
        return self.wait_for(lambda status: holds(status, kind, reason), f"{self.name} is {kind} {reason or ''}")

    def recovers(self) -> JobStatus:
        """Wait until nothing is wrong any more."""
        return self.wait_for(
            lambda status: bool(status.conditions) and not is_degraded(status), f"nothing is wrong with {self.name}"
        )

    def wait_for_account(self, what: Callable[[SyncerStatus], bool], words: str) -> SyncerStatus:
        """Wait for a status of the syncer for which it is true."""
        return wait_for(self.account_now, what, words)

    def wait_for_pod(self, learner: str, what: Callable[[PodSeen], bool], words: str) -> PodSeen:
        """Wait for a pod of a learner for which it is true."""
        return wait_for(lambda: self.find_pod(learner), what, f"the pod of {self.name}'s {learner} {words}")

    def all_train(self, *learners: str) -> SyncerStatus:
        """Wait until these learners train, and no others."""
        return self.wait_for_account(
            lambda account: {one.id for one in account.learners if one.state == "Training"} == set(learners),
            f"{', '.join(learners)} train",
        )

    def misses(self, *learners: str) -> SyncerStatus:
        """Wait until none of these learners trains, by the syncer's word."""
        return self.wait_for_account(
            lambda now: all(of(now, one).state != "Training" for one in learners), f"{', '.join(learners)} are missed"
        )

    def train_on(self, *learners: str, since: SyncerStatus | None = None) -> SyncerStatus:
        """Wait until each of these learners has made more steps than now, by the syncer's word."""
        before = since or self.account()
        return self.wait_for_account(
            lambda now: all(of(now, one).steps > of(before, one).steps for one in learners),
            f"{', '.join(learners)} train on",
        )

    def rejoins(self, learner: str, before: SyncerStatus) -> SyncerStatus:
        """Wait until a learner was admitted anew and trains; it has gone on where it was."""
        old = of(before, learner)
        after = self.wait_for_account(
            lambda now: of(now, learner).incarnation > old.incarnation and of(now, learner).state == "Training",
            f"{learner} is back",
        )
        assert of(after, learner).steps >= old.steps
        return after

    def merges(self, *learners: str, since: SyncerStatus | None = None) -> SyncerStatus:
        """Wait until more work of each of these learners is merged."""
        before = since or self.account()
        return self.wait_for_account(
            lambda now: all(of(now, one).merged_tokens > of(before, one).merged_tokens for one in learners),
            f"the work of {', '.join(learners)} is merged",
        )

    def goes_on(self, learner: str, since: int | None = None) -> int:
        """Wait until a learner's own metrics show more steps than ``since`` (default: than now); returns them."""
        before = self.steps(learner) if since is None else since
        return wait_until(lambda: max(0, self.steps(learner) - before), f"{learner} trains on") + before


def new_namespace(cluster: Cluster, words: str) -> Iterator[str]:
    """For a fixture: a namespace in which Pod Security `restricted` is enforced, deleted afterwards."""
    name = f"{words}-{secrets.token_hex(3)}"
    chart.make_namespace(cluster, name)
    yield name
    # Not waited for, as the next tests have another namespace.
    cluster.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


def apply(cluster: Cluster, namespace: str, job: dict[str, Any]) -> ClusterJob:
    """Apply a manifest."""
    cluster.apply(job, namespace=namespace)
    return ClusterJob(cluster, namespace, job["metadata"]["name"])


def apply_idle(cluster: Cluster, namespace: str, job: dict[str, Any]) -> ClusterJob:
    """Apply a manifest with ``suspend``, and wait until the job has all of its objects but pods."""
    job["spec"]["suspend"] = True
    made = apply(cluster, namespace, job)
    made.becomes("Suspended")
    return made


def of(account: SyncerStatus, learner: str) -> LearnerStatus:
    """One learner of a syncer's status."""
    return next(one for one in account.learners if one.id == learner)


def condition(status: JobStatus, kind: str) -> Condition:
    """One condition of a status."""
    return next(one for one in status.conditions if one.type == kind)


def holds(status: JobStatus, kind: str, reason: str | None = None) -> bool:
    """Whether a condition exists and is True, with that reason."""
    return any(one.type == kind and one.status == "True" and reason in (None, one.reason) for one in status.conditions)


def is_degraded(status: JobStatus) -> bool:
    """Whether the job is Degraded, ignoring links and steps, which a busy machine sometimes makes unfit."""
    return holds(status, "Degraded") and not any(holds(status, "Degraded", reason) for reason in BUSY_REASONS)


def identities(pods: Iterable[PodSeen]) -> dict[str, tuple[str, int]]:
    """(uid, restarts) by pod: equal as long as neither a pod nor its container is restarted."""
    return {one.name: (one.uid, one.restarts) for one in pods}


def bystanders(job: ClusterJob, *learners: str) -> dict[str, tuple[str, int]]:
    """Identities of these learners' pods and of the syncer's."""
    return identities([*map(job.pod, learners), job.syncer()])


def _present(pod: PodSeen | None) -> PodSeen:
    assert pod is not None
    return pod
