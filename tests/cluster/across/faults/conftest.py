"""One job over three clusters, which the tests of faults share. Home is the first one."""

from collections.abc import Iterator

import pytest

from testbed.kind import chart as charts
from testbed.kind.bed import Bed
from testbed.kind.clusters import Cluster
from tests.cluster.across.conftest import another
from tests.cluster.conftest import OPERATOR, SHARED, numbered_bed
from tests.support.across import LEARNERS, World, far_of, has_reason, reachable, region
from tests.support.cluster_jobs import apply, new_namespace
from tests.support.cluster_operator import ClusterOperator


@pytest.fixture(scope="session")
def north_cluster(bed: Bed) -> Iterator[Cluster]:
    """Of a single node, and of this group alone, without the operator that tests of `shared` have left there."""
    charts.uninstall(numbered_bed(SHARED), OPERATOR)
    yield from another(bed, SHARED)


@pytest.fixture(scope="session")
def shared_world(
    cluster: Cluster, operator: ClusterOperator, west_cluster: Cluster, north_cluster: Cluster
) -> Iterator[World]:
    """The job that the tests share; each leaves it as it found it."""
    for namespace in new_namespace(cluster, "faults"):
        for west in far_of(cluster, namespace, west_cluster, "west"):
            for north in far_of(cluster, namespace, north_cluster, "north"):
                regions = region("east"), region("west", west.name), region("north", north.name)
                job = apply(cluster, namespace, reachable(cluster, "faults", *regions))
                yield World(cluster, job, west, operator, north)


@pytest.fixture
def world(shared_world: World) -> World:
    """The shared job, with all of its learners training and every cluster as it should be."""
    shared_world.job.all_train(*LEARNERS)
    for name in ("west", "north"):
        has_reason(shared_world.job, name, None)
    return shared_world
