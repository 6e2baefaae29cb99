"""Jobs whose learners are in the namespace of another cluster's owner. Home is the second one."""

from collections.abc import Iterator

import pytest

from testbed.kind.clusters import Cluster
from tests.support.across import EAST, WEST, Far, Pair, far_of, give_secret, has_reason, reachable, region
from tests.support.aged_tokens import Ageing, RunningOut, secret_running_out, take_renewal
from tests.support.cluster_jobs import ClusterJob, apply, apply_idle, identities, new_namespace
from tests.support.cluster_operator import ClusterOperator


@pytest.fixture(scope="session")
def shared_pair(cluster: Cluster, operator: ClusterOperator, west_cluster: Cluster) -> Iterator[Pair]:
    """A job with a learner in each of two clusters, which tests share; each leaves it as it found it."""
    for namespace in new_namespace(cluster, "owners"):
        for west in far_of(cluster, namespace, west_cluster, "west"):
            job = apply(cluster, namespace, reachable(cluster, "pair", region("east"), region("west", west.name)))
            yield Pair(cluster, job, west, operator)


@pytest.fixture
def pair(shared_pair: Pair) -> Pair:
    """The shared job, with both learners training and its other cluster as it should be."""
    shared_pair.job.all_train(EAST, WEST)
    has_reason(shared_pair.job, "west", None)
    return shared_pair


@pytest.fixture(scope="session")
def running_out(cluster: Cluster, operator: ClusterOperator, west_cluster: Cluster) -> Iterator[RunningOut]:
    """Two jobs for which home's token runs out: one with a learner that trains, one without pods."""
    assert operator.cluster is cluster
    for namespace in new_namespace(cluster, "tokens"):
        for far in far_of(cluster, namespace, west_cluster, "west"):
            for mute in far_of(cluster, namespace, west_cluster, "mute"):
                renewed = apply(cluster, namespace, reachable(cluster, "renewed", region("west", far.name)))
                renewed.all_train(WEST)
                take_renewal(mute)
                told = apply_idle(cluster, namespace, reachable(cluster, "told", region("west", mute.name)))
                yield RunningOut(_begun(renewed, far), _begun(told, mute))


def _begun(job: ClusterJob, far: Far) -> Ageing:
    pods, secret = identities(far.job(job.name).pods()), secret_running_out(far)
    give_secret(job.cluster, job.namespace, secret)
    return Ageing(job, far, secret, pods)
