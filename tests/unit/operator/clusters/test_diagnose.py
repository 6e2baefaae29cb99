"""Each error of a remote API server comes to one state, in a line that the other side cannot choose."""

import pytest

from diloco_operator.cluster import errors
from diloco_operator.cluster.errors import ApiError, Call, of_exception, of_status, of_text
from diloco_operator.clusters.diagnose import OLDEST, diagnose, forbidden, rights_asked, unsuitable_version
from diloco_operator.clusters.state import ClusterState

SERVER = "https://far.example"
LIST = Call("list", "statefulsets.apps", "there")
WRITE = Call("patch", "statefulsets.apps", "there", "a")
THEIRS = "text of the other side"


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (of_exception(LIST, TimeoutError()), ClusterState.UNREACHABLE),
        (of_exception(LIST, ConnectionResetError(THEIRS)), ClusterState.UNREACHABLE),
        (of_text(LIST, 500, THEIRS), ClusterState.UNREACHABLE),
        (of_text(LIST, 503, THEIRS), ClusterState.UNREACHABLE),
        (of_text(LIST, 429, THEIRS), ClusterState.UNREACHABLE),
        (of_text(LIST, 302, THEIRS), ClusterState.UNREACHABLE),
        (of_text(Call("get", "version"), 404, THEIRS), ClusterState.UNREACHABLE),
        (errors.UntrustedError(LIST, "certificate has expired"), ClusterState.UNTRUSTED),
        (of_text(LIST, 401, THEIRS), ClusterState.UNAUTHORIZED),
        (of_text(LIST, 404, THEIRS), ClusterState.UNSUITABLE),
    ],
)
def test_each_error_of_the_cluster_has_its_state(error: ApiError, state: ClusterState) -> None:
    found = diagnose(error, SERVER)
    assert found is not None
    assert found.state is state
    assert found.message.startswith(SERVER)
    assert THEIRS not in found.message


@pytest.mark.parametrize("code", [400, 403, 404, 409, 410, 413, 422])
def test_an_error_about_one_object_says_nothing_of_the_cluster(code: int) -> None:
    assert diagnose(of_text(WRITE, code, THEIRS), SERVER) is None


def test_only_a_plain_403_may_be_due_to_a_missing_rule() -> None:
    going = {"details": {"causes": [{"reason": "NamespaceTerminating"}]}}
    assert rights_asked(of_status(WRITE, 403, {}))
    assert not rights_asked(of_status(WRITE, 403, going))
    assert not rights_asked(of_status(WRITE, 401, {}))


def test_what_is_not_allowed_is_named_rule_by_rule() -> None:
    found = forbidden([WRITE, LIST, WRITE], SERVER)
    assert found.state is ClusterState.FORBIDDEN
    assert (
        found.message
        == f"{SERVER} does not allow to list statefulsets.apps, patch statefulsets.apps in namespace there"
    )
    many = forbidden([Call("get", f"kind{number}") for number in range(9)], SERVER)
    assert many.message.endswith("get kind5 and 3 more")


@pytest.mark.parametrize(
    "answer", [{"major": "1", "minor": "28"}, {"major": "1", "minor": "31+"}, {"major": "2", "minor": "0"}]
)
def test_a_recent_version_is_suitable(answer: dict[str, str]) -> None:
    assert unsuitable_version(answer, SERVER) is None


@pytest.mark.parametrize("minor", ["27", "27+", "0", "9"])
def test_an_old_version_is_not_suitable(minor: str) -> None:
    found = unsuitable_version({"major": "1", "minor": minor}, SERVER)
    assert found is not None
    assert found.state is ClusterState.UNSUITABLE
    number = minor.rstrip("+")
    assert found.message == f"{SERVER} is Kubernetes 1.{number}; use {OLDEST[0]}.{OLDEST[1]} or later"


@pytest.mark.parametrize(
    "answer", [None, [], {}, {"major": "1"}, {"major": None, "minor": {}}, {"major": "a", "minor": "b"}]
)
def test_what_is_no_version_is_no_api_server(answer: object) -> None:
    found = unsuitable_version(answer, SERVER)
    assert found is not None
    assert found.state is ClusterState.UNREACHABLE
