"""What is swept from another cluster: objects of this home's jobs that are gone, and nothing else."""

from typing import Any

import pytest

from diloco_operator import labels
from diloco_operator.decide.sweep import Orphan, SweptJob, orphans, suspects

JOB = SweptJob("team", "demo")


def made(*, uid: str = "gone", home: str = "home-1", namespace: str = "team", **metadata: Any) -> dict[str, Any]:
    own = {**labels.of_job("demo", labels.LEARNER), **labels.of_home(home, namespace, uid)}
    return {"kind": "StatefulSet", "metadata": {"name": "demo--far-new", "uid": "its-own", "labels": own, **metadata}}


ORPHAN = Orphan("StatefulSet", "demo--far-new", "its-own", JOB, "gone")


def test_an_object_whose_job_is_unknown_and_not_found_is_an_orphan() -> None:
    found = suspects([made(), made(uid="alive")], "home-1", {"alive"}, ())
    assert found == (ORPHAN,)
    assert orphans(found, {JOB: None}) == (ORPHAN,)


def test_a_job_of_the_same_name_with_another_uid_does_not_keep_it() -> None:
    assert orphans([ORPHAN], {JOB: "its successor"}) == (ORPHAN,)


def test_a_job_that_the_list_did_not_have_yet_keeps_its_objects() -> None:
    assert orphans([ORPHAN], {JOB: "gone"}) == ()


def test_a_job_that_could_not_be_asked_for_keeps_its_objects() -> None:
    assert orphans([ORPHAN], {}) == ()
    assert orphans([ORPHAN], {SweptJob("other", "demo"): None}) == ()


def test_nothing_is_swept_before_the_list_of_jobs_is_whole() -> None:
    assert suspects([made()], "home-1", None, ()) == ()
    assert suspects([made()], "home-1", set(), ()) == (ORPHAN,)


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
}


@pytest.mark.parametrize("which", OTHERS)
def test_what_is_not_surely_ours_is_left_alone(which: str) -> None:
    assert suspects([OTHERS[which]], "home-1", set(), ()) == ()


def test_without_an_id_no_home_sweeps() -> None:
    assert suspects([made(home="")], "", set(), ()) == ()


def test_jobs_of_namespaces_that_are_not_watched_are_anothers() -> None:
    assert suspects([made()], "home-1", set(), ("other",)) == ()
    assert suspects([made()], "home-1", set(), ("other", "team")) == (ORPHAN,)
