"""One real API server with the DiLoCoJob definition for these tests, and a namespace for each of them."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.api_server import ApiServer, api_server, why_there_is_none

DEFINITION = Path(__file__).parents[3] / "crds" / "dilocojobs.diloco.dev.yaml"


@pytest.fixture(scope="session")
def server() -> Iterator[ApiServer]:
    if reason := why_there_is_none():
        pytest.skip(reason)
    with api_server() as running:
        running.kubectl("apply", "--server-side", f"--filename={DEFINITION}")
        running.kubectl("wait", "--for=condition=Established", "crd/dilocojobs.diloco.dev")
        yield running


@pytest.fixture
def namespace(server: ApiServer) -> str:
    name = f"test-{uuid.uuid4().hex[:10]}"
    server.kubectl("create", "namespace", name)
    return name
