"""Whatever happens to other clusters, home's work is the same, and nothing of others is touched.

The world checks every write: none goes to a cluster that does not answer or to an object of somebody else, and nothing
is created elsewhere before the job has its finalizer.
"""

import copy
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from diloco_operator import labels
from diloco_operator.cluster_state import ClusterState
from testbed.virtual_cluster.clusters_world import FAR, FARTHER, ClustersWorld, clusters_job
from testbed.virtual_cluster.world_pods import Object
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable

OTHER_JOB = "another-job"
"""The uid of a job of the same name, in another namespace of the same home."""

clusters = st.sampled_from([FAR, FARTHER])
to_clusters = st.one_of(
    st.tuples(st.just("state"), st.tuples(clusters, st.sampled_from(list(ClusterState)))),
    st.tuples(st.just("refuses"), st.tuples(clusters, st.booleans())),
    st.tuples(st.just("stranger"), st.tuples(clusters, st.sampled_from(["Secret", "ConfigMap", "StatefulSet"]))),
    st.tuples(st.just("taken over"), st.tuples(clusters, st.integers(0, 3))),
    st.tuples(st.just("lost"), st.tuples(clusters, st.integers(0, 3))),
    st.tuples(st.just("changed"), st.tuples(clusters, st.integers(0, 3))),
    st.tuples(st.just("new operator"), st.none()),
)
times = st.one_of(
    st.tuples(st.just("run"), st.sampled_from([5.0, 30.0])),
    st.tuples(st.just("hours"), st.none()),
    st.tuples(st.just("killed"), st.integers(0, 8)),
)
to_jobs = st.one_of(
    st.tuples(st.just("suspend"), st.booleans()),
    st.tuples(st.just("scale"), st.tuples(st.integers(0, 2), st.integers(1, 3))),
    st.tuples(st.just("finish"), st.none()),
)


def happens(w: ClustersWorld, what: str, value: Any) -> None:
    acts: dict[str, Callable[[], object]] = {
        "state": lambda: setattr(w.others[value[0]], "state", value[1]),
        "refuses": lambda: setattr(w.others[value[0]], "refuses", value[1]),
        "stranger": lambda: w.others[value[0]].put(_strangers(value[1], "somebody's")),
        "taken over": lambda: _taken_over(w, *value),
        "lost": lambda: _lost(w, *value),
        "changed": lambda: _changed(w, *value),
        "new operator": w.new_operator,
        "run": lambda: w.run(value),
        "hours": lambda: w.run(3600.0, every=600.0),
        "killed": lambda: w.reconcile(value),
        "suspend": lambda: w.change(suspend=value),
        "scale": lambda: w.scale(*value),
        "finish": lambda: setattr(w.syncer, "merged", float(w.syncer.budget)),
    }
    acts[what]()


def _strangers(kind: str, name: str) -> Object:
    """An object of the same home's other job."""
    own = {**labels.of_job("demo", labels.LEARNER), **labels.of_home("home-1", "other-team", OTHER_JOB)}
    spec = {"replicas": 1, "template": {"metadata": {"labels": own}, "spec": {}}}
    return {
        "kind": kind,
        "metadata": {"name": name, "labels": own},
        **({"spec": spec} if kind == "StatefulSet" else {}),
    }


def _small(w: ClustersWorld, cluster: str) -> list[tuple[str, str]]:
    """The job's objects there without sets, whose deletion takes pods with it."""
    objects = w.others[cluster].objects
    ours = [key for key, one in objects.items() if one["metadata"]["labels"].get(labels.JOB_UID) == w.uid]
    return sorted(key for key in ours if key[0] != "StatefulSet")


def _taken_over(w: ClustersWorld, cluster: str, index: int) -> None:
    if found := _small(w, cluster):
        kind, name = found[index % len(found)]
        w.others[cluster].delete(kind, name)
        w.others[cluster].put(_strangers(kind, name))


