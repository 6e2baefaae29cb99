"""Whatever is observed of pods, claims and the syncer, only pods that may go are deleted by force.

The plans here are of the whole `reconcile`, for jobs that run, are suspended, have ended,
or cannot be read.
"""

import copy
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from diloco.spec.status.engine import LearnerState
from diloco_operator.decide.learners.lost_pods import MOST_AT_ONCE, SYNCER_STOPPED
from diloco_operator.decide.observed import ChildKey, Observed, PodList, PodObserved, SyncerAway, SyncerStatusView
from diloco_operator.decide.plan import Plan
from diloco_operator.decide.reconcile import reconcile
from diloco_operator.signing import RandomCertificateMaker
from testbed.virtual_cluster.operator_world import World
from testbed.virtual_cluster.world_pods import Object, stamp
from tests.support.examples import examples
from tests.unit.operator.decide.training_world import training_world

LEARNERS = {
    "demo--us-east-new-0": "us-east/new/0",
    **{f"demo--us-west-old-{index}": f"us-west/old/{index}" for index in range(3)},
}
LONG_AGO, NOT_YET = -100_000, 100_000
MODES = ("ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod", "ReadWriteSometimes")
SHARED = {"ReadWriteMany", "ReadOnlyMany"}
UNREADABLE = {"sharding": {"ways": 4}}
"""A field of a later version."""

ends = st.sampled_from([None, NOT_YET, -59, -61, LONG_AGO])
"""When a pod's grace period ends, in seconds from now; None: it is not being deleted."""
states = st.dictionaries(
    st.sampled_from(sorted(LEARNERS.values())), st.sampled_from([*LearnerState, "Dreaming"]), max_size=4
)
claims = st.dictionaries(st.sampled_from(["a", "b"]), st.lists(st.sampled_from(MODES), max_size=2).map(tuple))
pods = st.fixed_dictionaries(
    {
        "ends": ends,
        "claim": st.sampled_from([None, None, "a", "b", "unknown"]),
        "finalizers": st.sampled_from([[], [], ["example.com/keep"]]),
        "owner": st.sampled_from(["its set", "its set", "a stranger"]),
    }
)


@cache
def trained() -> World:
    return training_world()


def seen(w: World, name: str, pod: Mapping[str, Any]) -> PodObserved:
    """A pod of the world, as far as it goes by ``pod``."""
    found: Object = copy.deepcopy(w.pods.pods[name])
    metadata = found["metadata"]
    if pod["ends"] is not None:
        metadata["deletionTimestamp"] = stamp(w.now + timedelta(seconds=pod["ends"]))
    if pod["claim"]:
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": pod["claim"]}}
        found["spec"] = {**found["spec"], "volumes": [volume]}
    metadata["finalizers"] = pod["finalizers"]
    if pod["owner"] == "a stranger":
        metadata["ownerReferences"] = [{"uid": "another", "kind": "Job", "name": "x", "controller": True}]
    return PodObserved(found)


def planned(w: World, observed: Observed, annotation: str, spec: Mapping[str, Any], *, over: bool) -> Plan:
    job = copy.deepcopy(w.job)
    job["spec"] |= spec
    job["metadata"]["annotations"] = {SYNCER_STOPPED: annotation} if annotation else {}
    if over:
        job["status"]["progress"]["tokens"] = job["spec"]["training"]["tokens"]
        for condition in job["status"]["conditions"]:
            condition["status"] = "True" if condition["type"] == "Complete" else "False"
    return reconcile(job, observed, w.now, w.options, RandomCertificateMaker())


scenes = st.fixed_dictionaries(
    {
        "learners": st.fixed_dictionaries(dict.fromkeys(LEARNERS, pods)),
        "syncer ends": ends,
        "states": st.one_of(st.none(), states),
        "claims": claims,
        "annotation": st.sampled_from(["", "another uid", "the pod's"]),
        # A later version may have other actions.
        "action": st.sampled_from(["Replace", "Replace", "Wait", "Later"]),
        "life": st.sampled_from(["runs", "is suspended", "is over"]),
        "readable": st.booleans(),
        "forbidden": st.booleans(),
    }
)


