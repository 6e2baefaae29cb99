"""The example for clusters against a real API server: its objects are accepted, and its README's changes are too."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.api_server.server import ApiServer, job_api_server, why_there_is_none

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "examples/kubernetes/README.md").read_text(encoding="utf-8")
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(why_there_is_none() is not None, reason=why_there_is_none() or ""),
]


def commands(*beginnings: str) -> list[list[str]]:
    """The README's commands that begin with one of ``beginnings``, in its order, each as a list of words."""
    blocks = "".join(part.split("```", 1)[0] for part in README.split("```sh\n")[1:])
    lines = blocks.replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line.startswith(beginnings)]


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """A server that knows jobs, and admits only restricted pods to its default namespace."""
    with job_api_server() as server:
        server.kubectl("label", "namespace", "default", RESTRICTED)
        yield server


def test_every_object_is_accepted_and_every_change_that_the_readme_makes(server: ApiServer) -> None:
    applied = commands("kubectl apply")
    assert len(applied) == 3
    for _, *arguments in applied:
        done = server.kubectl(*(word.replace("examples/", f"{REPOSITORY}/examples/") for word in arguments))
        assert "Warning" not in done.stderr
    changes = commands("kubectl patch")
    assert len(changes) == 3
    for _, *arguments in changes:
        assert "patched" in server.kubectl(*arguments).stdout
    learners = "--output=jsonpath={.spec.regions[0].pools[*].learners}"
    assert server.kubectl("get", "dlj", "corpus", learners).stdout == "2 8"
    for _, *arguments in commands("kubectl get", "kubectl describe"):
        server.kubectl(*arguments)


def test_what_the_readme_says_cannot_change_is_refused_with_its_name(server: ApiServer) -> None:
    server.kubectl("apply", "--filename", str(REPOSITORY / "examples/kubernetes/job.yaml"))
    patch = '--patch={"spec": {"model": {"builtin": {"preset": "mini"}}}}'
    refused = server.kubectl("patch", "dlj", "corpus", "--type=merge", patch, check=False)
    assert refused.returncode != 0
    assert "spec.model" in refused.stderr
