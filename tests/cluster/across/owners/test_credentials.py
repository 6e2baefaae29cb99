"""The owner of the other cluster deletes the account that home uses: that is named, and no learner notices."""

import pytest

from tests.support.across import EAST, WEST, Pair, give_secret, has_reason
from tests.support.cluster_jobs import holds

pytestmark = pytest.mark.timeout(600)

ACCOUNT = "diloco-home"


def test_an_account_that_is_deleted_is_told_until_there_is_a_new_secret(pair: Pair) -> None:
    pods, there = pair.pods(), ("--namespace", pair.west.namespace)
    pair.west.cluster.kubectl("delete", "serviceaccount", ACCOUNT, *there)
    has_reason(pair.job, "west", "ClusterUnauthorized")
    pair.job.train_on(EAST, WEST)
    assert holds(pair.job.status(), "Degraded", "ClusterUnauthorized")
    pair.west.prepare()
    # The new account of the same name is another one: the old token stays worthless.
    give_secret(pair.home, pair.job.namespace, pair.west.secret())
    has_reason(pair.job, "west", None)
    pair.job.train_on(EAST, WEST)
    assert pair.pods() == pods
