"""Jobs over 20 other clusters, of which one accepts and never answers and one refuses, against the 18 others alone.

`operator_scale.py` runs it. The other clusters are namespaces of one more API server, each with a kubeconfig of its
own; the two that are away are ports of this machine.
"""

import base64
import contextlib
import json
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from diloco_operator.cluster.kinds import JOB, SECRET, STATEFUL_SET
from diloco_operator.clusters.home import CLUSTER
from operator_world import BUDGET_TOKENS, Shape, World, syncers, wait
from testbed.api_server.server import ApiServer
from testbed.operator_process import OperatorProcess

CLUSTERS = 20
AWAY = 2
TRIALS = 2
"""Fresh operators, with the clusters that are away and without; the median counts."""
MORE_JOBS = 12
"""Of each operator, after its first."""
ROUNDS = 10
"""Reconciles of each job in the steady state."""
SET_VERBS = ("list", "create", "update", "patch", "delete")


def shape(clusters: int) -> Shape:
    """A region at home and one in each cluster, each with a learner."""
    return Shape(regions=1 + clusters, pools=1, learners=1)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The other clusters: those that answer first, then those that are away."""

    server: ApiServer
    ports: tuple[int, ...]
    """Of those that are away."""

    @property
    def worlds(self) -> list[World]:
        """Those that answer."""
        return [World(self.server, f"far-{index:02}") for index in range(CLUSTERS - AWAY)]

    def kubeconfigs(self, clusters: int) -> list[dict[str, Any]]:
        """For the first so many clusters."""
        urls = [(self.server.url, world.namespace) for world in self.worlds]
        urls += [(f"https://127.0.0.1:{port}", "away") for port in self.ports]
        return [self._kubeconfig(url, namespace) for url, namespace in urls[:clusters]]

    def sets_of(self, job: str) -> int:
        """StatefulSets of a job in all clusters. They are the last objects that a region gets."""
        status, answer = self.server.request("GET", f"{STATEFUL_SET.path(None)}?labelSelector=diloco.dev/job%3D{job}")
        if status != 200:
            raise SystemExit(f"list of sets: {answer}")
        return len(answer["items"])

    def _kubeconfig(self, url: str, namespace: str) -> dict[str, Any]:
        folder = self.server.directory
        user = {
            "client-certificate-data": _inline(folder / "admin.crt"),
            "client-key-data": _inline(folder / "admin.key"),
        }
        cluster = {"server": url, "certificate-authority-data": _inline(self.server.authority)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "this",
            "clusters": [{"name": "far", "cluster": cluster}],
            "users": [{"name": "me", "user": user}],
            "contexts": [{"name": "this", "context": {"cluster": "far", "user": "me", "namespace": namespace}}],
        }


@contextmanager
def elsewhere(server: ApiServer) -> Iterator[Elsewhere]:
    """The clusters, with their namespaces made, within a ``with``."""
    with _silent() as silent, socket.socket() as refuses:
        refuses.bind(("127.0.0.1", 0))  # nobody else can listen there, and neither do we
        others = Elsewhere(server, (silent, refuses.getsockname()[1]))
        for world in others.worlds:
            world.make_namespace()
        yield others


def over_clusters(home: ApiServer, server: ApiServer) -> tuple[dict[str, float], dict[str, Any], dict[str, str]]:
    """Ratios, figures and what the ratios are against."""
    counts = (CLUSTERS - AWAY, CLUSTERS)
    found: dict[int, list[dict[str, Any]]] = {count: [] for count in counts}
    pairs: list[tuple[float, float]] = []
    """Seconds of jobs that were created one right after the other: with those that are away, and without."""
    firsts: list[int] = []
    with elsewhere(server) as others:
        for trial in range(TRIALS):
            # Both at the same time, so that what else the machine does concerns both.
            with _case(home, others, trial, counts[0]) as some, _case(home, others, trial, counts[1]) as every:
                _create(some, every)
                pairs += zip(every.seconds, some.seconds, strict=True)
                firsts.append(len(pairs) - len(some.seconds))
                for case in (some, every):
                    found[case.clusters].append(case.figures())
    without, with_them = ({key: _median(found[count], key) for key in found[count][0]} for count in counts)
    quotients = [both / some for both, some in pairs]
    ratios = {
        "first_job_over_clusters_with_two_away": statistics.median(quotients[index] for index in firsts),
        "jobs_over_clusters_with_two_away": statistics.median(
            quotient for index, quotient in enumerate(quotients) if index not in firsts
        ),
        "cpu_over_clusters_with_two_away": with_them["cpu_seconds"] / without["cpu_seconds"],
        "requests_elsewhere_per_reconcile": with_them["requests_elsewhere"] / with_them["reconciles"],
        "writes_per_reconcile_over_clusters": with_them["writes_at_home"] / with_them["reconciles"],
    }
    until = f"time from the job to the last object in the {counts[0]} clusters that answer, beside an operator without"
    against = {
        "first_job_over_clusters_with_two_away": f"{until} the two others; the first job, which has to connect to all",
        "jobs_over_clusters_with_two_away": f"{until} the two others; further jobs",
        "cpu_over_clusters_with_two_away": "processor time of that operator until all jobs have their objects; here"
        f" with {100 * AWAY / (CLUSTERS - AWAY):.0f} % more regions",
        "requests_elsewhere_per_reconcile": f"reconciles of {1 + MORE_JOBS} jobs in the steady state; watches, and the"
        " question whether a cluster is there, not counted",
        "writes_per_reconcile_over_clusters": "the same; writes at home",
    }
    return ratios, {"over_clusters": [{"clusters": count, **_all(found[count])} for count in counts]}, against


@dataclass(slots=True)
class _Case:
    """An operator with jobs over some of the clusters."""

    world: World
    others: Elsewhere
    clusters: int
    operator: OperatorProcess
    seconds: list[float] = field(default_factory=list)
    """For each job, in the order in which they were created."""
    cpu_seconds: float = 0.0
    """The operator's, until all were created."""

    def create(self) -> None:
        """Create a job, and take the time until its last object is in the clusters that answer."""
        name = f"{self.world.namespace}-{len(self.seconds)}"
        started = time.monotonic()
        _put(self.world.server, JOB.path(self.world.namespace), _manifest(name, self.clusters))
        wait(f"{name} is everywhere", lambda: self.others.sets_of(name) == CLUSTERS - AWAY, poll_seconds=0.05)
        self.seconds.append(time.monotonic() - started)

    def figures(self) -> dict[str, Any]:
        """Of its jobs, and of a reconcile in the steady state."""
        first, *more = self.seconds
        steady = _steady(self.operator, [self.world, *self.others.worlds], len(self.seconds))
        return {
            "first_job_seconds": first,
            "job_seconds": statistics.median(more),
            "cpu_seconds": self.cpu_seconds,
            **steady,
        }


