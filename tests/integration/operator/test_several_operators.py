"""Operators that come after each other or run beside each other, against a real API server."""

from diloco.runtime.process.exits import EXIT_LEASE_LOST, EXIT_OK
from testbed.kind.waiting import wait_until
from tests.support.operator_scene import Cluster, Start, at_rest, reconciles_again


def test_a_second_operator_stands_by_and_takes_over_without_changes(cluster: Cluster, start: Start) -> None:
    with start() as first:
        versions = at_rest(cluster, first)
        with start() as second:
            wait_until(lambda: second.stands_by, "the second stands by")
            assert second.get("/readyz")[1].startswith(
                f"standing by: lease {cluster.namespace}/diloco-operator is held by"
            )
            assert second.metric("lease_held") == 0
            assert second.writes == 0
            assert first.stop() == EXIT_OK
            wait_until(lambda: second.works, "the second works")
            # A new process applies every object once, which changes nothing, and then writes no more.
            wait_until(lambda: second.reconciles >= 3, "it has looked at the job")
            writes = second.writes
            assert writes <= len(versions)
            reconciles_again(second)
            assert second.writes == writes
            assert cluster.versions() == versions


def test_an_operator_that_stands_by_ends_when_it_is_asked_to(start: Start) -> None:
    with start() as first, start() as second:
        wait_until(lambda: {first.works, second.works} == {True, False}, "one works, the other stands by")
        waiting = second if first.works else first
        wait_until(lambda: waiting.stands_by, "it stands by")
        assert waiting.stop() == EXIT_OK
        assert first.works or second.works


def test_two_operators_that_disagree_pause_between_their_writes(cluster: Cluster, start: Start, namespace: str) -> None:
    """Releases in two namespaces have a lease each, and each lets only its own namespace read a syncer's figures."""
    other = f"{namespace}-other"
    cluster.server.kubectl("create", "namespace", other)
    with start() as first, start(None, f"--operator-namespace={other}") as second:
        wait_until(lambda: first.works and second.works, "both work")
        cluster.has_job("two")
        wait_until(lambda: "something keeps reverting NetworkPolicy" in first.log + second.log, "one gives way")
        wait_until(lambda: all(each.log.count("keeps reverting") >= 1 for each in (first, second)), "both do")
        for each in (first, second):
            reconciles_again(each)
        writes, reconciles = first.writes + second.writes, first.reconciles + second.reconciles
        for each in (first, second):
            reconciles_again(each, times=10)
        # A policy now and then, although every reconcile found one to write.
        written, looks = first.writes + second.writes - writes, first.reconciles + second.reconciles - reconciles
        assert 2 * written <= looks


def test_an_operator_that_loses_its_lease_ends_at_once_and_writes_no_more(cluster: Cluster, start: Start) -> None:
    with start() as operator:
        wait_until(lambda: operator.works, "it works")
        patch = '{"spec": {"holderIdentity": "another"}}'
        cluster.kubectl("patch", "lease", "diloco-operator", "--type=merge", f"--patch={patch}")
        assert operator.wait() == EXIT_LEASE_LOST
        assert "held by another" in operator.log
