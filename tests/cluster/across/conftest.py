"""Fixtures for tests on several real clusters: home, with the operator, and others that lack it.

They run after all others, in two groups, each in a process of its own and with a home of its own. `faults` stops and
pauses the third cluster, so nothing else uses that; where it cuts a link of the second one, it names the ports.
`owners` changes only what it has made itself, and the way from its home to another API server.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.kind import chart as charts
from testbed.kind import cuts, peers
from testbed.kind.bed import Bed
from testbed.kind.chart import Release
from testbed.kind.clusters import Cluster
from testbed.kind.project_images import Images
from tests.cluster.conftest import OPERATOR, numbered_bed
from tests.support.across import Far, far_of
from tests.support.cluster_operator import ClusterOperator

LONGEST_WAIT_SECONDS = 20
"""That a job which is deleted or stopped waits for a cluster that does not answer. The default is 600."""
HERE = Path(__file__).parent
HOMES = {"faults": 1, "owners": 2}
"""Of each group, which of the test bed's clusters is home."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each group its home: with a parameter, so that one process can run both, one after the other."""
    if "home_number" in metafunc.fixturenames:
        group = Path(str(metafunc.module.__file__)).relative_to(HERE).parts[0]
        metafunc.parametrize("home_number", [HOMES[group]], ids=[group], indirect=True, scope="session")


@pytest.fixture(scope="session")
def home_number(request: pytest.FixtureRequest) -> int:
    """Which of the test bed's clusters is home."""
    return int(request.param)


@pytest.fixture(scope="session")
def bed(home_number: int) -> Bed:
    return numbered_bed(home_number)


@pytest.fixture(scope="session")
def west_cluster(bed: Bed, home_number: int) -> Iterator[Cluster]:
    """The other one of the first two."""
    yield from another(bed, 3 - home_number)


@pytest.fixture(scope="session")
def operator(bed: Bed, cluster: Cluster, images: Images) -> Iterator[ClusterOperator]:
    """The operator at home, which waits less long for clusters that are away than it does by default."""
    assert cluster is bed.cluster
    install_operator(bed, images)
    yield ClusterOperator(bed.cluster, OPERATOR)
    charts.uninstall(bed, OPERATOR)


@pytest.fixture(scope="session")
def chart(operator: ClusterOperator) -> Release:
    return operator.release


@pytest.fixture(scope="module")
def west(cluster: Cluster, operator: ClusterOperator, west_cluster: Cluster, namespace: str) -> Iterator[Far]:
    """A prepared namespace of the second cluster, and its Secret in the namespace at home."""
    assert operator.cluster is cluster
    yield from far_of(cluster, namespace, west_cluster, "west")


def install_operator(bed: Bed, images: Images) -> None:
    """Install it as these tests need it."""
    charts.install(bed, images, OPERATOR, {"operator": {"remoteDeletionSeconds": LONGEST_WAIT_SECONDS}})


def another(bed: Bed, number: int) -> Iterator[Cluster]:
    """Another cluster than home, with the images, which no other process takes down meanwhile."""
    other = numbered_bed(number)
    with bed.cache.using(other.cluster.name):
        other.images()
        # What an interrupted test has left.
        cuts.mend(peers.nodes_of(other.cluster).addresses)
        yield other.cluster
