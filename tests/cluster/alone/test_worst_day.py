"""One tenant does everything that its rights allow to the operator of all, while another tenant's job trains."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from diloco.spec.status.job import JobStatus
from testbed.kind.clusters import Cluster
from testbed.kind.commands import CommandFailedError
from testbed.kind.waiting import wait_until
from tests.support.cluster_jobs import apply, condition, holds, manifest, new_namespace
from tests.support.cluster_operator import ClusterOperator
from tests.support.tenants import LEASES, many_large, no_leases, owner_of, too_long, wide

pytestmark = pytest.mark.timeout(900)

LEARNER = "here/cpu/0"


@pytest.fixture
def without_leases(cluster: Cluster) -> Iterator[str]:
    """A namespace in which no Lease can be made."""
    yield from new_namespace(cluster, "without-leases")


def merged(status: JobStatus) -> int:
    return 0 if status.progress is None else status.progress.step


def put(cluster: Cluster, namespace: str, bodies: Iterable[dict[str, Any]]) -> None:
    """Create ConfigMaps, as they are: kubectl would write each ``<`` as six bytes, which the API server refuses."""
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    for body in bodies:
        cluster.kubectl("create", "--raw", path, "--filename", "-", stdin=json.dumps(body))


def test_a_tenants_worst_day_is_no_other_tenants(
    cluster: Cluster, operator: ClusterOperator, namespace: str, elsewhere: str, without_leases: str
) -> None:
    job = apply(cluster, namespace, manifest("goes-on"))
    job.all_train(LEARNER)
    first = operator.has_taken_over()

    def goes_on() -> None:
        before = merged(job.status())
        job.wait_for(lambda now: merged(now) > before, "merges advance, and the operator says so")
        same = operator.wait_for(lambda pod: pod.ready and operator.works(pod.name), "the operator works")
        assert (same.uid, same.restarts) == (first.uid, first.restarts)

    put(cluster, elsewhere, (too_long(f"too-long-{number}") for number in range(3)))
    goes_on()

    with pytest.raises(CommandFailedError, match="have 4096 pools in all; use at most 256"):
        apply(cluster, elsewhere, manifest("far-too-wide", regions=wide(64, 64)))
    broad = apply(cluster, elsewhere, manifest("wide", regions=wide(4, 64), suspend=True))
    broad.becomes("Suspended")
    goes_on()

    cluster.apply(no_leases(), namespace=without_leases)
    wait_until(
        lambda: LEASES in cluster.get("resourcequotas", "no-leases", without_leases).get("status", {}).get("hard", {}),
        "the quota is in force",
    )
    quiet = apply(cluster, without_leases, manifest("quiet"))
    quiet.becomes("Degraded", "OperatorBlocked")
    assert "exceeded quota" in condition(quiet.status(), "Degraded").message
    quiet.tells("OperatorBlocked")
    goes_on()

    owner = owner_of(cluster.get("dilocojobs", "wide", elsewhere))
    put(cluster, elsewhere, many_large("nobodys", 60))
    goes_on()
    assert not holds(broad.status(), "Degraded", "OperatorBlocked")
    put(cluster, elsewhere, many_large("wides", 120, owner))
    broad.becomes("Degraded", "OperatorBlocked")
    goes_on()

    # A new process finds all of it at once.
    operator.kubectl("delete", "pod", first.name)
    first = operator.has_taken_over(but=first.uid)
    goes_on()
