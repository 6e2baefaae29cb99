import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from diloco_operator.api_server.api import Api, Selection
from diloco_operator.api_server.errors import (
    ApiError,
    Call,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnansweredError,
)
from diloco_operator.api_server.kinds import CLAIM, SECRET, STATEFUL_SET, Kind, Object
from diloco_operator.commands.remains import KINDS, Remain, deleted, remain, remains

CALL = Call("list", "things")


class Server:
    """Lists these objects, and fails with these errors, by kind or by the name of what is deleted."""

    def __init__(
        self, items: Mapping[str, list[Object]] | None = None, errors: Mapping[str, ApiError] | None = None
    ) -> None:
        self._items = items or {}
        self._errors = errors or {}
        self.asked: list[Selection] = []
        self.deletions: list[tuple[Kind, str, str, Mapping[str, str]]] = []

    async def items(self, selection: Selection) -> list[Object]:
        self.asked.append(selection)
        self._fail(selection.kind.name)
        return self._items.get(selection.kind.name, [])

    async def delete(self, kind: Kind, namespace: str, name: str, preconditions: Mapping[str, str]) -> None:
        self.deletions.append((kind, namespace, name, preconditions))
        self._fail(name)

    def _fail(self, what: str) -> None:
        if what in self._errors:
            raise self._errors[what]


def item(name: str, *, home: str = "h1", job: str = "u1", **more: Any) -> dict[str, Any]:
    marks = {"diloco.dev/home": home, "diloco.dev/job-uid": job, "diloco.dev/job": "train"}
    return {"metadata": {"namespace": "learners", "name": name, "uid": f"uid-{name}", "labels": marks}, **more}


def left(name: str) -> Remain:
    return Remain(STATEFUL_SET, "learners", name, f"uid-{name}", "h1", "u1", "train")


def found(server: Server, told: list[str] | None = None) -> tuple[Remain, ...]:
    said: list[str] = [] if told is None else told
    return asyncio.run(remains(cast("Api", server), "learners", said.append))


def test_objects_of_every_kind_are_found_and_only_stateful_sets_read_whole() -> None:
    server = Server({kind.name: [item(kind.plural)] for kind in KINDS})
    assert [one.name for one in found(server)] == [kind.plural for kind in KINDS]
    assert {one.labels for one in server.asked} == {"diloco.dev/home,diloco.dev/job-uid"}
    assert {one.namespace for one in server.asked} == {"learners"}
    assert [one.kind for one in server.asked if not one.metadata_only] == [STATEFUL_SET]


def test_a_cluster_that_does_not_serve_a_kind_has_none_of_it() -> None:
    assert found(Server(errors={"NetworkPolicy": NotFoundError(CALL, "no such kind", code=404)})) == ()


def test_claims_that_may_not_be_listed_are_left_out_and_it_is_said() -> None:
    refused = ForbiddenError(CALL, "may not", code=403)
    told: list[str] = []
    listed = found(Server({kind.name: [item("a")] for kind in KINDS}, {CLAIM.name: refused}), told)
    assert CLAIM not in {one.kind for one in listed}
    assert told == ["list things: may not"]
    with pytest.raises(ForbiddenError):
        found(Server(errors={SECRET.name: refused}))


def test_running_pods_are_counted() -> None:
    (one,) = found(Server({"StatefulSet": [item("a", status={"replicas": 3})]}))
    assert one.pods == 3


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
    one = remain(STATEFUL_SET, item("a", home="h\x1b[2J"))
    assert one is not None
    assert one.home.isprintable()


def test_each_deletion_has_a_uid_and_one_that_fails_keeps_no_other() -> None:
    errors: dict[str, ApiError] = {
        "a": UnansweredError(CALL, "no answer"),
        "b": NotFoundError(CALL, "gone", code=404),
        "c": ConflictError(CALL, "another uid", code=409),
        "d": InvalidError(CALL, "refused", code=422),
    }
    server = Server(errors=errors)
    problems = asyncio.run(deleted(cast("Api", server), [left(name) for name in "abcde"]))
    assert {one.name: why for one, why in problems.items()} == {
        "a": "list things: no answer",
        "d": "list things: refused",
    }
    assert server.deletions == [(STATEFUL_SET, "learners", name, {"uid": f"uid-{name}"}) for name in "abcde"]
