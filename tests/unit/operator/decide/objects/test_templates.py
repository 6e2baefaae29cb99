"""Changes that do not concern a pod do not restart it, and none asks more of an image that stays."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from diloco.spec import DiLoCoJob
from diloco_operator.api_server.intake import received
from diloco_operator.api_server.kinds import STATEFUL_SET
from diloco_operator.decide.objects.templates import described, kept
from diloco_operator.manifests import common
from tests.support.made_objects import every_job, live, made, templates, with_pool

Change = Callable[[DiLoCoJob], DiLoCoJob]


def resized(job: DiLoCoJob) -> DiLoCoJob:
    regions = [
        region.model_copy(update={"pools": tuple(pool.model_copy(update={"learners": 7}) for pool in region.pools)})
        for region in job.spec.regions
    ]
    return live(job, regions=tuple(regions))


CHANGES: dict[str, Change] = {
    "the size of every pool": resized,
    "suspend": lambda job: live(job, suspend=True),
    "the deadline": lambda job: live(job, active_deadline_seconds=5),
    "the time to live": lambda job: live(job, ttl_seconds_after_finished=5),
    "another generation": lambda job: job.model_copy(
        update={"metadata": job.metadata.model_copy(update={"generation": 9})}
    ),
}


def template_texts(job: DiLoCoJob) -> dict[str, str]:
    return {name: json.dumps(template) for name, template in templates(made(job)).items()}


@pytest.mark.parametrize("name", every_job())
@pytest.mark.parametrize("change", CHANGES)
def test_templates_stay_when_only_this_changes(name: str, change: str) -> None:
    job = every_job()[name]
    changed = CHANGES[change](job)
    assert changed != job
    assert template_texts(changed) == template_texts(job)


def learners_of(limits: dict[str, str]) -> dict[str, Any]:
    """The StatefulSet of a pool with these limits, as it is applied."""
    job = with_pool({"resources": {"limits": limits}, "image": "registry.example/mine:1"})
    (found,) = [described(one, job.spec, None) for one in made(job) if one["kind"] == "StatefulSet"]
    return found


def of_later(monkeypatch: pytest.MonkeyPatch, limits: dict[str, str]) -> dict[str, Any]:
    """The same, by an operator whose learners get one more argument."""
    monkeypatch.setattr(common, "JOB_ARGUMENTS", (*common.JOB_ARGUMENTS, "--later"))
    return learners_of(limits)


def test_what_more_devices_need_comes_to_the_old_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    there = learners_of({"nvidia.com/gpu": "1"})
    wanted = of_later(monkeypatch, {"nvidia.com/gpu": "2"})
    pod, before = (one["spec"]["template"]["spec"] for one in (kept(wanted, there), there))
    (container,), (began,) = pod["containers"], before["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert container["args"] == began["args"]
    assert [one for one in container["volumeMounts"] if one not in began["volumeMounts"]] == [
        {"name": "shared-memory", "mountPath": "/dev/shm"}
    ]
    assert {one["name"] for one in pod["volumes"]} == {one["name"] for one in container["volumeMounts"]}


@pytest.mark.parametrize(
    "odd",
    [{"env": [{}]}, {"env": [{"name": 1}]}, {"volumeMounts": [{"mountPath": 1}]}, {"livenessProbe": {}}, {"args": 1}],
)
def test_an_odd_live_template_of_another_cluster_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, odd: dict[str, Any]
) -> None:
    there = learners_of({"cpu": "1"})
    (container,) = there["spec"]["template"]["spec"]["containers"]
    there["spec"]["template"]["spec"] = {"containers": [{"name": "x"}, {"image": container["image"], **odd}]}
    there["metadata"] |= {"namespace": "theirs", "uid": "u"}
    wanted = of_later(monkeypatch, {"cpu": "2"})
    (found,) = kept(wanted, received(STATEFUL_SET, "theirs", there))["spec"]["template"]["spec"]["containers"]
    assert found.get("args") == odd.get("args")
