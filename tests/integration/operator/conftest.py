"""One real API server with the DiLoCoJob definition for these tests, and a namespace for each of them."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.api_server.fault_proxy import FaultProxy
from testbed.api_server.server import ApiServer, api_server, job_api_server, why_there_is_none
from testbed.operator_process import OperatorProcess
from tests.support.operator_scene import Cluster, Start
from tests.support.remote_scene import Far


@pytest.fixture(scope="session")
def server() -> Iterator[ApiServer]:
    if reason := why_there_is_none():
        pytest.skip(reason)
    with job_api_server() as running:
        yield running


@pytest.fixture(scope="module")
def far_server(server: ApiServer) -> Iterator[ApiServer]:
    """The API server of another cluster, without the DiLoCoJob definition."""
    assert server.url
    with api_server() as running:
        yield running


@pytest.fixture
def far(far_server: ApiServer) -> Far:
    return Far(far_server)


@pytest.fixture
def namespace(server: ApiServer) -> str:
    name = f"test-{uuid.uuid4().hex[:10]}"
    server.kubectl("create", "namespace", name)
    return name


@pytest.fixture
def proxy(server: ApiServer, tmp_path: Path) -> Iterator[FaultProxy]:
    """In front of the server, without a fault yet."""
    with FaultProxy(server.kubeconfig, tmp_path) as running:
        yield running


@pytest.fixture
def cluster(server: ApiServer, namespace: str) -> Cluster:
    return Cluster(server, namespace)


@pytest.fixture
def start(cluster: Cluster, tmp_path: Path) -> Start:
    count = 0

    def started(kubeconfig: Path | None = None, *flags: str) -> OperatorProcess:
        nonlocal count
        count += 1
        return OperatorProcess(
            kubeconfig or cluster.server.kubeconfig,
            tmp_path / f"operator-{count}.log",
            f"--operator-namespace={cluster.namespace}",
            f"--namespaces={cluster.namespace}",
            "--poll-seconds=0.5",
            *flags,
        )

    return started
