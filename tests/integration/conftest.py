"""A real API server for the tests that ask for one: started once, without a cluster around it."""

from collections.abc import Iterator

import pytest

from testbed.api_server.server import ApiServer, job_api_server, why_there_is_none


@pytest.fixture(scope="session")
def job_server() -> Iterator[ApiServer]:
    """An API server that knows DiLoCoJobs, by the committed definition."""
    if reason := why_there_is_none():
        pytest.skip(reason)
    with job_api_server() as server:
        yield server
