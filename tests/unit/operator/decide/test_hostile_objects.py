"""Whatever another cluster's server sends as a job's objects, a reconcile raises nothing: it is refused or harmless."""

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from diloco_operator.api_server.intake import UnreadableError, received
from diloco_operator.api_server.kinds import CORE_EVENT, POD, REMOTE_CHILDREN, Kind
from diloco_operator.decide.observed import Object, PodList, PodObserved
from diloco_operator.decide.reconcile import reconcile
from diloco_operator.jobs.observe.pods import slim_pod
from diloco_operator.signing import RandomCertificateMaker
from testbed.virtual_cluster.clusters_world import FAR, ClustersWorld
from testbed.virtual_cluster.world_pods import crashed
from tests.support.examples import examples

NAMESPACE = "theirs"
KINDS = {kind.name: kind for kind in REMOTE_CHILDREN}
ODD: tuple[Any, ...] = (
    *("", "x", "9" * 5000, "2026-13-45T99:99:99Z", "half a character: \ud800"),
    *(-1, 2**62, 2**70, 1.5, float("nan"), True, None),
    *([], {}, [None], [[]], [{}], {"a": {}}, {"a": ["b"]}, [{"name": {}}]),
)
UNSCHEDULED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
PULLING = {"name": "learner", "image": "i", "ready": False, "state": {"waiting": {"reason": "ImagePullBackOff"}}}
RUNNING = {"name": "learner", "ready": True, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
STATUSES: tuple[Object, ...] = (
    crashed(3, "torch is not there"),
    {"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"},
    {"phase": "Pending", "conditions": [UNSCHEDULED]},
    {"phase": "Pending", "containerStatuses": [PULLING]},
    {"phase": "Running", "containerStatuses": [RUNNING]},
)


@cache
def training() -> ClustersWorld:
    w = ClustersWorld()
    w.run(40)
    return w


@cache
def refused() -> ClustersWorld:
    """Its manifest cannot be carried out, and a learner there is given up."""
    w = ClustersWorld()
    w.run(40)
    w.change(sharding={"ways": 4})
    w.syncer.given_up = {"far/new/0"}
    w.run(10)
    assert w.status["phase"] == "Invalid"
    return w


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*at, key))


def put(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return new
    changed = copy.copy(value)
    changed[at[0]] = put(value[at[0]], at[1:], new)
    return changed


def let_in(data: st.DataObject, kind: Kind, item: Object) -> Object:
    """`item` as it comes in, with something odd in several places, as far as that comes in."""
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.sampled_from([place for place in places(item) if place]))
        with contextlib.suppress(UnreadableError):
            item = received(kind, NAMESPACE, put(item, at, data.draw(st.sampled_from(ODD))))
    return item


def stored(item: Object) -> Object:
    return {**item, "metadata": {**item["metadata"], "namespace": NAMESPACE, "resourceVersion": "7"}}


@settings(max_examples=examples(100))
@given(st.data())
def test_an_object_that_comes_in_makes_no_reconcile_raise(data: st.DataObject) -> None:
    w = data.draw(st.sampled_from([training, refused]))()
    other = w.others[FAR]
    key = data.draw(st.sampled_from(sorted(other.objects)))
    item = other.objects[key]
    other.objects[key] = let_in(data, KINDS[key[0]], stored(item))
    try:
        reconcile(w.job, w.observed(), w.now, w.options, RandomCertificateMaker())
    finally:
        other.objects[key] = item


@settings(max_examples=examples(100))
@given(st.data())
def test_a_pod_or_event_that_comes_in_makes_no_reconcile_raise(data: st.DataObject) -> None:
    w = data.draw(st.sampled_from([training, refused]))()
    pod = next(iter(w.others[FAR].pods.pods.values()))
    pod = stored({**pod, "status": data.draw(st.sampled_from(STATUSES))})
    event = {
        "metadata": {"name": "e", "namespace": NAMESPACE, "uid": "e", "resourceVersion": "7"},
        "involvedObject": {"uid": pod["metadata"]["uid"]},
        "type": "Warning",
        "reason": "FailedMount",
        "message": "m",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    if data.draw(st.booleans()):
        pod = let_in(data, POD, pod)
    else:
        event = let_in(data, CORE_EVENT, event)
    observed = w.observed()
    assert observed.looked is not None
    pods = [one for one in observed.looked.pods if one.cluster != FAR]
    looked = PodList((*pods, PodObserved(slim_pod(pod), (event,), FAR)), observed.looked.events)
    reconcile(w.job, replace(observed, looked=looked), w.now, w.options, RandomCertificateMaker())
