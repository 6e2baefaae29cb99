"""What is left of jobs in a remote cluster: whose it is, what counts as orphaned, and how it is deleted."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from diloco.cli.cluster_access import Answer, ApiServer, AwayError, ClusterError, ForbiddenError
from diloco.cli.cluster_orphans import DEFAULT_LEASE
from diloco.cli.cluster_remains import (
    HOME_LABEL,
    HOME_NAMESPACE_LABEL,
    JOB_LABEL,
    JOB_UID_LABEL,
    KINDS,
    STATEFUL_SET,
    Remain,
    deleted,
    home_config_map,
    home_id,
    job_uids,
    orphans,
    remain,
    remains,
)
from diloco_operator import labels
from diloco_operator.cluster.errors import Call, NotFoundError
from diloco_operator.cluster.kinds import CLAIM, REMOTE_CHILDREN
from diloco_operator.clusters.home import home_id as operators_home_id
from diloco_operator.options import OperatorOptions

Answers = Callable[[str, dict[str, list[str]]], tuple[int, Any]]


class ScriptedServer(ApiServer):
    """Answers requests from a function, and keeps what was deleted."""

    def __init__(self, answers: Answers) -> None:
        self.url = "https://west"
        self._answers = answers
        self.asked: list[tuple[str, str]] = []
        self.deletions: list[tuple[str, Mapping[str, Any]]] = []

    def get(self, path: str, *, timeout_seconds: float = 15.0, accept: str = "") -> Answer:  # noqa: ARG002  # as the base class
        parts = urlsplit(path)
        self.asked.append((parts.path, accept))
        return self._answer(parts.path, parse_qs(parts.query))

    def delete(self, path: str, options: Mapping[str, Any], *, timeout_seconds: float = 15.0) -> Answer:  # noqa: ARG002  # as the base class
        self.deletions.append((path, options))
        return self._answer(path, {})

    def _answer(self, path: str, query: dict[str, list[str]]) -> Answer:
        status, body = self._answers(path, query)
        return Answer(status, json.dumps(body).encode())


def item(name: str, *, home: str = "h1", job: str = "u1", **more: Any) -> dict[str, Any]:
    marks = {"diloco.dev/home": home, "diloco.dev/job-uid": job, "diloco.dev/job": "train"}
    return {"metadata": {"namespace": "learners", "name": name, "uid": f"uid-{name}", "labels": marks}, **more}


def left(name: str, *, home: str = "h1", job: str = "u1") -> Remain:
    return Remain(STATEFUL_SET, "learners", name, f"uid-{name}", home, job, "train")


def test_labels_key_and_names_are_those_that_the_operator_writes() -> None:
    assert (HOME_LABEL, JOB_UID_LABEL, HOME_NAMESPACE_LABEL) == (labels.HOME, labels.JOB_UID, labels.HOME_NAMESPACE)
    assert JOB_LABEL == labels.JOB
    assert OperatorOptions("any").lease_name == DEFAULT_LEASE
    found = (*REMOTE_CHILDREN, CLAIM)
    assert {kind.plural for kind in KINDS} == {kind.plural for kind in found}
    for kind in found:
        (same,) = (one for one in KINDS if one.plural == kind.plural)
        assert (same.name, same.path("a", "b")) == (kind.name, kind.path("a", "b"))


def test_the_id_is_the_one_that_the_operator_keeps() -> None:
    made: list[dict[str, Any]] = []

    class Home:
        async def get(self, _kind: object, namespace: str, name: str) -> dict[str, Any]:
            raise NotFoundError(Call("get", "configmaps", namespace, name), "none")

        async def create(self, _kind: object, body: dict[str, Any]) -> dict[str, Any]:
            made.append(body)
            return body

    api: Any = Home()
    kept = asyncio.run(operators_home_id(api, "system", home_config_map("mine"), lambda: "h1"))
    path = f"/api/v1/namespaces/system/configmaps/{made[0]['metadata']['name']}"
    server = ScriptedServer(lambda asked, _: (200, made[0]) if asked == path else (404, {}))
    assert home_id(server, "system", "mine") == kept == "h1"


@pytest.mark.parametrize("said", [{}, {"data": None}, {"data": {"id": ""}}, {"data": {"id": 7}}, {"data": ["id"]}])
def test_a_config_map_without_an_id_is_one_line(said: dict[str, Any]) -> None:
    with pytest.raises(ClusterError, match="https://west has no id of a home in ConfigMap system/mine-home"):
        home_id(ScriptedServer(lambda _path, _query: (200, said)), "system", "mine")


def one_list(wanted: str, body: Any) -> Answers:
    """Empty lists, but for the kind of this plural."""

    def answer(path: str, _query: dict[str, list[str]]) -> tuple[int, Any]:
        return 200, body if path.endswith(f"/{wanted}") else {"items": []}

    return answer


def test_objects_of_every_kind_are_found_page_by_page() -> None:
    def answer(path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        assert query["labelSelector"] == ["diloco.dev/home,diloco.dev/job-uid"]
        plural = path.rsplit("/", 1)[1]
        if "continue" in query:
            return 200, {"items": [item(f"{plural}-2")], "metadata": {}}
        return 200, {"items": [item(f"{plural}-1")], "metadata": {"continue": "next page/?"}}

    server = ScriptedServer(answer)
    found = [one.name for one in remains(server, "learners")]
    assert found == [f"{kind.plural}-{page}" for kind in KINDS for page in (1, 2)]
    assert all(path.split("/namespaces/")[1].startswith("learners/") for path, _ in server.asked)


def test_no_content_is_read_but_that_of_stateful_sets() -> None:
    server = ScriptedServer(lambda _path, _query: (200, {"items": []}))
    remains(server, None)
    whole = [path for path, accept in server.asked if "PartialObjectMetadataList" not in accept]
    assert whole == ["/apis/apps/v1/statefulsets"]


def test_a_cluster_that_does_not_serve_a_kind_has_none_of_it() -> None:
    server = ScriptedServer(lambda path, _: (404, {}) if "networkpolicies" in path else (200, {"items": []}))
    assert remains(server, None) == ()


def test_claims_that_may_not_be_listed_are_left_out_and_it_is_said() -> None:
    def answer(path: str, _query: dict[str, list[str]]) -> tuple[int, Any]:
        if path.endswith("/persistentvolumeclaims"):
            raise ForbiddenError("not permitted: persistentvolumeclaims is forbidden")
        return 200, {"items": [item("a")]}

    told: list[str] = []
    found = remains(ScriptedServer(answer), None, told.append)
    assert [one.kind for one in found] == [kind for kind in KINDS if kind.name != "PersistentVolumeClaim"]
    assert told == ["not permitted: persistentvolumeclaims is forbidden"]


def test_any_other_kind_that_may_not_be_listed_is_an_error() -> None:
    def answer(path: str, _query: dict[str, list[str]]) -> tuple[int, Any]:
        if path.endswith("/secrets"):
            raise ForbiddenError("not permitted: secrets is forbidden")
        return 200, {"items": []}

    with pytest.raises(ForbiddenError):
        remains(ScriptedServer(answer), None)


def test_a_list_without_objects_may_be_null() -> None:
    assert remains(ScriptedServer(lambda _path, _query: (200, {"items": None})), None) == ()


def test_running_learners_are_counted() -> None:
    server = ScriptedServer(one_list("statefulsets", {"items": [item("a", status={"replicas": 3})]}))
    assert [one.learners for one in remains(server, None)] == [3]


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"metadata": None},
        {"metadata": {"name": "a", "namespace": "b", "uid": "c"}},
        {"metadata": {"name": "a", "namespace": "b", "uid": 7, "labels": {}}},
        {"metadata": {"name": "a", "namespace": "b", "uid": "c", "labels": {"diloco.dev/home": "h1"}}},
        {"metadata": {**item("a")["metadata"], "uid": ""}},
    ],
)
def test_what_lacks_a_uid_or_a_label_is_nobodys(odd: dict[str, Any]) -> None:
    assert remain(STATEFUL_SET, odd) is None


def test_control_characters_do_not_reach_the_terminal() -> None:
    found = remain(STATEFUL_SET, item("a", home="h\x1b[2J"))
    assert found is not None
    assert found.home == "h?[2J"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ([], "answers a list of statefulsets with something else"),
        ({"items": {}}, "answers a list of statefulsets with something else"),
        ({"items": [], "metadata": {"continue": "again"}}, "lists statefulsets without end"),
    ],
)
def test_a_server_that_lists_nonsense_is_an_error(body: Any, told: str) -> None:
    with pytest.raises(ClusterError, match=told):
        remains(ScriptedServer(one_list("statefulsets", body)), None)


def test_jobs_of_another_home_and_those_that_exist_are_no_orphans() -> None:
    found = [left("a", job="gone"), left("b", job="there"), left("c", home="h2", job="gone")]
    assert [one.name for one in orphans(found, "h1", {"there"})] == ["a"]


def test_a_list_of_jobs_that_is_not_whole_is_an_error_not_orphans() -> None:
    whole = one_list("dilocojobs", {"items": [{"metadata": {"uid": "u1"}}, {"metadata": {"uid": "u2"}}]})
    assert job_uids(ScriptedServer(whole)) == {"u1", "u2"}
    with pytest.raises(ClusterError, match="lists a job without a uid"):
        job_uids(ScriptedServer(one_list("dilocojobs", {"items": [{"metadata": {}}]})))
    with pytest.raises(ClusterError, match="does not list dilocojobs: no such kind"):
        job_uids(ScriptedServer(lambda _path, _query: (404, {"message": "no such kind"})))


def test_a_second_page_of_jobs_that_fails_is_an_error() -> None:
    def answer(_path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        if "continue" in query:
            return 410, {"message": "the list has expired"}
        return 200, {"items": [{"metadata": {"uid": "u1"}}], "metadata": {"continue": "x"}}

    with pytest.raises(ClusterError, match="does not list dilocojobs: the list has expired"):
        job_uids(ScriptedServer(answer))


def test_each_deletion_is_of_the_object_with_that_uid_only() -> None:
    server = ScriptedServer(lambda _path, _query: (200, {}))
    assert [outcome.problem for outcome in deleted(server, [left("a"), left("b")])] == ["", ""]
    assert [(path, options["preconditions"]) for path, options in server.deletions] == [
        ("/apis/apps/v1/namespaces/learners/statefulsets/a", {"uid": "uid-a"}),
        ("/apis/apps/v1/namespaces/learners/statefulsets/b", {"uid": "uid-b"}),
    ]


@pytest.mark.parametrize(("status", "problem"), [(404, ""), (409, ""), (422, "https://west answered with HTTP 422")])
def test_what_is_gone_or_replaced_is_no_problem(status: int, problem: str) -> None:
    server = ScriptedServer(lambda _path, _query: (status, {}))
    assert [outcome.problem for outcome in deleted(server, [left("a")])] == [problem]


def test_a_deletion_that_fails_does_not_keep_the_next_from_being_tried() -> None:
    def answer(path: str, _query: dict[str, list[str]]) -> tuple[int, Any]:
        if path.endswith("/a"):
            raise AwayError("no answer")
        return 200, {}

    outcomes = list(deleted(ScriptedServer(answer), [left("a"), left("b")]))
    assert [(outcome.remain.name, outcome.problem) for outcome in outcomes] == [("a", "no answer"), ("b", "")]
