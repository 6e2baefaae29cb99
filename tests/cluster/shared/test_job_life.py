"""A job's life on a real cluster, from `kubectl apply` to its end and beyond: trained, evaluated, gone.

The tests share one job, and are in the order of its life.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from diloco.spec.status.job import ExportedModel, JobStatus
from diloco_operator.manifests import common
from testbed.kind.clusters import Cluster
from testbed.kind.project_images import Images
from testbed.kind.waiting import wait_until
from tests.support.cluster_jobs import ClusterJob, apply, apply_idle, manifest, pool, region

pytestmark = [pytest.mark.usefixtures("chart"), pytest.mark.timeout(600)]

BUDGET = 60_000
"""Enough for the operator to see it train, however fast the machine is."""
STATE = Path("/state")


@pytest.fixture(scope="module")
def job(cluster: Cluster, namespace: str) -> ClusterJob:
    """A job of two regions that was applied after the operator was installed, and is complete."""
    regions = region("us-east", pool("new", speed=0.5)), region("us-west", pool("old", speed=0.5))
    wanted = manifest("life", *regions, tokens=BUDGET, interval=8)
    # Merged only if both have contributed.
    wanted["spec"]["sync"]["quorum"] = 2
    applied = apply(cluster, namespace, wanted)
    applied.kubectl_wait("condition=Complete")
    return applied


def test_a_job_trains_real_text_in_pods_until_its_budget_is_merged(job: ClusterJob) -> None:
    status = job.status()
    assert (status.phase, status.reason) == ("Complete", "BudgetReached")
    verdicts = {one.type: one.status for one in status.conditions}
    assert verdicts == {
        "Ready": "True",
        "Progressing": "False",
        "Degraded": "False",
        "Suspended": "False",
        "Complete": "True",
        "Failed": "False",
    }
    progress = status.progress
    assert progress is not None
    assert progress.tokens >= progress.budget_tokens == BUDGET
    assert progress.percent == "100%"
    assert progress.step > 0
    assert progress.loss is not None
    assert 0 < float(progress.loss) < 5.0  # an untrained model of 257 tokens has ln 257 = 5.5
    assert status.model == ExportedModel(persistent_volume_claim="life-syncer", path="model.safetensors")
    assert status.start_time is not None
    assert status.completion_time is not None
    assert status.start_time < status.completion_time
    job.tells("WaitingForSyncer", "Training", "BudgetReached")
    row = job.row("--output", "wide")
    assert (row["PHASE"], row["PROGRESS"], row["LOSS"]) == ("Complete", "100%", progress.loss)
    assert (row["STEP"], row["GOODPUT"]) == (str(progress.step), progress.goodput)


def test_a_complete_job_has_no_pods_left_and_keeps_its_volume(job: ClusterJob) -> None:
    wait_until(lambda: not job.pods(), "the pods of a complete job go")
    status = job.wait_for(lambda status: status.learners.ready == 0, "no learner is ready")
    assert status.learners.summary == "0/0"
    kept = [kind_and_name.partition("/")[2] for kind_and_name in job.objects()]
    assert "life-syncer" in kept
    claim = job.cluster.get("persistentvolumeclaims", "life-syncer", job.namespace)
    assert claim["status"]["phase"] == "Bound"


def test_the_model_on_the_volume_has_the_loss_that_the_status_says(job: ClusterJob, images: Images) -> None:
    status = job.status()
    assert status.model is not None
    assert status.progress is not None
    assert status.progress.loss is not None
    evaluation = _evaluation(images.trainer, job, status.model)
    job.cluster.apply(evaluation, namespace=job.namespace)
    phase = wait_until(lambda: _ended(job, "evaluation"), "the evaluation ends")
    said = job.kubectl("logs", "evaluation")
    assert phase == "Succeeded", said
    found = json.loads(said)
    assert found["tokens"] >= BUDGET
    # The status is rounded to three decimals; sums on another machine may differ in the last bits.
    assert found["loss"] == pytest.approx(float(status.progress.loss), abs=0.001)
    job.kubectl("delete", "pod", "evaluation")


def test_a_complete_job_goes_on_with_a_larger_budget_that_may_change(job: ClusterJob) -> None:
    before = job.status().progress
    assert before is not None
    job.patch(training={"tokens": 1_000 * BUDGET})
    status = job.wait_for(
        lambda status: status.phase == "Training" and _merged(status) > before.tokens, "it goes on from its checkpoint"
    )
    assert (status.completion_time, status.model) == (None, None)
    job.tells("Resumed")
    assert status.progress is not None
    assert status.progress.step > before.step
    pods = {one.name: (one.uid, one.restarts) for one in job.pods()}
    job.patch(training={"tokens": 2_000 * BUDGET})
    job.wait_for(lambda status: _budget(status) == 2_000 * BUDGET, "the syncer follows the larger budget")
    assert {one.name: (one.uid, one.restarts) for one in job.pods()} == pods
    job.patch(training={"tokens": 2 * BUDGET})
    job.kubectl_wait("condition=Complete")
    status = job.status()
    assert _budget(status) == 2 * BUDGET <= _merged(status)
    assert status.model == ExportedModel(persistent_volume_claim="life-syncer", path="model.safetensors")
    assert status.completion_time is not None
    wait_until(lambda: not job.pods(), "its pods go again")


def test_a_job_past_its_ttl_is_deleted_with_its_children_for_good(job: ClusterJob) -> None:
    before = job.objects()
    kinds = {one.partition("/")[0].partition(".")[0] for one in before}
    assert {"statefulset", "deployment", "service", "configmap", "secret", "persistentvolumeclaim"} <= kinds
    assert "networkpolicy" in kinds
    assert "poddisruptionbudget" not in kinds
    job.patch(ttlSecondsAfterFinished=0)
    wait_until(lambda: not job.exists(), "the job is deleted")
    wait_until(lambda: not job.objects(), "everything of it is deleted")
    # The operator has run since, and has seen that they are gone.
    apply_idle(job.cluster, job.namespace, manifest("another"))
    assert not job.objects()
    assert not job.exists()


def _merged(status: JobStatus) -> int:
    return 0 if status.progress is None else status.progress.tokens


def _budget(status: JobStatus) -> int:
    return 0 if status.progress is None else status.progress.budget_tokens


def _ended(job: ClusterJob, pod: str) -> str:
    phase = str(job.cluster.get("pods", pod, job.namespace)["status"].get("phase", ""))
    return phase if phase in {"Succeeded", "Failed"} else ""


def _evaluation(image: str, job: ClusterJob, model: ExportedModel) -> dict[str, Any]:
    """A pod that evaluates the model from the job's volume, under the same rules as the job's own pods."""
    arguments = ["evaluate", f"--job=/job/{common.JOB_FILE}", f"--model={STATE / model.path}", "--json"]
    mounts = [
        {"name": "state", "mountPath": str(STATE), "readOnly": True},
        {"name": "job", "mountPath": "/job", "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    claim = {"claimName": model.persistent_volume_claim, "readOnly": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "evaluation"},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": common.pod_security(),
            "containers": [{"name": "diloco", **common.program(image), "args": arguments, "volumeMounts": mounts}],
            "volumes": [
                {"name": "state", "persistentVolumeClaim": claim},
                {"name": "job", "configMap": {"name": f"{job.name}-job"}},
                {"name": "tmp", "emptyDir": {}},
            ],
        },
    }
