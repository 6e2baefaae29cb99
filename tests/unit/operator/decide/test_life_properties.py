"""Invariants hold whatever happens to a job, and wherever an operator is killed.

The world itself checks every plan that is carried out: the syncer is never stopped while learners have pods, foreign
objects are never touched, a job never ends in two ways. An operator in it remembers nothing from one plan to the next.
"""

from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from diloco_operator.decide.learners.unplaced import LONGEST_PAUSE
from diloco_operator.decide.plan import Plan
from testbed.virtual_cluster.operator_world import World, job_object
from testbed.virtual_cluster.world_pods import Object, crashed, unschedulable, waiting
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable

TROUBLES: dict[str, Object] = {
    "unschedulable": unschedulable("0/4 nodes are available: 4 Insufficient nvidia.com/gpu."),
    "image": waiting("ImagePullBackOff", "not found", image="r.example/none:1"),
    "bad input": crashed(2, "no data"),
    "loop": crashed(1, "ValueError: x"),
}
NODES = ("node-1", "node-2", "node-3")
SETS = ("demo--us-east-new", "demo--us-west-old", "demo-syncer")

ticks = st.tuples(st.just("tick"), st.sampled_from([1.0, 5.0, 60.0]))
reconciles = st.tuples(st.just("reconcile"), st.none())
killed = st.tuples(st.just("killed"), st.integers(0, 12))
changes = st.one_of(
    st.tuples(st.just("suspend"), st.booleans()),
    st.tuples(st.just("scale"), st.tuples(st.integers(0, 1), st.integers(1, 3))),
    st.tuples(st.just("trouble"), st.tuples(st.sampled_from(SETS), st.sampled_from([*TROUBLES, ""]))),
    st.tuples(st.just("reach"), st.sampled_from(["", "no answer within 3 s"])),
    st.tuples(st.just("delete child"), st.integers(0, 13)),
    st.tuples(st.just("replicas by hand"), st.integers(0, 4)),
    st.tuples(st.just("kill pod"), st.integers(0, 4)),
    st.tuples(st.just("lose pod"), st.integers(0, 4)),
    st.tuples(st.just("break nodes"), st.sets(st.sampled_from(NODES), max_size=2)),
    st.tuples(st.just("room"), st.sampled_from([None, 3, 5])),
    st.tuples(st.just("finish"), st.booleans()),
    st.tuples(st.just("spoil"), st.booleans()),
    st.tuples(st.just("budget"), st.sampled_from([1_000_000, 1_500_000])),
)
lives = st.lists(st.one_of(ticks, reconciles, killed, changes), min_size=1, max_size=25)


def empty(plan: Plan) -> bool:
    return not (plan.apply or plan.delete or plan.delete_pods or plan.delete_job or plan.status or plan.events)


def happens(w: World, what: str, value: Any) -> None:
    acts: dict[str, Callable[[], object]] = {
        "tick": lambda: w.tick(value),
        "reconcile": w.reconcile,
        "killed": lambda: w.reconcile(value),
        "suspend": lambda: w.change(suspend=value),
        "scale": lambda: w.scale(*value),
        "trouble": lambda: _trouble(w, *value),
        "reach": lambda: setattr(w, "unreachable", value),
        "delete child": lambda: _delete_child(w, value),
        "replicas by hand": lambda: _replicas(w, value),
        "kill pod": lambda: _kill_pod(w, value),
        "lose pod": lambda: _lose_pod(w, value),
        "break nodes": lambda: setattr(w.pods, "broken", set(value)),
        "room": lambda: setattr(w.pods, "room", value),
        "finish": lambda: _finish(w, complete=value),
        "spoil": lambda: _spoil(w, unreadable=value),
        "budget": lambda: w.change(training=w.job["spec"]["training"] | {"tokens": value}),
    }
    acts[what]()


def _trouble(w: World, name: str, trouble: str) -> None:
    w.pods.troubles.pop(name, None)
    if trouble:
        w.pods.troubles[name] = TROUBLES[trouble]


def _replicas(w: World, replicas: int) -> None:
    for key, number in (("StatefulSet", replicas), ("Deployment", min(1, replicas))):
        name = SETS[0] if key == "StatefulSet" else SETS[2]
        live = w.home.objects.get((key, name))
        if live is not None:
            live["spec"]["replicas"] = number
            live["metadata"]["generation"] += 1


def _kill_pod(w: World, index: int) -> None:
    names = sorted(w.pods.pods)
    if names:
        w.pods.delete(names[index % len(names)])


def _lose_pod(w: World, index: int) -> None:
    """A learner's node is lost: its pod is to go, and does not."""
    names = sorted(w.pods_of("learner"))
    if names:
        w.pods.stuck.add(names[index % len(names)])
        w.pods.delete(names[index % len(names)])


def _delete_child(w: World, index: int) -> None:
    # Not sets and the claim, whose deletion takes pods or the model with it.
    keys = sorted(key for key in w.home.objects if key[0] not in ("StatefulSet", "Deployment", "PersistentVolumeClaim"))
    if keys:
        del w.home.objects[keys[index % len(keys)]]


def _finish(w: World, *, complete: bool) -> None:
    if w.syncer.epoch and w.syncer.phase != "Waiting":
        if complete:
            w.syncer.merged = float(w.syncer.budget)
        elif w.syncer.phase == "Training":
            w.syncer.fails("too few learners are left")


def _spoil(w: World, *, unreadable: bool) -> None:
    """The spec has a field of a later version, or no longer."""
    w.job["spec"].pop("sharding", None)
    w.change(**({"sharding": {"ways": 4}} if unreadable else {}))


@settings(max_examples=examples(40))
@given(lives, st.booleans(), st.integers(1, 2))
def test_any_history_settles_and_reconciling_twice_gives_an_empty_plan(
    life: list[tuple[str, object]], elastic: bool, nodes: int
) -> None:
    job = job_object(tokens=1_000_000)
    job["spec"]["regions"][1]["pools"][0] |= {"nodesPerLearner": nodes} | ({"minimumLearners": 1} if elastic else {})
    w = World(job=job)
    w.pods.nodes, w.pods.nodes_per_learner = NODES, {"us-west/old": nodes}
    ended, steps = None, 0
    for what, value in life:
        happens(w, what, value)
        phase, before = w.status.get("phase"), steps
        steps = (w.status.get("progress") or {}).get("step", 0)
        assert steps >= before, "a step never goes back"
        goes_on = ended == "Complete" and w.job["spec"]["training"]["tokens"] > w.status["progress"]["tokens"]
        assert ended in (None, phase) or goes_on, "a finished job stays finished"
        ended = phase if phase in ("Complete", "Failed") else None
    w.pods.troubles.clear()
    w.pods.broken, w.pods.room = set(), None
    w.unreachable = ""
    _spoil(w, unreadable=False)
    w.run(150)
    if w.status["learners"]["desired"] and any(pool.get("unplaced") for pool in w.status["regions"][1]["pools"]):
        w.run(3 * LONGEST_PAUSE.total_seconds(), every=20)
    suspended = w.job["spec"].get("suspend")
    phase = w.status["phase"]
    assert phase in (("Suspended",) if suspended else ("Training",)) or phase in ("Complete", "Failed")
    assert bool(w.pods.pods) == (phase == "Training")
    assert w.condition("Degraded")["status"] == "False"
    w.reconcile()
    assert empty(w.plan())
