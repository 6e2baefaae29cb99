"""In a namespace whose policies restrict egress, learners that do not join are told with these policies."""

from typing import Any

import pytest

from testbed.virtual_cluster.cluster_world import ClusterWorld
from testbed.virtual_cluster.world_pods import running
from tests.unit.operator.jobs.training_cluster import OLD, training

MISSING = "1 of 3 learners of us-west/old running but not joined to the syncer"
TOLD = f"{MISSING}: NetworkPolicy theirs restricts what it may connect to, and it needs DNS and the syncer"


def with_policy(types: list[str], **selector: Any) -> ClusterWorld:
    w = training()
    policy = {"kind": "NetworkPolicy", "metadata": {"name": "theirs"}}
    w.home.put({**policy, "spec": {"podSelector": selector, "policyTypes": types}})
    w.pods.troubles[f"{OLD}-1"] = running(w.now) | {"conditions": [{"type": "Ready", "status": "False"}]}
    w.run(90)
    assert w.condition("Degraded")["reason"] == "LearnersMissing"
    return w


@pytest.mark.parametrize(
    ("types", "selector", "told"),
    [
        (["Ingress", "Egress"], {}, TOLD),
        (["Ingress"], {}, MISSING),
        (["Egress"], {"matchLabels": {"diloco.dev/job": "demo"}}, TOLD),
        (["Egress"], {"matchLabels": {"diloco.dev/job": "another"}}, MISSING),
        (["Egress"], {"matchExpressions": [{"key": "diloco.dev/job", "operator": "Exists"}]}, TOLD),
        (["Egress"], {"matchExpressions": [{"key": "diloco.dev/job", "operator": "DoesNotExist"}]}, MISSING),
        (["Egress"], {"matchExpressions": [{"key": "diloco.dev/job", "operator": "In", "values": ["demo"]}]}, TOLD),
        (["Egress"], {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["demo"]}]}, TOLD),
    ],
)
def test_policies_about_what_a_learner_may_connect_to_are_named(
    types: list[str], selector: dict[str, Any], told: str
) -> None:
    assert with_policy(types, **selector).condition("Degraded")["message"] == told


def test_policies_are_not_asked_for_while_every_learner_has_joined() -> None:
    w = training()
    w.api.failing = lambda verb, kind, *_: pytest.fail("asked") if (verb, kind) == ("list", "NetworkPolicy") else None
    w.pods.delete(f"{OLD}-1")
    w.run(60)
    assert w.condition("Degraded")["status"] == "False"
