"""Fixtures for tests on real clusters: the cluster, a namespace for each test, the chart, and diagnostics of failures.

Clusters are brought up before pytest starts (`make test-e2e`, `make kind-up`), not by it: the first time takes minutes,
and a test has a time limit. Tests are skipped where none is up, with the reason.

Those in `alone` take nodes or the operator away, which no test beside them would survive: with ``pytest -n``, each
worker has a cluster to itself, from the first on. Those in `shared` change only their own jobs: all workers have the
third cluster, which is of a single node. `across` needs several clusters (its `conftest.py`). Without ``-n``, one
cluster does for the first two.
"""

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from testbed.kind import bed as beds
from testbed.kind import chart as charts
from testbed.kind import clusters, diagnostics
from testbed.kind.bed import Bed
from testbed.kind.chart import Release
from testbed.kind.clusters import Cluster
from testbed.kind.commands import Unavailable
from testbed.kind.guard import NotOursError
from testbed.kind.project_images import Images
from tests.cluster.cluster_shell import ClusterShell, of_namespace
from tests.support.cluster_jobs import new_namespace
from tests.support.cluster_nodes import Nodes, nodes_without_operator
from tests.support.cluster_operator import ClusterOperator
from tests.support.lists import longest_first

OPERATOR = Release("diloco-operator", "diloco-system")
SHARED = 3
"""Which of the test bed's clusters several workers have together."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/cluster/" in item.nodeid:
            item.add_marker(pytest.mark.cluster)
    # There, some begin what others wait for.
    longest_first(items, but="tests/cluster/across/")


@pytest.fixture(scope="session")
def bed() -> Bed:
    """Engine, tools and cluster, found to be the test bed's own."""
    return numbered_bed(1 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")))


def numbered_bed(number: int) -> Bed:
    """One of the test bed's clusters, from 1, that is up; the test is skipped if it is not."""
    if reason := os.environ.get(beds.UNAVAILABLE):
        pytest.skip(f"no clusters: {reason}")
    try:
        return beds.attach(clusters.numbered(clusters.DEFAULT_NAME, number - 1))
    except (Unavailable, NotOursError) as why:
        pytest.skip(f"no cluster {number}: {why}")


@pytest.fixture(scope="session")
def cluster(bed: Bed) -> Iterator[Cluster]:
    """The session's cluster; no other process takes it down meanwhile."""
    with bed.cache.using(bed.cluster.name):
        yield bed.cluster


@pytest.fixture(scope="session")
def images(bed: Bed, cluster: Cluster) -> Images:
    """The checkout's two images, which the cluster's nodes have."""
    assert cluster is bed.cluster
    return bed.images()


@pytest.fixture(scope="session")
def chart(bed: Bed, images: Images) -> Iterator[Release]:
    """The operator, installed from the chart with the checkout's images, ready."""
    charts.install(bed, images, OPERATOR)
    yield OPERATOR
    charts.uninstall(bed, OPERATOR)


@pytest.fixture(scope="module")
def _installed_after_all(bed: Bed, images: Images, chart: Release) -> Iterator[None]:
    yield
    charts.install(bed, images, chart)


@pytest.fixture
def nothing_installed(bed: Bed, chart: Release, _installed_after_all: None) -> Iterator[None]:
    """Meanwhile no release is installed; the definition of jobs is, as the chart leaves it."""
    charts.uninstall(bed, chart)
    yield
    charts.uninstall(bed, chart)


@pytest.fixture(scope="module")
def operator(bed: Bed, images: Images, chart: Release) -> Iterator[ClusterOperator]:
    """The operator of the chart; changes to it are undone for other tests."""
    yield ClusterOperator(bed.cluster, chart)
    charts.install(bed, images, chart)


@pytest.fixture(scope="module")
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace for the tests of a file."""
    yield from new_namespace(cluster, request.path.stem.removeprefix("test_").replace("_", "-"))


@pytest.fixture(scope="module")
def elsewhere(cluster: Cluster) -> Iterator[str]:
    """Another namespace."""
    yield from new_namespace(cluster, "elsewhere")


@pytest.fixture(scope="module")
def nodes(cluster: Cluster, chart: Release) -> Nodes:
    """Two nodes, one of which tests may lose; the operator is on the other one."""
    return nodes_without_operator(cluster, chart.namespace)


@pytest.fixture
def shell(bed: Bed, namespace: str, tmp_path: Path) -> ClusterShell:
    """A reader's shell in that namespace."""
    return ClusterShell(bed, of_namespace(bed.cluster, namespace), tmp_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the cluster's state to the report of a failed test, before its namespace is deleted."""
    report = yield
    given = getattr(item, "funcargs", {})
    found = given.get("cluster") or (given["bed"].cluster if "bed" in given else None)
    if report.failed and call.when != "teardown" and found is not None:
        namespaces = [name for name in (given.get("namespace"), OPERATOR.namespace) if name]
        report.sections += diagnostics.sections(found, namespaces)
    return report
