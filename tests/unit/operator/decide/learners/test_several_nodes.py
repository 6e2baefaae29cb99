"""Learners of two nodes each: whatever happens to one of their pods, they count, end and come back as one."""

import base64
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from diloco.spec.names.learner_orders import FAILED_FILE, orders_in
from diloco_operator.decide.causes.bad_nodes import bad_node_causes
from diloco_operator.decide.objects.workloads import PoolWorkload
from diloco_operator.decide.observed import ChildKey, Object
from diloco_operator.decide.reconcile import needs_pods
from diloco_operator.manifests.placement.holds import creates_gated
from diloco_operator.names import PoolKey
from testbed.virtual_cluster.operator_world import World
from testbed.virtual_cluster.world_pods import crashed, crashing, running, stamp
from tests.unit.operator.decide.learners.units_world import POD, POOL, placed, pool, said, units_world
from tests.unit.operator.decide.training_world import degraded, lose


def uids(w: World) -> dict[int, str]:
    """The uids of its pods, by index."""
    found = {name.removeprefix(POD): pod["metadata"]["uid"] for name, pod in w.pods.pods.items() if POD in name}
    return {int(index): uid for index, uid in found.items()}


def crash(message: str, ended: float, w: World) -> Object:
    """The status of a pod whose container ended so many seconds ago."""
    status = crashed(1, message)
    at = stamp(w.now - timedelta(seconds=ended))
    status["containerStatuses"][0]["lastState"]["terminated"]["finishedAt"] = at
    return status


def test_a_healthy_job_counts_learners_and_needs_no_list_of_pods() -> None:
    w = units_world()
    assert w.set_named(POOL)["spec"]["replicas"] == 4
    assert w.status["learners"] == {"desired": 2, "ready": 2, "training": 2, "summary": "2/2"}
    assert (pool(w)["desired"], pool(w)["readyPods"], pool(w)["nodesPerLearner"]) == (2, 4, 2)
    assert not needs_pods(w.job, replace(w.observed(), looked=None), w.now, w.options)
    writes = w.home.writes
    w.run(30)
    assert w.home.writes == writes


def serves(w: World, name: str) -> bool:
    """Whether a pool's certificate is one of a server."""
    held = base64.b64decode(w.home.objects["Secret", f"demo--here-{name}-tls"]["data"]["tls.crt"])
    extensions = x509.load_pem_x509_certificate(held).extensions
    return ExtendedKeyUsageOID.SERVER_AUTH in extensions.get_extension_for_class(x509.ExtendedKeyUsage).value


def test_pods_that_reach_each_other_have_certificates_of_servers() -> None:
    w = units_world(then=1)
    assert [serves(w, name) for name in ("big", "small")] == [True, False]


def test_a_learner_is_ready_if_all_its_pods_are() -> None:
    w = units_world()
    w.pods.troubles |= {f"{POD}{index}": crash("RuntimeError: x", 5, w) for index in (1, 2)}
    w.run(60)
    assert (pool(w)["ready"], pool(w)["readyPods"]) == (0, 2)
    w.pods.troubles.clear()
    w.pods.troubles[f"{POD}2"] = w.pods.troubles[f"{POD}3"] = crash("RuntimeError: x", 5, w)
    w.run(60)
    assert (pool(w)["ready"], pool(w)["readyPods"]) == (1, 2)


def test_a_problem_counts_once_and_is_that_of_the_first_to_end() -> None:
    w = units_world()
    w.pods.troubles[f"{POD}2"] = crash("node 1 of this learner has ended", 5, w)
    w.pods.troubles[f"{POD}3"] = crash("CUDA error: uncorrectable ECC error", 6, w)
    w.run(30)
    text = f"pod {POD}3 of {POOL}/1 (node 1): exit code 1: CUDA error: uncorrectable ECC error"
    assert degraded(w) == ("True", "CrashLooping", f"1 of 2 learners of {POOL} crash-looping: {text}")


def test_a_lost_pod_is_replaced_and_its_learner_is_lost_once() -> None:
    w = units_world()
    before = uids(w)
    for index in (2, 3):
        lose(w, f"{POD}{index}")
    w.run(85)
    (text,) = said(w, "NodeLost")
    assert text.startswith(f"1 of 2 learners of {POOL} lost: node-1 does not respond; the operator replaces pod {POD}2")
    assert [one.whose for one in w.forced] == [f"{POOL}/1 (node 0)", f"{POOL}/1 (node 1)"]
    w.run(30)
    assert {index for index, uid in uids(w).items() if uid != before[index]} == {2, 3}
    assert w.status["learners"]["summary"] == "2/2"


