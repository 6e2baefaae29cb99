"""What is kept of the pods of an unhealthy job, which may have ten thousand."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from diloco_operator.decide.causes.pods import is_ready, pod_problem, running_since
from diloco_operator.decide.observed import PodObserved
from diloco_operator.jobs.observe.pods import slim_pod
from tests.support.made_objects import made, templates, with_pool

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
STARTED = "2026-01-01T11:00:00Z"
STATES: dict[str, dict[str, Any]] = {
    "running": {"state": {"running": {"startedAt": STARTED}}, "ready": True},
    "crashed": {"state": {"terminated": {"exitCode": 2, "message": "no such file"}}, "restartCount": 3},
    "no image": {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}},
}


def pod(state: dict[str, Any], **metadata: str) -> dict[str, Any]:
    """A pod as an API server returns it."""
    template = templates(made(with_pool({})))["StatefulSet/small--east-a"]
    fields = [{"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:status": {}}}]
    return {
        "metadata": {**template["metadata"], "name": "p-0", "uid": "1", "managedFields": fields, **metadata},
        "spec": {**template["spec"], "nodeName": "n1"},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}],
            "containerStatuses": [{"name": "learner", "image": "i", "imageID": "sha256:0", "resources": {}, **state}],
            "podIPs": [{"ip": "10.0.0.1"}],
        },
    }


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("metadata", [{}, {"deletionTimestamp": STARTED}])
def test_a_slim_pod_has_the_problems_of_the_whole_one(name: str, metadata: dict[str, str]) -> None:
    whole = pod(STATES[name], **metadata)
    slim = slim_pod(whole)
    assert pod_problem(PodObserved(slim, ()), NOW) == pod_problem(PodObserved(whole, ()), NOW)
    assert (is_ready(slim), running_since(slim)) == (is_ready(whole), running_since(whole))


def test_it_is_a_third_of_the_whole_at_most() -> None:
    whole = pod(STATES["running"])
    assert len(json.dumps(slim_pod(whole))) < len(json.dumps(whole)) / 3


def test_a_pod_that_a_queue_holds_back_has_no_problem() -> None:
    gated = pod(STATES["running"])
    refused = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gated"}
    gated["status"] = {"phase": "Pending", "conditions": [refused]}
    assert pod_problem(PodObserved(slim_pod(gated), ()), NOW) is None
    refused["reason"] = "Unschedulable"
    assert pod_problem(PodObserved(slim_pod(gated), ()), NOW) is not None
