"""Each error of a remote API server comes to one state, in a line that the other side cannot choose."""

import pytest

from diloco_operator.api_server import errors
from diloco_operator.api_server.errors import ApiError, Call, of_exception, of_status, of_text
from diloco_operator.cluster_state import ClusterState
from diloco_operator.clusters.diagnose import OLDEST, diagnose, forbidden, rights_asked, unsuitable_version

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
    ("answer", "state"),
    [
        *(({"major": "1", "minor": minor}, None) for minor in ("28", "31+")),
        ({"major": "2", "minor": "0"}, None),
        *(({"major": "1", "minor": minor}, ClusterState.UNSUITABLE) for minor in ("27", "27+", "0", "9")),
        (None, ClusterState.UNREACHABLE),
        ([], ClusterState.UNREACHABLE),
        ({}, ClusterState.UNREACHABLE),
        ({"major": "1"}, ClusterState.UNREACHABLE),
        ({"major": None, "minor": {}}, ClusterState.UNREACHABLE),
        ({"major": "a", "minor": "b"}, ClusterState.UNREACHABLE),
    ],
)
def test_only_a_recent_version_is_suitable(answer: object, state: ClusterState | None) -> None:
    found = unsuitable_version(answer, SERVER)
    assert (None if found is None else found.state) is state


def test_an_old_version_is_told_with_the_oldest_that_will_do() -> None:
    found = unsuitable_version({"major": "1", "minor": "27+"}, SERVER)
    assert found is not None
    assert found.message == f"{SERVER} is Kubernetes 1.27; use {OLDEST[0]}.{OLDEST[1]} or later"
