"""The example for clusters against a real API server: its objects are accepted."""

from pathlib import Path

import pytest

from testbed.api_server.server import ApiServer

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/kubernetes"
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"

pytestmark = pytest.mark.processes


def test_every_object_is_accepted(job_server: ApiServer) -> None:
    """In a namespace that admits only restricted pods."""
    job_server.kubectl("create", "namespace", "example")
    job_server.kubectl("label", "namespace", "example", RESTRICTED)
    done = job_server.kubectl("apply", "--namespace", "example", "--filename", str(EXAMPLE))
    assert "Warning" not in done.stderr
    assert len(done.stdout.splitlines()) >= len(list(EXAMPLE.glob("*.yaml")))
