"""Each rule of the Role that is taken away is named in the job's status, and learners train on."""

from typing import Any

import pytest
import yaml

from testbed.kind.peers import diloco
from tests.support.across import EAST, WEST, Pair, give_secret, has_reason, reachable, region
from tests.support.cluster_jobs import apply, holds
from tests.support.job_manifests import pods

pytestmark = pytest.mark.timeout(600)

FOLLOWED = ("statefulsets", "secrets", "configmaps", "services", "networkpolicies")
"""What the operator watches there."""
NAMING_CAUSES = ("pods", "events")
"""What it lists only where learners do not run."""


@pytest.fixture
def role(pair: Pair) -> dict[str, Any]:
    printed = diloco("cluster", "prepare", pair.west.namespace)
    (found,) = [one for one in yaml.safe_load_all(printed) if one["kind"] == "Role"]
    return dict(found)


def give(pair: Pair, role: dict[str, Any], without: str = "") -> None:
    """Give home this Role, and a new Secret, with which it lists everything there anew."""
    rules = [rule for rule in role["rules"] if without not in rule["resources"] or "list" not in rule["verbs"]]
    assert len(rules) == len(role["rules"]) - bool(without)
    pair.west.cluster.kubectl("apply", "--filename", "-", stdin=yaml.safe_dump({**role, "rules": rules}))
    give_secret(pair.home, pair.job.namespace, pair.west.secret())


def test_each_rule_that_is_taken_away_is_named_while_learners_train(pair: Pair, role: dict[str, Any]) -> None:
    pods = pair.pods()
    for resource in FOLLOWED:
        give(pair, role, without=resource)
        has_reason(pair.job, "west", "ClusterForbidden", f" list {resource}")
    pair.job.train_on(EAST, WEST)
    assert holds(pair.job.status(), "Degraded", "ClusterForbidden")
    give(pair, role)
    has_reason(pair.job, "west", None)
    assert pair.pods() == pods


def test_rules_about_pods_are_missed_where_learners_do_not_run(pair: Pair, role: dict[str, Any]) -> None:
    nowhere = region("west", pair.west.name, **pods(nodeSelector={"example.com/no": "node"}))
    stuck = apply(pair.home, pair.job.namespace, reachable(pair.home, "stuck", nowhere))
    stuck.becomes("Degraded", "Unschedulable")
    for resource in NAMING_CAUSES:
        give(pair, role, without=resource)
        has_reason(stuck, "west", "ClusterForbidden", f" list {resource}")
    give(pair, role)
    has_reason(stuck, "west", None)
    stuck.delete()
