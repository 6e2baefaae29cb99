"""What several of these tests begin with: a real API server without a cluster around it, a syncer that serves."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from testbed.api_server.server import ApiServer, api_server, job_api_server, why_there_is_none
from tests.support.lists import longest_first
from tests.support.syncer_process import Serve, SmallJob, SyncerProcess


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    longest_first(items)


_servers: dict[str, ApiServer] = {}
"""The session's API servers, by the fixtures that start them."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Pause what the test does not use: even an idle server keeps a tenth of a core busy."""
    for fixture, server in _servers.items():
        if fixture in getattr(item, "fixturenames", ()):
            server.resume()
        else:
            server.pause()


def _paused_while_unused(fixture: str, server: ApiServer) -> Iterator[ApiServer]:
    _servers[fixture] = server
    yield server
    del _servers[fixture]


@pytest.fixture(scope="session")
def job_server() -> Iterator[ApiServer]:
    """An API server that knows DiLoCoJobs, by the committed definition."""
    if reason := why_there_is_none():
        pytest.skip(reason)
    with job_api_server() as server:
        yield from _paused_while_unused("job_server", server)


@pytest.fixture(scope="session")
def far_server(job_server: ApiServer) -> Iterator[ApiServer]:
    """The API server of another cluster, which does not know DiLoCoJobs."""
    assert job_server.url
    with api_server() as server:
        yield from _paused_while_unused("far_server", server)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Syncers that the test starts in one directory, one after the other; killed after it."""
    with ExitStack() as stack:

        def started(*flags: str, **changes: Any) -> tuple[SmallJob, SyncerProcess]:
            job = SmallJob(tmp_path, **changes)
            syncer = stack.enter_context(SyncerProcess(job, tmp_path / "s", *flags))
            return job, syncer.serving()

        yield started
