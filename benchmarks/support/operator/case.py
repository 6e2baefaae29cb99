"""An operator that reconciles one namespace of an API server, as a process of its own, and what it did so far."""

import contextlib
import functools
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from diloco.runtime.http import HttpServer, Response, Route
from support.operator.world import BUDGET_TOKENS, Shape, World, wait
from testbed.api_server.server import ApiServer
from testbed.operator_process import WRITES, OperatorProcess
from testbed.operator_with_page import PAGE, PROGRAM_WITH_PAGE
from testbed.virtual_cluster.world_syncer import WorldSyncer

ROUNDS = 10
"""Reconciles of each job in the steady state that are counted."""
POLL_SECONDS = 5.0
"""The operator's own default between two looks at a job's syncer."""


def counters(operator: OperatorProcess) -> dict[str, float]:
    """What an operator has done so far."""
    times = psutil.Process(operator.pid).cpu_times()
    return {
        "reconciles": operator.reconciles,
        "reconcile_seconds": operator.metric("reconcile_seconds_sum"),
        "reads": operator.requests("home", "get", "list", without="leases"),
        "writes": operator.writes,
        # But for watches and the question whether they are there.
        "requests_elsewhere": operator.requests("other", "get", without='resource="version"')
        + operator.requests("other", "list", *WRITES, without="selfsubjectaccessreviews"),
        "cpu_seconds": times.user + times.system,
    }


@dataclass(frozen=True, slots=True)
class Case:
    """An operator, its namespace, and those of other clusters that its jobs have objects in."""

    world: World
    operator: OperatorProcess
    shape: Shape
    page: HttpServer
    """It answers for every syncer."""
    others: Sequence[World] = ()
    _routes: dict[str, Route] = field(default_factory=dict)

    @property
    def memory_mebibytes(self) -> float:
        return float(psutil.Process(self.operator.pid).memory_info().rss / 2**20)

    def apply(self, *jobs: dict[str, Any]) -> None:
        """Create jobs whose learners train, as their syncers say, with constant figures."""
        syncer = WorldSyncer("", BUDGET_TOKENS)
        syncer.started()
        syncer.trains(1.0, self.shape.learner_ids)
        for name in (job["metadata"]["name"] for job in jobs):
            self._routes[f"/{name}/status"] = functools.partial(Response.json, {**syncer.status(), "job": name})
        self.page.serve(self._routes)
        self.world.create(jobs)

    def create(self, names: list[str]) -> float:
        """Seconds from the first apply until the server has every child and the first status of these jobs."""
        wanted = self.world.planned() + len(names)
        started = time.monotonic()
        self.apply(*(self.shape.manifest(name) for name in names))
        wait(f"{wanted} jobs", lambda: self.world.planned() >= wanted, poll_seconds=0.05)
        return time.monotonic() - started

    def rounds(self, jobs: int, rounds: int) -> None:
        """Wait until it has reconciled the jobs this many times more."""
        wanted = self.operator.reconciles + rounds * jobs
        wait(f"{rounds} rounds", lambda: self.operator.reconciles >= wanted)

    def steady(self, jobs: int) -> dict[str, Any]:
        """Figures of reconciles once every job trains and the operator has nothing more to write."""
        wait("every job trains", lambda: self._all_train(jobs), poll_seconds=2.0)
        written = -1.0
        while written != self._written():
            written = self._written()
            self.rounds(jobs, 2)
        before, started = counters(self.operator), time.monotonic()
        self.rounds(jobs, ROUNDS)
        seconds, after = time.monotonic() - started, counters(self.operator)
        done = {name: after[name] - value for name, value in before.items()}
        return {
            "jobs": jobs,
            "learners_per_job": self.shape.all_learners,
            "window_seconds": seconds,
            **{name: int(done[name]) for name in ("reconciles", "reads", "writes", "requests_elsewhere")},
            "milliseconds_per_reconcile": 1000 * done["reconcile_seconds"] / done["reconciles"],
            "cpu_cores": done["cpu_seconds"] / seconds,
            "memory_mebibytes": self.memory_mebibytes,
        }

    def _all_train(self, jobs: int) -> bool:
        if self.operator.exit_code is not None:
            raise SystemExit(f"the operator has ended: {self.operator.log[-500:]}")
        for world in (self.world, *self.others):
            world.say_all_is_well()
        return self.operator.metric("jobs", 'phase="Training"') == jobs

    def _written(self) -> float:
        now = counters(self.operator)
        return now["writes"] + now["requests_elsewhere"]


@contextlib.contextmanager
def case(server: ApiServer, namespace: str, shape: Shape, others: Sequence[World] = ()) -> Iterator[Case]:
    """A fresh operator with an empty namespace."""
    world = World(server, namespace)
    world.make_namespace()
    flags = (f"--operator-namespace={namespace}", f"--namespaces={namespace}", f"--poll-seconds={POLL_SECONDS:g}")
    with tempfile.TemporaryDirectory() as folder, HttpServer("127.0.0.1:0", {}) as page:
        os.environ[PAGE] = f"http://{page.address}"
        log = Path(folder) / "operator.log"
        with OperatorProcess(server.kubeconfig, log, *flags, program=PROGRAM_WITH_PAGE) as operator:
            wait("the operator works", lambda: operator.works)
            yield Case(world, operator, shape, page, others)
