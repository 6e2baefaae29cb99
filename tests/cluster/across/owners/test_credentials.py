"""What the owner of the other cluster or a typo does to home's credentials is named, and no learner notices."""

import json

import pytest

from testbed.kind.commands import succeeds
from tests.support.across import EAST, WEST, Pair, changed, give_secret, has_reason, train_on
from tests.support.cluster_jobs import holds

pytestmark = pytest.mark.timeout(600)

ACCOUNT = "diloco-home"
MARKER = "/tmp/ran-by-a-kubeconfig"


@pytest.mark.core
def test_an_account_that_is_deleted_is_told_until_there_is_a_new_secret(pair: Pair) -> None:
    pods, there = pair.pods(), ("--namespace", pair.west.namespace)
    pair.west.cluster.kubectl("delete", "serviceaccount", ACCOUNT, *there)
    has_reason(pair.job, "west", "ClusterUnauthorized")
    train_on(pair.job, EAST, WEST)
    assert holds(pair.job.status(), "Degraded", "ClusterUnauthorized")
    pair.west.prepare()
    # The new account of the same name is another one: the old token stays worthless.
    give_secret(pair.home, pair.job.namespace, pair.west.secret())
    has_reason(pair.job, "west", None)
    train_on(pair.job, EAST, WEST)
    assert pair.pods() == pods


def test_a_program_in_a_kubeconfig_is_refused_and_never_runs(pair: Pair) -> None:
    pods, secret = pair.pods(), pair.west.secret()
    program = {"apiVersion": "client.authentication.k8s.io/v1", "command": "touch", "args": [MARKER]}
    give_secret(pair.home, pair.job.namespace, changed(secret, exec={**program, "interactiveMode": "Never"}))
    has_reason(pair.job, "west", "KubeconfigUnusable", "users[0].user.exec")
    train_on(pair.job, EAST, WEST)
    operator = pair.operator.has_taken_over()
    inside = ("exec", operator.name, *pair.operator.there, "--")
    kubectl = (pair.home.kubectl_path, "--kubeconfig", pair.home.kubeconfig)
    assert succeeds(*kubectl, *inside, "python3", "-c", "pass")
    assert not succeeds(*kubectl, *inside, "python3", "-c", f"open({json.dumps(MARKER)})")
    give_secret(pair.home, pair.job.namespace, secret)
    has_reason(pair.job, "west", None)
    assert pair.pods() == pods


def test_a_secret_that_is_gone_is_told_and_learners_train_on_without_it(pair: Pair) -> None:
    pods, secret = pair.pods(), pair.west.secret()
    pair.home.kubectl("delete", "secret", pair.west.name, "--namespace", pair.job.namespace)
    has_reason(pair.job, "west", "KubeconfigUnusable", f"Secret {pair.west.name}: is not in namespace")
    train_on(pair.job, EAST, WEST)
    give_secret(pair.home, pair.job.namespace, secret)
    has_reason(pair.job, "west", None)
    assert pair.pods() == pods
