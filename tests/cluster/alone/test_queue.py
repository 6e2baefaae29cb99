"""Two jobs that train and Kueue's own controllers: quota is taken learner by learner, and given back.

Kueue runs beside the cluster, as a process of this machine and without its webhooks. Run with ``pytest -s`` it shows
both jobs over time, and what became of the time of the learner that stayed.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from diloco.core.account.time_class import COMPUTING, TimeClass
from diloco.spec.status.syncer import SyncerStatus
from diloco_operator.decide.queue.workload import Workload
from testbed.api_server.queues import NODES, forget, kueue, quota
from testbed.kind import chart as charts
from testbed.kind.bed import Bed
from testbed.kind.clusters import Cluster
from testbed.kind.commands import Unavailable
from testbed.kind.project_images import Images
from testbed.kind.waiting import wait_until
from tests.support.cluster_jobs import ClusterJob, apply, bystanders, is_degraded, manifest, of, pool, region
from tests.support.cluster_operator import ClusterOperator

pytestmark = pytest.mark.timeout(1200)  # Kueue is built the first time

STAYS, SECOND, THIRD = ALL = tuple(f"here/cpu/{index}" for index in range(3))
"""The learners of the first job; the first of them is in the Workload with the syncer."""
QUOTA = "250m"
"""For five pods: four of the first job, and room for one more."""


@dataclass(frozen=True)
class Seen:
    """A job at one moment."""

    admitted: int = 0
    """Learners that have quota."""
    training: int = 0
    merged_tokens: float = 0.0


@dataclass
class Timeline:
    """Jobs of one namespace over time."""

    cluster: Cluster
    namespace: str
    names: tuple[str, ...]
    begun: float = field(default_factory=time.monotonic)
    rows: list[tuple[float, dict[str, Seen]]] = field(default_factory=list)
    """Seconds, and the jobs; one row for each change of their learners."""

    def look(self) -> dict[str, Seen]:
        found = self.cluster.items("workloads", self.namespace)
        workloads = [(one["metadata"]["labels"]["diloco.dev/job"], Workload(one)) for one in found]
        now = {name: self._seen(name, [one for job, one in workloads if job == name]) for name in self.names}
        if not self.rows or _learners(self.rows[-1][1]) != _learners(now):
            self.rows.append((time.monotonic() - self.begun, now))
        return now

    def _seen(self, name: str, workloads: list[Workload]) -> Seen:
        pods = [one.pods for one in workloads if one.admitted]
        learners = sum(count for each in pods for pod_set, count in each.items() if pod_set != "syncer")
        account = ClusterJob(self.cluster, self.namespace, name).account_now()
        if account is None:
            return Seen(learners)
        return Seen(learners, sum(one.state == "Training" for one in account.learners), account.merged_tokens)

    def until(self, words: str, **training: int) -> None:
        """Wait until so many learners of each job train, and have quota."""

        def holds() -> bool:
            now = self.look()
            return all((now[name].admitted, now[name].training) == (count, count) for name, count in training.items())

        wait_until(holds, words)

    def __str__(self) -> str:
        titles = "".join(f"{name + ': quota, training, merged':>36}" for name in self.names)
        lines = [f"seconds{titles}"]
        for seconds, jobs in self.rows:
            cells = (f"{one.admitted} {one.training} {one.merged_tokens:,.0f}" for one in jobs.values())
            lines.append(f"{seconds:7.0f}" + "".join(f"{cell:>36}" for cell in cells))
        return "\n".join(lines)


def _learners(jobs: dict[str, Seen]) -> dict[str, tuple[int, int]]:
    return {name: (one.admitted, one.training) for name, one in jobs.items()}


@pytest.fixture
def queue(bed: Bed, images: Images, operator: ClusterOperator, namespace: str, tmp_path: Path) -> Iterator[str]:
    """A LocalQueue, in a cluster with Kueue, whose operator asks it; its quota is for pods on the first worker."""
    cluster = bed.cluster
    labels = NODES.items()
    try:
        with kueue(cluster, tmp_path / "kueue.log"):
            try:
                cluster.kubectl("label", "node", cluster.workers[0], *(f"{key}={value}" for key, value in labels))
                cluster.apply(*quota(namespace, QUOTA, low=1, high=10))
                cluster.kubectl("wait", "clusterqueue", namespace, "--for=condition=Active", "--timeout=100s")
                charts.install(bed, images, operator.release, {"kueue": {"enabled": True}})
                yield namespace
            finally:
                # While Kueue is there to let go of them.
                cluster.kubectl("delete", "dilocojobs", "--all", "--namespace", namespace)
                wait_until(lambda: not cluster.items("workloads", namespace), "no Workload is left")
                cluster.kubectl("label", "node", cluster.workers[0], *(f"{key}-" for key, _ in labels))
                forget(cluster)
    except Unavailable as error:
        pytest.skip(f"no Kueue here: {error}")


def queued(cluster: Cluster, queue: str, name: str, learners: int) -> ClusterJob:
    """A job whose priority has its own name."""
    wanted = manifest(name, region("here", pool("cpu", learners)), queue={"name": queue, "priorityClass": name})
    return apply(cluster, queue, wanted)


def conditions(workload: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {one["type"]: one for one in workload["status"]["conditions"]}


def used(before: SyncerStatus, after: SyncerStatus, learner: str) -> dict[str, float]:
    """How a learner's time between two reports was used, in seconds by class."""
    earlier, later = (of(account, learner).time_seconds for account in (before, after))
    return {name: seconds - earlier.get(name, 0.0) for name, seconds in later.items()}


