"""Changes that do not concern a pod do not restart it: pod templates stay the same, byte for byte."""

import json
from collections.abc import Callable

import pytest

from diloco.spec import DiLoCoJob
from diloco.spec.placement import Resources
from diloco_operator.manifests import ObservedImages
from diloco_operator.names import PoolKey
from diloco_operator.options import OperatorOptions
from tests.support.made_objects import OPTIONS, every_job, live, made, of_kind, templates, with_pool

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


def test_a_template_does_change_with_its_resources_and_only_that_one() -> None:
    job = every_job()["two-regions"]
    pool = job.spec.regions[0].pools[0].model_copy(update={"resources": Resources(requests={"cpu": 2})})
    region = job.spec.regions[0].model_copy(update={"pools": (pool,)})
    before, after = template_texts(job), template_texts(live(job, regions=(region, *job.spec.regions[1:])))
    assert [name for name in before if before[name] != after[name]] == ["StatefulSet/two-regions--us-east-new"]


def test_an_operator_with_another_default_image_keeps_that_of_running_pods() -> None:
    job = with_pool({})
    upgraded = OperatorOptions(operator_namespace=OPTIONS.operator_namespace, trainer_image="registry.example/new:2")
    assert OPTIONS.trainer_image is not None
    running = ObservedImages(syncer=OPTIONS.trainer_image, learners={PoolKey("east", "a"): OPTIONS.trainer_image})
    assert templates(made(job, upgraded, running)) == templates(made(job))
    assert templates(made(job, upgraded)) != templates(made(job))


def test_a_changed_pool_size_reaches_the_processes_through_the_config_map() -> None:
    job = with_pool({"learners": 1})
    (before,), (after,) = (of_kind(made(one), "ConfigMap").values() for one in (job, with_pool({"learners": 2})))
    assert before["data"] != after["data"]


def test_suspending_changes_nothing_that_processes_read() -> None:
    job = with_pool({})
    assert of_kind(made(live(job, suspend=True)), "ConfigMap") == of_kind(made(job), "ConfigMap")
