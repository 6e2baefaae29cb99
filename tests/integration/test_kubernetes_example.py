"""The example for clusters against a real API server: its objects are accepted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.api_server.server import ApiServer, job_api_server, why_there_is_none

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/kubernetes"
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(why_there_is_none() is not None, reason=why_there_is_none() or ""),
]


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """A server that knows jobs, and admits only restricted pods to its default namespace."""
    with job_api_server() as server:
        server.kubectl("label", "namespace", "default", RESTRICTED)
        yield server


def test_every_object_is_accepted(server: ApiServer) -> None:
    done = server.kubectl("apply", "--filename", str(EXAMPLE))
    assert "Warning" not in done.stderr
    assert len(done.stdout.splitlines()) >= len(list(EXAMPLE.glob("*.yaml")))