@contextmanager
def _case(home: ApiServer, others: Elsewhere, trial: int, clusters: int) -> Iterator[_Case]:
    world = World(home, f"over-{clusters}-{trial}")
    world.make_namespace()
    for index, config in enumerate(others.kubeconfigs(clusters)):
        _put(home, SECRET.path(world.namespace), _secret(f"far-{index:02}", config))
    flags = (f"--operator-namespace={world.namespace}", f"--namespaces={world.namespace}")
    program = (str(Path(__file__).with_name("operator_with_page.py")),)
    with tempfile.TemporaryDirectory() as folder, syncers(shape(clusters)):
        log = Path(folder) / "operator.log"
        with OperatorProcess(home.kubeconfig, log, *flags, program=program) as operator:
            wait("the operator works", lambda: operator.works)
            yield _Case(world, others, clusters, operator)


def _create(*cases: _Case) -> None:
    """Create jobs, in turns."""
    for number in range(1 + MORE_JOBS):
        for case in cases if number % 2 == 0 else reversed(cases):
            case.create()
    for case in cases:
        times = psutil.Process(case.operator.pid).cpu_times()
        case.cpu_seconds = times.user + times.system


def _steady(operator: OperatorProcess, worlds: list[World], jobs: int) -> dict[str, Any]:
    def rounds(count: int) -> None:
        wanted = operator.reconciles + count * jobs
        wait(f"{count} rounds", lambda: operator.reconciles >= wanted)

    def stands() -> bool:
        if operator.exit_code is not None:
            raise SystemExit(f"the operator has ended: {operator.log[-500:]}")
        for world in worlds:
            world.say_all_is_well()
        return operator.metric("jobs", 'phase="Training"') == jobs

    wait("every job trains", stands, poll_seconds=2.0)
    written = -1.0
    while written != _elsewhere(operator) + operator.writes:
        written = _elsewhere(operator) + operator.writes
        rounds(2)
    before, counted = (operator.reconciles, operator.metric("reconcile_seconds_sum")), _elsewhere(operator)
    writes, looks = operator.writes, _looks(operator)
    rounds(ROUNDS)
    reconciles = operator.reconciles - before[0]
    return {
        "reconciles": reconciles,
        "requests_elsewhere": _elsewhere(operator) - counted,
        "writes_at_home": operator.writes - writes,
        "looks_at_home": _looks(operator) - looks,
        "milliseconds_per_reconcile": 1000 * (operator.metric("reconcile_seconds_sum") - before[1]) / reconciles,
    }


def _looks(operator: OperatorProcess) -> float:
    """Lists of pods and events at home."""
    return sum(operator.metric("api_requests_total", 'verb="list"', f'resource="{one}"') for one in ("pods", "events"))


def _elsewhere(operator: OperatorProcess) -> float:
    """Requests to other clusters, but for watches and the question whether they are there."""
    count: Callable[..., float] = operator.metric
    name = "other_clusters_requests_total"
    return count(name, 'verb="get"', without='resource="version"') + sum(
        count(name, f'verb="{verb}"', without="selfsubjectaccessreviews") for verb in SET_VERBS
    )


def _manifest(name: str, clusters: int) -> dict[str, Any]:
    body = shape(clusters).manifest(name)
    for index, region in enumerate(body["spec"]["regions"][1:]):
        region["cluster"] = {"kubeconfigSecret": {"name": f"far-{index:02}"}}
    body["spec"]["syncer"] = {"expose": {"type": "NodePort", "host": "192.0.2.1"}}
    body["spec"]["training"]["tokens"] = BUDGET_TOKENS
    return body


def _secret(name: str, config: dict[str, Any]) -> dict[str, Any]:
    content = base64.b64encode(json.dumps(config).encode()).decode()  # JSON is YAML
    metadata = {"name": name, "labels": {CLUSTER: ""}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"kubeconfig": content}}


def _put(server: ApiServer, path: str, body: dict[str, Any]) -> None:
    status, answer = server.request("POST", path, body)
    if status >= 300:
        raise SystemExit(f"POST {path}: {answer}")


def _inline(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _median(trials: list[dict[str, Any]], key: str) -> float:
    return float(statistics.median(trial[key] for trial in trials))


def _all(trials: list[dict[str, Any]]) -> dict[str, Any]:
    medians = {key: _median(trials, key) for key in trials[0]}
    spread = [f"{trial['job_seconds']:.2f}" for trial in trials]
    return {**medians, "job_seconds_of_each_operator": ", ".join(spread)}


@contextmanager
def _silent() -> Iterator[int]:
    """The port of a server that accepts every connection and never answers."""
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as listening:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    held.append(listening.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            for one in held:
                one.close()