def told(timeline: Timeline, seconds: dict[str, float]) -> str:
    """What the test has seen, for a reader."""
    computed = sum(seconds.get(name, 0.0) for name in COMPUTING)
    parts = ", ".join(f"{name} {value:.1f}" for name, value in sorted(seconds.items()) if abs(value) > 0.05)
    spent = f"{STAYS} of low, from before the preemptions to after the return of both, in seconds: {parts}"
    return f"\n{timeline}\n{spent}\nShare of that time in which it computed: {computed / sum(seconds.values()):.3f}"


def test_a_higher_priority_takes_learner_by_learner_while_the_rest_trains(cluster: Cluster, queue: str) -> None:
    timeline = Timeline(cluster, queue, ("low", "high"))
    low = queued(cluster, queue, "low", 3)
    timeline.until("all learners of the first job train", low=3)
    assert {one.node for one in low.pods()} == {cluster.workers[0]}, "they run where the flavor says"
    before, stay = low.merges(*ALL), bystanders(low, STAYS)

    high = queued(cluster, queue, "high", 2)
    timeline.until("the second job has taken two learners", low=1, high=2)
    taken = low.account()
    found = {one["metadata"]["name"]: one for one in cluster.items("workloads", queue)}
    evicted = [conditions(found[f"low--here-cpu-{index}"])["Evicted"]["message"] for index in (1, 2)]
    takers = [found[name]["metadata"]["uid"] for name in ("high-syncer", "high--here-cpu-1")]
    assert sorted(sum(uid in text for text in evicted) for uid in takers) == [1, 1], "each Workload took one learner"
    low.merges(STAYS, since=taken)
    high.merges("here/cpu/0", "here/cpu/1")
    assert not is_degraded(low.status()), "to wait for quota is normal"

    high.delete()
    timeline.until("both learners are back", low=3)
    after = low.merges(*ALL, since=taken)
    assert bystanders(low, STAYS) == stay
    assert after.epoch == before.epoch
    seconds = used(before, after, STAYS)
    assert not {TimeClass.LOST, TimeClass.AWAY} & {name for name, one in seconds.items() if one > 0.5}
    assert all(of(after, learner).steps > of(before, learner).steps for learner in (SECOND, THIRD))
    print(told(timeline, seconds))
