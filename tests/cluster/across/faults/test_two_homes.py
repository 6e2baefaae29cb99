"""Two homes have jobs of one name in one namespace of a third cluster: the second is told so and touches nothing."""

from collections.abc import Iterator
from typing import Any

import pytest

from testbed.kind import chart as charts
from testbed.kind.bed import Bed
from testbed.kind.clusters import Cluster
from testbed.kind.waiting import WAIT_SECONDS
from tests.cluster.across.conftest import install_operator
from tests.cluster.conftest import OPERATOR, SHARED, numbered_bed
from tests.support.across import LEARNERS, World, give_secret, reachable, region, region_of
from tests.support.cluster_jobs import ClusterJob, apply, condition, holds

pytestmark = pytest.mark.timeout(600)

KINDS = "configmaps,secrets,services,statefulsets,networkpolicies"


@pytest.fixture
def second_home(north_cluster: Cluster) -> Iterator[Bed]:
    """The third cluster with an operator of its own."""
    bed = numbered_bed(SHARED)
    assert bed.cluster == north_cluster
    install_operator(bed, bed.images())
    yield bed
    charts.uninstall(bed, OPERATOR)


def objects_there(world: World) -> dict[str, Any]:
    """Everything but pods in the namespace that both homes use: who made it, whose it is, and what is in it."""
    items = world.west.cluster.items(KINDS, world.west.namespace)
    return {f"{one['kind']}/{one['metadata']['name']}": _content(one) for one in items}


def _content(item: dict[str, Any]) -> tuple[Any, ...]:
    metadata = item["metadata"]
    return (metadata["uid"], metadata.get("labels"), metadata.get("generation"), item.get("data"), item.get("spec"))


@pytest.fixture
def second(second_home: Bed, world: World) -> Iterator[ClusterJob]:
    """A job of the same name and namespace at the second home."""
    home, namespace = second_home.cluster, world.job.namespace
    charts.make_namespace(home, namespace)
    give_secret(home, namespace, world.west.secret())
    job = apply(home, namespace, reachable(home, world.job.name, region("west", "west")))
    yield job
    home.kubectl("delete", "namespace", namespace, timeout_seconds=WAIT_SECONDS)


def test_a_job_of_another_home_with_the_same_name_touches_nothing(world: World, second: ClusterJob) -> None:
    before, pods = objects_there(world), world.pods()
    status = second.becomes("Degraded", "NameTaken")
    assert "west" in condition(status, "Degraded").message
    assert region_of(status, "west").training == 0
    world.job.train_on(*LEARNERS)
    assert objects_there(world) == before
    second.delete()
    world.job.train_on(*LEARNERS)
    assert objects_there(world) == before
    assert world.pods() == pods
    assert not holds(world.job.status(), "Degraded", "NameTaken")