def test_a_follower_that_is_lost_is_replaced_alone() -> None:
    w = units_world()
    before = uids(w)
    lose(w, f"{POD}3")
    w.run(120)
    assert {index for index, uid in uids(w).items() if uid != before[index]} == {3}
    assert degraded(w)[0] == "False"


def test_one_that_is_let_back_in_at_once_leaves_no_gate() -> None:
    w = units_world(2)
    before = uids(w)
    w.syncer.given_up = {f"{POOL}/1"}
    w.reconcile()
    assert creates_gated(w.set_named(POOL))
    w.syncer.given_up = set()
    w.run(30)
    assert not creates_gated(w.set_named(POOL))
    assert uids(w) == before


@pytest.mark.parametrize("why", ["given up", "excluded"])
def test_no_pod_of_a_learner_that_is_out_has_a_node(why: str) -> None:
    w = units_world(3)
    if why == "excluded":
        changed = [{"name": "here", "pools": [{**w.job["spec"]["regions"][0]["pools"][0], "excludedIndices": [1]}]}]
        w.change(regions=changed)
    else:
        w.syncer.given_up = {f"{POOL}/1"}
    w.run(120)
    assert placed(w) == [0, 1, 4, 5]
    assert pool(w)["held"] == 1
    assert pool(w).get("givenUp") == ([1] if why == "given up" else None)
    assert w.status["learners"]["ready"] == 2


def test_a_smaller_pool_loses_whole_learners() -> None:
    w = units_world(3)
    before = uids(w)
    w.scale(0, 2)
    w.run(60)
    assert uids(w) == {index: before[index] for index in range(4)}
    assert w.status["learners"]["summary"] == "2/2"


def test_a_changed_template_replaces_one_learner_after_the_other() -> None:
    w = units_world(2)
    before = uids(w)
    leaving: list[set[int]] = []
    changed = {**w.job["spec"]["regions"][0]["pools"][0], "resources": {"limits": {"memory": "2Gi"}}}
    w.change(regions=[{"name": "here", "pools": [changed]}])
    for _ in range(16):
        w.run(5)
        assert pool(w)["ready"] >= 1
        now = {int(name.removeprefix(POD)) for name, pod in w.pods.pods.items() if _leaves(name, pod)}
        leaving += [now] if now and now not in leaving[-1:] else []
    assert leaving == [{2, 3}, {0, 1}]
    assert set(uids(w).values()).isdisjoint(before.values())
    assert degraded(w)[0] == "False"


def _leaves(name: str, found: Object) -> bool:
    return POD in name and "deletionTimestamp" in found["metadata"]


def test_restarts_of_its_pods_count_once() -> None:
    w = units_world(2)
    w.change(failurePolicy={"maxRestartsPerLearner": 2})
    for index in (2, 3):
        w.pods.delete(f"{POD}{index}")
        w.pods.troubles[f"{POD}{index}"] = crash("CUDA error: invalid device ordinal", 5, w)
        w.pods.troubles[f"{POD}{index}"]["containerStatuses"][0]["restartCount"] = 2
    w.run(60)
    assert failed(w) == [], "each was restarted twice, because of one another"
    w.pods.troubles[f"{POD}3"]["containerStatuses"][0]["restartCount"] = 3
    w.pods.troubles[f"{POD}2"]["containerStatuses"][0]["restartCount"] = 3
    w.run(60)
    assert failed(w) == [f"{POOL}/1"]


def failed(w: World) -> list[str]:
    """The learners that the syncer is told to give up."""
    (config,) = w.home.of_kind("ConfigMap").values()
    return [one.learner for one in orders_in(config["data"].get(FAILED_FILE, ""))]


def test_the_learners_are_known_while_the_manifest_is_refused() -> None:
    w = units_world(2)
    w.syncer.given_up = {f"{POOL}/1"}
    w.run(60)
    w.change(model={})
    w.run(30)
    assert w.status["phase"] == "Invalid"
    assert (pool(w)["ready"], pool(w)["givenUp"], pool(w)["nodesPerLearner"]) == (1, [1], 2)


def test_two_pods_of_one_learner_do_not_speak_against_a_node() -> None:
    w = units_world(1)
    own = {index: {"metadata": {}, "spec": {"nodeName": node}, "status": status} for index, (node, status) in _on(w)}
    workload = PoolWorkload(PoolKey("here", "big"), ChildKey("StatefulSet", "big"), None, 3)
    assert len(bad_node_causes([(workload, own)], w.now)) == 1
    several = PoolWorkload(PoolKey("here", "big"), ChildKey("StatefulSet", "big"), None, 3, nodes=2)
    assert bad_node_causes([(several, own)], w.now) == []


def _on(w: World) -> Any:
    works, bad = running(w.now - timedelta(hours=1)), crashing(w.now)
    return enumerate([("a", bad), ("a", bad), ("b", works), ("c", works), ("d", works), ("e", works)])
