"""Operators that come after each other or run beside each other, against a real API server."""

from diloco.runtime.exits import EXIT_LEASE_LOST, EXIT_OK
from testbed.operator_process import eventually
from tests.support.operator_scene import Cluster, Start, at_rest, reconciles_again


def test_a_second_operator_stands_by_and_takes_over_without_changes(cluster: Cluster, start: Start) -> None:
    with start() as first:
        versions = at_rest(cluster, first)
        with start() as second:
            eventually("the second stands by", lambda: second.stands_by)
            assert second.get("/readyz")[1].startswith(
                f"standing by: lease {cluster.namespace}/diloco-operator is held by"
            )
            assert second.metric("lease_held") == 0
            assert second.writes == 0
            assert first.stop() == EXIT_OK
            eventually("the second works", lambda: second.works)
            eventually("it has looked at the job", lambda: second.reconciles >= 3)
            assert second.writes == 0
            assert cluster.versions() == versions


def test_two_operators_that_disagree_pause_between_their_writes(cluster: Cluster, start: Start, namespace: str) -> None:
    """Releases in two namespaces have a lease each, and each lets only its own namespace read a syncer's figures."""
    other = f"{namespace}-other"
    cluster.server.kubectl("create", "namespace", other)
    with start() as first, start(None, f"--operator-namespace={other}") as second:
        eventually("both work", lambda: first.works and second.works)
        cluster.has_job("two")
        eventually("one gives way", lambda: "something keeps reverting NetworkPolicy" in first.log + second.log)
        eventually("both do", lambda: all(each.log.count("keeps reverting") >= 1 for each in (first, second)))
        for each in (first, second):
            reconciles_again(each)
        writes, reconciles = first.writes + second.writes, first.reconciles + second.reconciles
        for each in (first, second):
            reconciles_again(each, times=10)
        # A policy now and then, although every reconcile found one to write.
        written, looks = first.writes + second.writes - writes, first.reconciles + second.reconciles - reconciles
        assert 2 * written <= looks


def test_a_killed_operator_that_is_started_again_changes_nothing(cluster: Cluster, start: Start) -> None:
    with start() as first:
        versions = at_rest(cluster, first)
        first.kill()
    # Or the new one would wait until the lease of the dead one has run out, as it should.
    cluster.kubectl("delete", "lease", "diloco-operator")
    with start() as second:
        eventually("it has looked at the job", lambda: second.reconciles >= 3)
        assert second.writes == 0
        assert cluster.versions() == versions


def test_an_operator_that_loses_its_lease_ends_at_once_and_writes_no_more(cluster: Cluster, start: Start) -> None:
    with start() as operator:
        eventually("it works", lambda: operator.works)
        patch = '{"spec": {"holderIdentity": "another"}}'
        cluster.kubectl("patch", "lease", "diloco-operator", "--type=merge", f"--patch={patch}")
        assert operator.wait() == EXIT_LEASE_LOST
        assert "held by another" in operator.log
