"""An upgraded operator restarts no pod: templates stay until no pod runs or the user changes a setting in them."""

from typing import Any

import pytest

from diloco_operator.cluster.errors import ApiError, Call, of_status
from diloco_operator.manifests import learners, syncer
from testbed.virtual_cluster.cluster_world import NAMESPACE, ClusterWorld
from testbed.virtual_cluster.world_pods import crashed
from tests.unit.operator.training_cluster import training

Uids = dict[str, str]


def pods(world: ClusterWorld) -> Uids:
    return {name: pod["metadata"]["uid"] for name, pod in world.api.pods.pods.items()}


def pool_of(world: ClusterWorld, region: str) -> Uids:
    return {name: uid for name, uid in pods(world).items() if region in name}


def upgraded(monkeypatch: pytest.MonkeyPatch, world: ClusterWorld) -> None:
    """A new version of the operator, whose templates have another constant."""
    monkeypatch.setattr(learners, "GRACE_SECONDS", learners.GRACE_SECONDS + 1)
    monkeypatch.setattr(syncer, "GRACE_SECONDS", syncer.GRACE_SECONDS + 1)
    world.new_operator()


def grace_seconds(world: ClusterWorld) -> set[int]:
    sets = [*world.of_kind("StatefulSet").values(), *world.of_kind("Deployment").values()]
    return {item["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] for item in sets}


def test_another_constant_in_the_templates_restarts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    w = training()
    before, grace = pods(w), grace_seconds(w)
    upgraded(monkeypatch, w)
    w.run(120)
    assert pods(w) == before
    assert grace_seconds(w) == grace
    assert w.condition("Degraded")["status"] == "False"
    w.api.writes.clear()
    w.run(60)
    assert {verb for verb, *_ in w.api.writes} <= {"status"}


def test_the_next_start_is_with_the_new_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    w = training()
    upgraded(monkeypatch, w)
    w.run(10)
    w.change(suspend=True)
    w.run(90)
    w.change(suspend=False)
    w.run(60)
    assert grace_seconds(w) == {learners.GRACE_SECONDS, syncer.GRACE_SECONDS}
    assert w.status()["phase"] == "Training"


def test_changed_resources_restart_their_own_pool_with_the_new_template(monkeypatch: pytest.MonkeyPatch) -> None:
    w = training()
    upgraded(monkeypatch, w)
    w.run(10)
    before = pods(w)
    w.change_pool(region=1, resources={"limits": {"cpu": "2"}})
    w.run(120)
    after = pods(w)
    changed = {name for name in before if after.get(name) != before[name]}
    assert changed == {name for name in before if "us-west" in name}


def test_pods_are_scaled_while_their_template_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    w = training()
    upgraded(monkeypatch, w)
    w.run(10)
    before = pool_of(w, "us-west")
    w.change_pool(region=1, learners=5)
    w.run(60)
    assert len(pool_of(w, "us-west")) == 5
    assert before.items() <= pool_of(w, "us-west").items()
    w.change_pool(region=1, learners=1)
    w.run(60)
    assert len(pool_of(w, "us-west")) == 1


def test_a_limit_that_was_taken_away_is_a_change_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    w = training()
    w.change_pool(region=1, resources={"limits": {"cpu": "2", "memory": "1Gi"}})
    w.run(120)
    upgraded(monkeypatch, w)
    w.change_pool(region=1, resources={"limits": {"cpu": "2"}})
    w.run(120)
    (west,) = [item for name, item in w.of_kind("StatefulSet").items() if "us-west" in name]
    assert west["spec"]["template"]["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "2"}}


def forbids_pods_to_be_deleted(verb: str, kind: str, name: str, _body: Any) -> ApiError | None:
    call = Call(verb, kind, NAMESPACE, name)
    return of_status(call, 403, {"message": "forbidden"}) if (verb, kind) == ("delete", "Pod") else None


def test_a_change_of_resources_held_up_by_a_given_up_learner_is_reported() -> None:
    """Without the right to delete pods, the operator cannot hold its pod back, and the controller waits for it."""
    w = training()
    last = next(name for name in w.pods_of("learner") if name.endswith("-2"))
    w.api.pods.troubles[last] = crashed(3, "given up")
    w.syncers["demo"].given_up = {"us-west/old/2"}
    w.api.failing = forbids_pods_to_be_deleted
    w.change_pool(region=1, resources={"limits": {"cpu": "2"}})
    w.run(120)
    message = w.condition("Degraded")["message"]
    assert w.condition("Degraded")["reason"] == "LearnersGivenUp"
    expected = "2 of 3 learners of us-west/old do not have the new template yet: other pods of the pool are not ready"
    assert expected in message


def syncer_resources(world: ClusterWorld) -> dict[str, Any]:
    (deployment,) = world.of_kind("Deployment").values()
    found: dict[str, Any] = deployment["spec"]["template"]["spec"]["containers"][0].get("resources", {})
    return found


def test_a_running_syncer_gets_no_default_requests_before_its_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(syncer, "DEFAULT_REQUESTS", {})
        w = training()
        assert syncer_resources(w) == {}
    w.new_operator()
    before = pods(w)
    w.run(120)
    assert pods(w) == before
    assert syncer_resources(w) == {}
    w.change(suspend=True)
    w.run(90)
    w.change(suspend=False)
    w.run(60)
    assert syncer_resources(w) == {"requests": {"cpu": "100m", "memory": "256Mi"}}
