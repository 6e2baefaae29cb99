"""Changes that do not concern a pod do not restart it: pod templates stay the same, byte for byte."""

import json
from collections.abc import Callable

import pytest

from diloco.spec import DiLoCoJob
from tests.support.made_objects import every_job, live, made, templates

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
