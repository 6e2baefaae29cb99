"""An upgraded operator restarts no pod: templates stay until no pod runs or the user changes a setting in them."""

from dataclasses import replace
from typing import Any

import pytest

from diloco_operator.api_server.errors import ApiError, Call, of_status
from diloco_operator.manifests import learners, syncer
from testbed.virtual_cluster.cluster_world import NAMESPACE, ClusterWorld
from testbed.virtual_cluster.world_pods import crashed
from tests.unit.operator.jobs.training_cluster import training, uids

NEWER = "registry.example/diloco:newer"


def pool_of(world: ClusterWorld, region: str) -> dict[str, str]:
    return {name: uid for name, uid in uids(world).items() if region in name}


def upgraded(monkeypatch: pytest.MonkeyPatch, world: ClusterWorld) -> None:
    """A new version of the operator, with another constant in its templates and another default image."""
    monkeypatch.setattr(learners, "GRACE_SECONDS", learners.GRACE_SECONDS + 1)
    monkeypatch.setattr(syncer, "GRACE_SECONDS", syncer.GRACE_SECONDS + 1)
    world.new_operator(replace(world.options, trainer_image=NEWER))


def templates(world: ClusterWorld) -> set[tuple[int, str]]:
    """The constant and the image of every template."""
    sets = [*world.home.of_kind("StatefulSet").values(), *world.home.of_kind("Deployment").values()]
    pods = [item["spec"]["template"]["spec"] for item in sets]
    return {(pod["terminationGracePeriodSeconds"], pod["containers"][0]["image"]) for pod in pods}


def test_another_constant_or_default_image_restarts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    w = training()
    before, made = uids(w), templates(w)
    upgraded(monkeypatch, w)
    w.run(120)
    assert uids(w) == before
    assert templates(w) == made
    assert w.condition("Degraded")["status"] == "False"


def test_the_next_start_is_with_the_new_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    w = training()
    upgraded(monkeypatch, w)
    w.run(10)
    w.change(suspend=True)
    w.run(90)
    w.change(suspend=False)
    w.run(60)
    assert templates(w) == {(learners.GRACE_SECONDS, NEWER), (syncer.GRACE_SECONDS, NEWER)}
    assert w.status()["phase"] == "Training"


def test_changed_resources_restart_their_own_pool_with_the_new_template(monkeypatch: pytest.MonkeyPatch) -> None:
    w = training()
    upgraded(monkeypatch, w)
    w.run(10)
    before = uids(w)
    w.change_pool(region=1, resources={"limits": {"cpu": "2"}})
    w.run(120)
    after = uids(w)
    changed = {name for name in before if after.get(name) != before[name]}
    assert changed == {name for name in before if "us-west" in name}
    assert NEWER not in {image for _, image in templates(w)}, "all of a running job keeps its default image"
    told = [(one["type"], one["note"]) for one in w.api.events if one["reason"] == "RolloutStarted"]
    text = "StatefulSet demo--us-west-old: pods are replaced, because their template was changed"
    assert told == [("Normal", text)]


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
    left = pool_of(w, "us-west")
    assert len(left) == 1
    assert left.items() <= before.items()
    told = [(one["type"], one["note"]) for one in w.api.events if one["reason"] in ("PoolScaled", "RolloutStarted")]
    assert told == [("Normal", f"learners of us-west/old from {counts}") for counts in ("3 to 5", "5 to 1")]


def test_a_limit_that_was_taken_away_is_a_change_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    w = training()
    w.change_pool(region=1, resources={"limits": {"cpu": "2", "memory": "1Gi"}})
    w.run(120)
    upgraded(monkeypatch, w)
    w.change_pool(region=1, resources={"limits": {"cpu": "2"}})
    w.run(120)
    (west,) = [item for name, item in w.home.of_kind("StatefulSet").items() if "us-west" in name]
    assert west["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "2"}


def forbids_pods_to_be_deleted(verb: str, kind: str, name: str, _body: Any) -> ApiError | None:
    call = Call(verb, kind, NAMESPACE, name)
    return of_status(call, 403, {"message": "forbidden"}) if (verb, kind) == ("delete", "Pod") else None


def test_a_change_of_resources_held_up_by_a_given_up_learner_is_reported() -> None:
    """Without the right to delete pods, the operator cannot hold its pod back, and the controller waits for it."""
    w = training()
    last = next(name for name in w.home.pods_of("learner", "demo") if name.endswith("-2"))
    w.pods.troubles[last] = crashed(3, "given up")
    w.syncers["demo"].given_up = {"us-west/old/2"}
    w.api.failing = forbids_pods_to_be_deleted
    w.change_pool(region=1, resources={"limits": {"cpu": "2"}})
    w.run(120)
    message = w.condition("Degraded")["message"]
    assert w.condition("Degraded")["reason"] == "LearnersGivenUp"
    expected = "2 of 3 learners of us-west/old do not have the new template yet: other pods of the pool are not ready"
    assert expected in message
