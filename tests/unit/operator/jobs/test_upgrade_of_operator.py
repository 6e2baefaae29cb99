"""An upgraded operator restarts no pod: templates stay until no pod runs or the user changes a setting in them."""

from dataclasses import replace
from typing import Any

import pytest

from diloco_operator.manifests import common, learners, syncer
from testbed.virtual_cluster.cluster_world import ClusterWorld
from tests.unit.operator.jobs.training_cluster import forbids_pods_to_be_deleted, training, uids

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


def test_changed_resources_restart_their_own_pool_with_other_constants(monkeypatch: pytest.MonkeyPatch) -> None:
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
    text = "StatefulSet demo--us-west-old: the template of its pods was changed"
    assert told == [("Normal", text)]


LATER = "--later"


def asks_for_more(monkeypatch: pytest.MonkeyPatch, world: ClusterWorld) -> None:
    """A new version of the operator that expects more of an image than the images have that run, and another path."""
    paths = {**common.OUR_MOUNTS, common.JOB_VOLUME: "/etc/later"}
    probe = {"httpGet": {"path": "/later", "port": "http"}, "periodSeconds": 7}
    monkeypatch.setattr(common, "JOB_ARGUMENTS", (*common.JOB_ARGUMENTS, LATER))
    monkeypatch.setattr(common, "OUR_MOUNTS", paths)
    monkeypatch.setattr(common, "environment", lambda: [{"name": "HOME", "value": "/later"}])
    monkeypatch.setattr(common, "probes", lambda *_: {"startupProbe": probe, "livenessProbe": probe})
    upgraded(monkeypatch, world)


def container(world: ClusterWorld, name: str) -> dict[str, Any]:
    """The container of the syncer's Deployment or of a set."""
    (found,) = [
        item["spec"]["template"]["spec"]["containers"][0]
        for kind in ("StatefulSet", "Deployment")
        for key, item in world.home.of_kind(kind).items()
        if name in key
    ]
    return dict(found)


def asked(one: dict[str, Any]) -> dict[str, Any]:
    """What a container asks of its image, but for the times of its probes."""
    probes = {key: value["httpGet"] for key, value in one.items() if key.endswith("Probe")}
    home = [variable for variable in one["env"] if variable["name"] == "HOME"]
    paths = {mount["mountPath"] for mount in one["volumeMounts"]}
    return {"args": one["args"], "home": home, "probes": probes, "paths": paths - {"/etc/later"}}


def test_an_image_gets_no_arguments_of_a_later_version_with_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    w = training()
    before = {name: asked(container(w, name)) for name in ("us-west", "demo-syncer")}
    asks_for_more(monkeypatch, w)
    w.run(10)
    memory = {"limits": {"memory": "2Gi"}}
    w.change_pool(region=1, resources=memory)
    w.change(syncer={"resources": memory, "env": [{"name": "A", "value": "1"}]})
    w.run(120)
    for name, had in before.items():
        one = container(w, name)
        assert one["resources"]["limits"] == {"memory": "2Gi"}
        assert asked(one) == had
        assert one["livenessProbe"]["periodSeconds"] == 7, "when kubelet asks is no matter of the image's"
    assert container(w, "demo-syncer")["env"][-1] == {"name": "A", "value": "1"}
    assert w.status()["phase"] == "Training"
    writes, pods = len(w.api.writes), uids(w)
    w.change(syncer={"resources": memory, "env": []})
    w.run(120)
    assert asked(container(w, "demo-syncer")) == before["demo-syncer"]
    assert [one["name"] for one in container(w, "demo-syncer")["env"]] == ["HOME"]
    applied = [name for verb, _, name in w.api.writes[writes:] if verb == "apply"]
    assert sorted(applied) == ["demo-job", "demo-syncer"], "nothing is applied again and again"
    assert pods.items() - uids(w).items() == {one for one in pods.items() if "syncer" in one[0]}


@pytest.mark.parametrize("image", ["registry.example/pinned:1", "registry.example/pinned:2"])
def test_a_resumed_image_is_asked_what_it_was_another_one_more(monkeypatch: pytest.MonkeyPatch, image: str) -> None:
    w = training()
    w.change(suspend=True, image="registry.example/pinned:1")
    w.run(90)
    w.change(suspend=False)
    w.run(60)
    asks_for_more(monkeypatch, w)
    w.change(suspend=True)
    w.run(90)
    w.change(image=image)
    w.run(10)
    w.change(suspend=False)
    w.run(60)
    assert w.status()["phase"] == "Training"
    later = image.endswith("2")
    for name in ("us-west", "demo-syncer"):
        assert (LATER in container(w, name)["args"]) == later
        assert (asked(container(w, name))["home"] == [{"name": "HOME", "value": "/later"}]) == later


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


def test_a_change_of_resources_without_the_right_to_delete_pods_is_told() -> None:
    w = training()
    w.api.failing = forbids_pods_to_be_deleted
    w.change_pool(region=1, resources={"limits": {"cpu": "2"}})
    w.run(120)
    text = "3 of 3 learners of us-west/old do not have the new template yet: the operator has no right to delete pods"
    found = w.condition("Degraded")
    assert (found["reason"], found["message"]) == ("RolloutWaiting", f"{text} there")
    assert w.condition("Ready")["status"] == "True"