def _lost(w: ClustersWorld, cluster: str, index: int) -> None:
    if found := _small(w, cluster):
        w.others[cluster].delete(*found[index % len(found)])


def _changed(w: ClustersWorld, cluster: str, index: int) -> None:
    if found := _small(w, cluster):
        w.others[cluster].objects[found[index % len(found)]].pop("data", None)


def theirs(w: ClustersWorld) -> dict[str, dict[tuple[str, str], Object]]:
    return {
        name: {
            # A set's controller writes its status, which has a version too.
            key: copy.deepcopy({**one, "status": None, "metadata": one["metadata"] | {"resourceVersion": ""}})
            for key, one in other.objects.items()
            if one["metadata"]["labels"].get(labels.JOB_UID) != w.uid
        }
        for name, other in w.others.items()
    }


def at_home(w: ClustersWorld) -> dict[str, Any]:
    specs = {key: copy.deepcopy(one.get("spec")) for key, one in w.home.objects.items()}
    return {"objects": specs, "pods": {name: pod["metadata"]["uid"] for name, pod in w.pods.pods.items()}}


@settings(max_examples=examples(12))
@given(st.lists(st.one_of(to_clusters, times), min_size=1, max_size=12))
def test_home_and_learners_are_the_same_whatever_becomes_of_others(life: list[tuple[str, Any]]) -> None:
    w = ClustersWorld(job=clusters_job(tokens=10**12), other_jobs=frozenset({OTHER_JOB}))
    w.run(40)
    home, running = at_home(w), w.running_abroad()
    for what, value in life:
        strangers = theirs(w)
        happens(w, what, value)
        if what in ("run", "hours", "killed"):
            assert theirs(w) == strangers
        assert at_home(w) == home
        assert w.running_abroad() == running
        assert w.status["phase"] == "Training"
        assert w.status["learners"]["summary"] == "4/4"


@settings(max_examples=examples(12))
@given(st.lists(st.one_of(to_clusters, times, to_jobs), min_size=1, max_size=12), st.sampled_from([20.0, 700.0]))
def test_once_all_is_back_a_deleted_job_has_left_and_taken_nothing(
    life: list[tuple[str, Any]], away_seconds: float
) -> None:
    w = ClustersWorld(job=clusters_job(tokens=10**12), other_jobs=frozenset({OTHER_JOB}))
    w.run(40)
    for what, value in life:
        happens(w, what, value)
    strangers = theirs(w)
    w.delete_job()
    w.run(away_seconds, every=20.0)
    for other in w.others.values():
        other.state, other.refuses = ClusterState.READY, False
    w.run(700.0, every=20.0)
    assert w.gone
    w.sweep()
    assert theirs(w) == strangers
    assert [other.running(w.uid) for other in w.others.values()] == [frozenset(), frozenset()]
    left = [key for name, other in w.others.items() for key in other.objects if key not in strangers[name]]
    assert left == []


@settings(max_examples=examples(12))
@given(st.lists(st.one_of(to_clusters, times, to_jobs), min_size=1, max_size=12))
def test_once_all_is_back_the_job_is_as_it_should_be(life: list[tuple[str, Any]]) -> None:
    w = ClustersWorld(job=clusters_job(tokens=10**12), other_jobs=frozenset({OTHER_JOB}))
    for what, value in life:
        happens(w, what, value)
    for name, other in w.others.items():
        other.state, other.refuses = ClusterState.READY, False
        for key in theirs(w)[name]:
            other.delete(*key)
    w.run(200)
    phase, suspended = w.status["phase"], w.job["spec"].get("suspend")
    assert phase in ("Complete", "Suspended" if suspended else "Training")
    assert w.condition("Degraded")["status"] == "False"
    if phase == "Training":
        assert w.status["learners"]["training"] == w.status["learners"]["desired"]
    else:
        assert not any(other.pods.pods for other in w.others.values())
    w.reconcile()
    plan = w.plan()
    assert (plan.apply, plan.scale, plan.delete, plan.status) == ((), (), (), None)
