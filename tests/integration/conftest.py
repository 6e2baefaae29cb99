"""A real API server for the tests that ask for one: started once, without a cluster around it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.api_server import ApiServer, api_server, why_there_is_none

REPOSITORY = Path(__file__).resolve().parents[2]
CRD = REPOSITORY / "crds" / "dilocojobs.diloco.dev.yaml"


@pytest.fixture(scope="session")
def job_server() -> Iterator[ApiServer]:
    """An API server that knows DiLoCoJobs, by the committed definition."""
    if reason := why_there_is_none():
        pytest.skip(reason)
    with api_server() as server:
        server.kubectl("create", "--filename", str(CRD))
        server.kubectl("wait", "--for=condition=Established", "crd/dilocojobs.diloco.dev")
        # Published a moment after the definition is established; a kubectl that validates or explains reads it.
        while server.kubectl("explain", "dlj", check=False).returncode:
            time.sleep(0.1)
        yield server
