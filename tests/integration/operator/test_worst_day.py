"""One tenant does everything that its rights allow to the operator of all, whose other tenant notices nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import psutil
import pytest

from diloco_operator.api_server.kinds import CONFIG_MAP, JOB, STATEFUL_SET
from testbed.api_server.fault_proxy import FaultProxy
from testbed.api_server.server import ApiServer, job_api_server
from testbed.kind.waiting import wait_until
from testbed.operator_process import OperatorProcess
from tests.support.operator_scene import Cluster, manifest
from tests.support.tenants import LEASES, many_large, no_leases, owner_of, too_long, wide

pytestmark = pytest.mark.timeout(900)

MOST_MIB = 256
"""By which it may grow: it begins with 86 of the 512 MiB that the chart gives it."""


class Victim(Cluster):
    """A tenant whose job goes on."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__(server, "victim")
        self.uids: dict[str, str] = {}
        """Of the first job's objects."""
        self.first: dict[int, int] = {}
        """Memory of each operator's process when it was first looked at."""

    def goes_on(self, operator: OperatorProcess) -> None:
        """Check that the same process looks after a new job of it, and that the first one is as it was."""
        name = f"later-{len(self.items(JOB))}"
        self.apply(manifest(name, {"here": {"cpu": 1}}))
        wait_until(lambda: self.status(name).get("phase") == "Pending", "its new job has a status")
        there = {item["metadata"]["name"]: item["metadata"]["uid"] for item in self.children().values()}
        now = {key: uid for key, uid in there.items() if key.startswith("goes-on")}
        assert now == (self.uids or now)
        self.uids = now
        assert operator.works, operator.get("/readyz")[1]
        assert self.growth_mib(operator) < MOST_MIB

    def growth_mib(self, operator: OperatorProcess) -> int:
        """Of a process that a fork server has made, with the memory of that one at first."""
        now = psutil.Process(operator.pid).memory_info().rss
        return now - self.first.setdefault(operator.pid, now) >> 20


@contextmanager
def operating(server: ApiServer, log: Path) -> Iterator[OperatorProcess]:
    """The operator of all namespaces."""
    flags = ("--operator-namespace=system", "--resync-seconds=2", "--poll-seconds=1")
    with OperatorProcess(server.kubeconfig, log, *flags) as operator:
        wait_until(lambda: operator.works, "it works")
        yield operator


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """One of its own: the operator looks after every namespace of it."""
    with job_api_server() as made:
        for name in ("system", "tenant", "quota", "victim"):
            made.kubectl("create", "namespace", name)
        yield made


@pytest.mark.core
def test_a_tenants_worst_day_is_no_other_tenants(server: ApiServer, tmp_path: Path) -> None:
    tenant, without_leases, victim = (Cluster(server, "tenant"), Cluster(server, "quota"), Victim(server))
    with operating(server, tmp_path / "first.log") as operator:
        victim.growth_mib(operator)
        victim.apply(manifest("goes-on"))
        victim.settled("goes-on")

        for number in range(3):
            server.put(CONFIG_MAP.path("tenant"), too_long(f"too-long-{number}"))
            victim.goes_on(operator)

        code, answer = server.request("POST", JOB.path("tenant"), manifest("far-too-wide", regions=wide(64, 64)))
        assert code == HTTPStatus.UNPROCESSABLE_ENTITY
        assert "have 4096 pools in all; use at most 256" in answer["message"]
        tenant.apply(manifest("wide", regions=wide(4, 64)))
        victim.goes_on(operator)
        wait_until(lambda: len(tenant.items(STATEFUL_SET)) == 256, "each pool has its learners")
        wait_until(lambda: tenant.status("wide").get("phase") == "Pending", "it has a status")
        victim.goes_on(operator)

        without_leases.apply(no_leases())
        none = {LEASES: "0"}
        server.set_status("/api/v1/namespaces/quota/resourcequotas/no-leases", {"hard": none, "used": none})
        without_leases.apply(manifest("quiet"))
        wait_until(
            lambda: "exceeded quota" in without_leases.condition("quiet", "Degraded").get("message", ""), "it says why"
        )
        assert without_leases.condition("quiet", "Ready")["reason"] == "OperatorBlocked"
        wait_until(lambda: "OperatorBlocked" in without_leases.kubectl("get", "events"), "an event says so")
        assert "not acting in quota: lease quota/diloco-jobs: " in operator.get("/readyz")[1]
        victim.goes_on(operator)

        for body in many_large("nobodys", 60):
            server.put(CONFIG_MAP.path("tenant"), body)
        victim.goes_on(operator)
        assert tenant.condition("wide", "Degraded").get("reason") != "OperatorBlocked", "what nobody owns costs nothing"
        for body in many_large("wides", 120, owner_of(tenant.get("dilocojob", "wide"))):
            server.put(CONFIG_MAP.path("tenant"), body)
        wait_until(lambda: tenant.condition("wide", "Degraded").get("reason") == "OperatorBlocked", "it says why")
        victim.goes_on(operator)
        operator.kill()

    with operating(server, tmp_path / "second.log") as operator:
        victim.growth_mib(operator)
        victim.goes_on(operator)
        wait_until(lambda: "not acting in tenant: " in operator.get("/readyz")[1], "a new process finds the same")
        victim.goes_on(operator)


def test_an_operator_that_may_not_see_jobs_is_not_ready_until_it_may(server: ApiServer, tmp_path: Path) -> None:
    """And then hears of what happened meanwhile, although kopf's watch has ended for good."""
    victim = Victim(server)
    groups = ["", "apps", "networking.k8s.io", "coordination.k8s.io", "events.k8s.io"]
    rest = {"apiGroups": groups, "resources": ["*"], "verbs": ["*"]}
    jobs = {"apiGroups": ["diloco.dev"], "resources": ["*"], "verbs": ["*"]}
    flags = ("--operator-namespace=victim", "--namespaces=victim", "--resync-seconds=2")
    with (
        FaultProxy(victim.grant("operator", rest, jobs), tmp_path) as proxy,
        OperatorProcess(proxy.kubeconfig, tmp_path / "log", *flags) as operator,
    ):
        wait_until(lambda: operator.works, "it works")
        victim.apply(manifest("goes-on"))
        victim.settled("goes-on")
        victim.apply(manifest("gone"))
        wait_until(lambda: operator.metric("jobs") == 2, "it knows both")
        victim.grant("operator", rest)
        # An API server asks for rights when a watch begins.
        proxy.cut()
        wait_until(lambda: not operator.works, "it says that it does not hear of jobs")
        victim.kubectl("delete", "dlj", "gone", "--wait=false")
        victim.apply(manifest("late", {"here": {"cpu": 1}}))
        assert "watch of dilocojobs.diloco.dev in victim last heard from" in operator.get("/readyz")[1]
        victim.grant("operator", rest, jobs)
        wait_until(lambda: operator.works, "it works again")
        wait_until(lambda: victim.status("late").get("phase") == "Pending", "it looks after the new job")
        wait_until(lambda: operator.metric("jobs") == 2, "the other one is gone")
        victim.goes_on(operator)
