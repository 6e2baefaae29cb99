"""A namespace of the real API server for each of these tests, and one of another cluster's."""

import asyncio
import logging
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from diloco_operator.api_server.api import Api
from diloco_operator.api_server.kinds import NAMESPACE
from testbed.api_server.fault_proxy import FaultProxy
from testbed.api_server.server import ApiServer
from testbed.operator_process import OperatorProcess
from tests.support.closed_loop import closed_loop, entered
from tests.support.operator_scene import Cluster, Start, api_at
from tests.support.remote_scene import Far, Scene, scene_at


@pytest.fixture(autouse=True)
def runner() -> Iterator[asyncio.Runner]:
    with closed_loop() as made:
        yield made


@pytest.fixture(scope="session")
def server(job_server: ApiServer) -> ApiServer:
    return job_server


@pytest.fixture
def far(far_server: ApiServer) -> Far:
    return Far(far_server)


@pytest.fixture
def namespace(server: ApiServer) -> str:
    name = f"test-{uuid.uuid4().hex[:10]}"
    server.put(NAMESPACE.path(None), {"metadata": {"name": name}})
    return name


@pytest.fixture
def proxy(server: ApiServer, tmp_path: Path) -> Iterator[FaultProxy]:
    """In front of the server, without a fault yet."""
    with FaultProxy(server.kubeconfig, tmp_path) as running:
        yield running


@pytest.fixture
def api(server: ApiServer, runner: asyncio.Runner) -> Iterator[Api]:
    yield from entered(runner, api_at(server.kubeconfig))


@pytest.fixture
def proxied(proxy: FaultProxy, runner: asyncio.Runner) -> Iterator[Api]:
    """The server by way of the proxy."""
    yield from entered(runner, api_at(proxy.kubeconfig))


@pytest.fixture
def scene(
    server: ApiServer, namespace: str, runner: asyncio.Runner, caplog: pytest.LogCaptureFixture
) -> Iterator[Scene]:
    """A job at home that names clusters, in whose log no credentials may be."""
    caplog.set_level(logging.DEBUG)
    yield from entered(runner, scene_at(server, namespace))
    text = "\n".join(map(caplog.handler.format, [*caplog.get_records("call"), *caplog.records]))
    assert [word for word in ("eyJ", "BEGIN", "Traceback") if word in text] == []


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