@settings(max_examples=examples(150))
@given(scenes)
def test_only_pods_that_may_go_are_deleted(scene: dict[str, Any]) -> None:
    learners, syncer_ends, states, claims = (scene[name] for name in ("learners", "syncer ends", "states", "claims"))
    action, life, forbidden = scene["action"], scene["life"], scene["forbidden"]
    w = trained()
    (syncer,) = w.pods_of("syncer")
    syncer_uid = str(w.pods.pods[syncer]["metadata"]["uid"])
    said = syncer_uid if scene["annotation"] == "the pod's" else scene["annotation"]
    plain = {"ends": syncer_ends, "claim": None, "finalizers": [], "owner": "its set"}
    view: SyncerStatusView | SyncerAway = SyncerAway("no answer within 3 s")
    if states is not None:
        reports = [{"id": learner, "state": state} for learner, state in states.items()]
        view = SyncerStatusView.model_validate({**w.syncer.status(), "learners": reports})
    observed = replace(
        w.observed(),
        looked=PodList(
            tuple(seen(w, name, pod) for name, pod in [*learners.items(), (syncer, plain)]),
            claims={ChildKey("PersistentVolumeClaim", name): modes for name, modes in claims.items()},
        ),
        syncer=view,
        pods_forbidden=frozenset({""}) if forbidden else frozenset(),
    )
    spec: dict[str, Any] = {"suspend": life == "is suspended", "failurePolicy": {"lostPods": {"action": action}}}
    spec |= {} if scene["readable"] else UNREADABLE
    plan = planned(w, observed, said, spec, over=life == "is over")

    assert len(plan.delete_pods) <= MOST_AT_ONCE
    assert len({one.uid for one in plan.delete_pods}) == len(plan.delete_pods)
    assert all(one.uid == w.pods.pods[one.child.name]["metadata"]["uid"] for one in plan.delete_pods)
    deleted = {one.child.name for one in plan.delete_pods}
    if syncer in deleted:
        assert said == syncer_uid
        assert syncer_ends in (-61, LONG_AGO)
    for name in deleted & LEARNERS.keys():
        pod = learners[name]
        assert action == "Replace"
        assert states is not None, "the syncer is there, and was not heard"
        assert states.get(LEARNERS[name], LearnerState.ABSENT) in (LearnerState.ABSENT, LearnerState.GIVEN_UP)
        assert pod["ends"] in (-61, LONG_AGO)
        assert pod["owner"] == "its set"
        assert not pod["finalizers"]
        assert pod["claim"] is None or (claims.get(pod["claim"]) and set(claims[pod["claim"]]) <= SHARED)
    if forbidden:
        assert not deleted


@settings(max_examples=examples(60))
@given(st.sets(st.sampled_from(sorted(LEARNERS))), st.sampled_from(["runs", "is suspended", "is over"]), st.booleans())
def test_every_absent_learners_pod_is_deleted_once(lost: set[str], life: str, readable: bool) -> None:
    w = trained()
    (syncer,) = w.pods_of("syncer")
    there: dict[str, Any] = {"ends": None, "claim": None, "finalizers": [], "owner": "its set"}
    gone = {**there, "ends": -61}
    given = [*((name, gone if name in lost else there) for name in LEARNERS), (syncer, there)]
    view = SyncerStatusView.model_validate({**w.syncer.status(), "learners": []})
    observed = replace(w.observed(), looked=PodList(tuple(seen(w, *one) for one in given)), syncer=view)
    spec: dict[str, Any] = {"suspend": life == "is suspended"} | ({} if readable else UNREADABLE)
    plan = planned(w, observed, "", spec, over=life == "is over")
    assert sorted(one.child.name for one in plan.delete_pods) == sorted(lost)
    assert {one.reason for one in plan.delete_pods} <= {"LostPodDeleted"}
