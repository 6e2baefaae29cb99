"""Jobs over 20 other clusters, of which one accepts and never answers and one refuses, against the 18 others alone.

The other clusters are namespaces of one more API server, each with a kubeconfig of its own; the two that are away are
ports of this machine.
"""

import base64
import contextlib
import json
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from diloco_operator.api_server.kinds import SECRET, STATEFUL_SET
from diloco_operator.cluster_state import CLUSTER_LABEL
from support.operator.case import Case, case, counters
from support.operator.world import Shape, World, wait
from support.report import Ratio, Ratios, paired
from testbed.api_server.kubeconfigs import kubeconfig
from testbed.api_server.server import ApiServer

CLUSTERS = 20
AWAY = 2
TRIALS = 2
"""Fresh operators, with the clusters that are away and without; the median counts."""
MORE_JOBS = 12
"""Of each operator, after its first."""


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

    def secrets(self, clusters: int) -> list[dict[str, Any]]:
        """Kubeconfigs of the first so many clusters."""
        folder = self.server.directory
        user = {
            "client-certificate-data": _base64((folder / "admin.crt").read_bytes()),
            "client-key-data": _base64((folder / "admin.key").read_bytes()),
        }
        authority = _base64(self.server.authority.read_bytes())
        urls = [(self.server.url, world.namespace) for world in self.worlds]
        urls += [(f"https://127.0.0.1:{port}", "away") for port in self.ports]
        configs = [
            kubeconfig({"server": url, "certificate-authority-data": authority}, user, namespace)
            for url, namespace in urls[:clusters]
        ]
        return [
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": f"far-{index:02}", "labels": {CLUSTER_LABEL: ""}},
                "data": {"kubeconfig": _base64(json.dumps(config).encode())},  # JSON is YAML
            }
            for index, config in enumerate(configs)
        ]

    def sets_of(self, job: str) -> int:
        """StatefulSets of a job in all clusters. They are the last objects that a region gets."""
        path = f"{STATEFUL_SET.path(None)}?labelSelector=diloco.dev/job%3D{job}"
        return len(World(self.server, "").ask("GET", path)["items"])


def over_clusters(home: ApiServer, server: ApiServer) -> tuple[Ratios, dict[str, Any]]:
    """Ratios and figures."""
    found: dict[int, list[dict[str, Any]]] = {count: [] for count in (CLUSTERS - AWAY, CLUSTERS)}
    firsts: list[float] = []
    """Of operators' first jobs, the time with the clusters that are away over that without."""
    furthers: list[float] = []
    with _elsewhere(server) as others:
        for trial in range(TRIALS):
            # Both at the same time, so that what else the machine does concerns both.
            with contextlib.ExitStack() as stack:
                cases = {count: stack.enter_context(_case(home, others, trial, count)) for count in found}
                seconds: dict[int, list[float]] = {count: [] for count in cases}
                for number in range(1 + MORE_JOBS):
                    for count in sorted(cases, reverse=number % 2 == 1):  # in turns
                        seconds[count].append(_create(cases[count], others, number))
                first, *more = paired(seconds[CLUSTERS], seconds[CLUSTERS - AWAY])
                firsts.append(first)
                furthers += more
                for count, one in cases.items():
                    created = counters(one.operator)["cpu_seconds"]
                    jobs = {
                        "first_job_seconds": seconds[count][0],
                        "job_seconds": statistics.median(seconds[count][1:]),
                    }
                    found[count].append({**jobs, "cpu_seconds": created, **one.steady(1 + MORE_JOBS)})
    rows = [{"clusters": count} | _medians(trials) for count, trials in found.items()]
    without, with_them = rows
    until = (
        f"time from the job to the last object in the {CLUSTERS - AWAY} clusters that answer, beside an operator"
        " without the two others"
    )
    cpu = (
        "processor time of that operator until all jobs have their objects; here"
        f" with {100 * AWAY / (CLUSTERS - AWAY):.0f} % more regions"
    )
    steady = (
        f"reconciles of {1 + MORE_JOBS} jobs in the steady state; watches, and the question whether a cluster is there,"
        " not counted"
    )
    reconciles = with_them["reconciles"]
    ratios = {
        "first_job_over_clusters_with_two_away": Ratio(
            statistics.median(firsts), f"{until}; the first job, which has to connect to all"
        ),
        "jobs_over_clusters_with_two_away": Ratio(statistics.median(furthers), f"{until}; further jobs"),
        "cpu_over_clusters_with_two_away": Ratio(with_them["cpu_seconds"] / without["cpu_seconds"], cpu),
        "requests_elsewhere_per_reconcile": Ratio(with_them["requests_elsewhere"] / reconciles, steady),
        "writes_per_reconcile_over_clusters": Ratio(with_them["writes"] / reconciles, "the same; writes at home"),
    }
    return ratios, {"over_clusters": rows}


@contextmanager
def _elsewhere(server: ApiServer) -> Iterator[Elsewhere]:
    # The kernel accepts connections to the one, and nobody answers them; nobody listens at the other.
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as silent, socket.socket() as refuses:
        refuses.bind(("127.0.0.1", 0))
        others = Elsewhere(server, (silent.getsockname()[1], refuses.getsockname()[1]))
        for world in others.worlds:
            world.make_namespace()
        yield others


@contextmanager
def _case(home: ApiServer, others: Elsewhere, trial: int, clusters: int) -> Iterator[Case]:
    """An operator whose jobs have a region at home and one in each cluster, each with a learner."""
    shape = Shape(regions=1 + clusters, pools=1, learners=1)
    with case(home, f"over-{clusters}-{trial}", shape, others.worlds) as made:
        for secret in others.secrets(clusters):
            made.world.ask("POST", SECRET.path(made.world.namespace), secret)
        yield made


def _create(made: Case, others: Elsewhere, number: int) -> float:
    """Create a job; returns the seconds until its last object is in the clusters that answer."""
    name = f"{made.world.namespace}-{number}"
    body = made.shape.manifest(name)
    for index, region in enumerate(body["spec"]["regions"][1:]):
        region["cluster"] = {"kubeconfigSecretRef": {"name": f"far-{index:02}"}}
    body["spec"]["syncer"] = {"expose": {"type": "NodePort", "host": "192.0.2.1"}}
    started = time.monotonic()
    made.apply(body)
    wait(f"{name} is everywhere", lambda: others.sets_of(name) == CLUSTERS - AWAY, poll_seconds=0.05)
    return time.monotonic() - started


def _medians(trials: list[dict[str, Any]]) -> dict[str, Any]:
    spread = ", ".join(f"{trial['job_seconds']:.2f}" for trial in trials)
    medians = {key: statistics.median(trial[key] for trial in trials) for key in trials[0]}
    return medians | {"job_seconds_of_each_operator": spread}


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
