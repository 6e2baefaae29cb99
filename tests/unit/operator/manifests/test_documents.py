"""The manifest as processes read it from the ConfigMap: the same job, whatever characters it contains."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from diloco.spec import parse_job
from diloco.spec.placement import Expose, FailurePolicy, LostPods
from diloco.spec.reading.defaults import ANNOTATION
from diloco.spec.reading.load import job_from
from diloco.spec.sync import SyncSpec
from diloco.spec.training import TrainingSpec
from diloco_operator.manifests import InvalidSpecError
from diloco_operator.manifests.documents import job_text
from tests.support.made_objects import every_job, live, with_pool

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize("name", every_job())
def test_a_process_reads_the_job_that_was_written(name: str) -> None:
    spec = every_job()[name].spec
    storage = spec.syncer.storage.model_copy(update={"when_deleted": "Delete", "adopt_retained": False})
    backup = spec.syncer.backup and spec.syncer.backup.model_copy(update={"secret_name": None})
    syncer = spec.syncer.model_copy(update={"expose": Expose(), "storage": storage, "backup": backup})
    init_from = spec.init_from and spec.init_from.model_copy(update={"secret_name": None})
    policy = spec.failure_policy.model_copy(update={"lost_pods": LostPods()})
    regions = tuple(
        region.model_copy(update={"pools": tuple(pool.model_copy(update={"storage": None}) for pool in region.pools)})
        for region in spec.regions
    )
    of_objects: dict[str, Any] = {"labels": {}, "annotations": {}, "image_pull_secrets": ()}
    changed = {**of_objects, "syncer": syncer, "init_from": init_from, "failure_policy": policy, "regions": regions}
    told = spec.model_copy(update=changed)
    assert parse_job(job_text(every_job()[name])).spec == told


def test_processes_are_not_told_what_becomes_of_lost_pods() -> None:
    plain = with_pool({})
    policy = FailurePolicy(max_restarts_per_learner=3, lost_pods=LostPods(action="Wait", after_seconds=600))
    written = json.loads(job_text(live(plain, failure_policy=policy)))["spec"]
    assert written.pop("failurePolicy") == {"maxRestartsPerLearner": 3}
    assert written == json.loads(job_text(plain))["spec"]


def test_nothing_is_said_that_the_user_did_not_say() -> None:
    job = with_pool({"learners": 3})
    assert json.loads(job_text(job))["spec"]["regions"] == [{"name": "east", "pools": [{"name": "a", "learners": 3}]}]
    assert job_text(live(job, suspend=True)) == job_text(job)


@pytest.mark.parametrize("name", every_job())
def test_what_the_api_server_fills_in_is_a_default(name: str) -> None:
    job = every_job()[name]
    filled = job.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    document = json.loads(job_text(job))
    assert job_text(job_from({**document, "spec": filled})) == job_text(job)


def test_another_versions_defaults_do_not_change_the_training() -> None:
    document = json.loads(job_text(with_pool({})))
    defaults = json.loads(document["metadata"]["annotations"][ANNOTATION])
    assert defaults["spec.training.optimizer"]["learningRate"] == TrainingSpec(tokens=1).optimizer.learning_rate
    assert defaults["spec.sync"]["interval"] == SyncSpec().interval
    defaults["spec.sync"] |= {"interval": 96, "fieldOfANewerVersion": True}
    document["metadata"]["annotations"][ANNOTATION] = json.dumps(defaults)
    assert parse_job(json.dumps(document)).spec.sync == SyncSpec(interval=96)


@example("\x85 \u2028 \u2029 \ufeff \x7f \U0001f680")  # line breaks for YAML, or no text
@given(TEXTS)
def test_whatever_is_passed_through_is_read_back(value: str) -> None:
    job = with_pool({"env": [{"name": "A", "value": value}]})
    assert parse_job(job_text(job)).spec == job.spec


def test_what_a_process_would_not_read_is_refused_with_the_reason() -> None:
    document = json.loads(job_text(with_pool({})))
    document["spec"]["regions"][0]["pools"][0] |= {"env": [{"name": "A", "value": "x" * 300_000}]}
    with pytest.raises(InvalidSpecError, match=r"^spec: is larger than 256 KiB"):
        job_text(job_from(document))
