from typing import Any

import pytest

from diloco_operator import labels
from diloco_operator.decide.sweep import Orphan, orphans


def made(*, uid: str = "gone", home: str = "home-1", namespace: str = "team", **metadata: Any) -> dict[str, Any]:
    own = {**labels.of_job("demo", labels.LEARNER), **labels.of_home(home, namespace, uid)}
    return {"kind": "StatefulSet", "metadata": {"name": "demo--far-new", "uid": "its-own", "labels": own, **metadata}}


ORPHAN = Orphan("StatefulSet", "demo--far-new", "its-own", "team/demo")


OTHERS: dict[str, dict[str, Any]] = {
    "another home's": made(home="home-2"),
    "of no home": made(home=""),
    "of no job": made(uid=""),
    "of no namespace": made(namespace=""),
    "being deleted": made(deletionTimestamp="2026-01-02T03:04:05Z"),
    "without a uid": made(uid="gone") | {"metadata": {**made()["metadata"], "uid": ""}},
    "without labels": made(labels=None),
    "with a list for labels": made(labels=["diloco.dev/home=home-1"]),
    "made by others": made(labels={**made()["metadata"]["labels"], labels.MANAGED_BY: "Helm"}),
    "without metadata": {"kind": "StatefulSet", "metadata": None},
    "of a job whose name leads elsewhere": made(labels={**made()["metadata"]["labels"], labels.JOB: "../secrets"}),
    "of a namespace of two lines": made(namespace="x\nforged line"),
}


@pytest.mark.parametrize("which", OTHERS)
def test_what_is_not_surely_ours_is_left_alone(which: str) -> None:
    assert orphans([("StatefulSet", OTHERS[which])], "home-1", set(), ()) == ()


@pytest.mark.parametrize(
    ("home", "jobs", "namespaces", "found"),
    [
        ("home-1", set(), (), (ORPHAN,)),
        ("home-1", {"gone"}, (), ()),
        ("home-1", set(), ("other", "team"), (ORPHAN,)),
        ("home-1", set(), ("other",), ()),
        ("", set(), (), ()),
    ],
    ids=["no such job", "its job is there", "watched", "not watched", "a home without an id"],
)
def test_objects_whose_job_is_in_no_list_are_orphans(
    home: str, jobs: set[str], namespaces: tuple[str, ...], found: tuple[Orphan, ...]
) -> None:
    assert orphans([("StatefulSet", made())], home, jobs, namespaces) == found
