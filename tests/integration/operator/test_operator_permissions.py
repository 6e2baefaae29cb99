"""The operator's permissions, by RBAC of a real API server."""

import pytest

from testbed.api_server.server import ApiServer
from testbed.kind.waiting import wait_until
from tests.support.operator_scene import EVERYTHING, Cluster, Start, manifest, reconciles_again


@pytest.mark.core
def test_a_missing_permission_is_named_in_a_condition_until_it_is_granted(cluster: Cluster, start: Start) -> None:
    user = f"operator-of-{cluster.namespace}"
    # Everything but to patch StatefulSets.
    others = [
        {"apiGroups": ["", "policy", "networking.k8s.io", "diloco.dev", "coordination.k8s.io", "events.k8s.io"]}
        | {"resources": ["*"], "verbs": ["*"]},
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["*"]},
        {"apiGroups": ["apps"], "resources": ["statefulsets"], "verbs": ["get", "list", "watch"]},
    ]
    with start(cluster.grant(user, *others)) as operator:
        cluster.apply(manifest("two"))
        wait_until(lambda: cluster.condition("two", "Degraded").get("reason") == "ApplyRefused", "refused")
        assert "statefulsets" in cluster.condition("two", "Degraded")["message"]
        writes = operator.writes
        reconciles_again(operator, times=6)
        # Each set is retried at most once in that time, not every time.
        assert operator.writes - writes <= 2
        cluster.grant(user, EVERYTHING)
        cluster.settled("two")


def test_a_namespace_that_is_gone_keeps_no_other_from_being_looked_after(
    server: ApiServer, cluster: Cluster, start: Start
) -> None:
    other = Cluster(server, f"{cluster.namespace}-other")
    server.kubectl("create", "namespace", other.namespace)
    user = f"operator-of-{cluster.namespace}"
    other.grant(user, EVERYTHING)
    kubeconfig = cluster.grant(user, EVERYTHING)
    both = f"--namespaces={cluster.namespace},{other.namespace}"
    with start(kubeconfig, both) as operator:
        other.has_job("there")
        # A namespace's role is deleted with it. No controller finishes the deletion here, so that is all that is
        # deleted.
        other.kubectl("delete", "rolebinding", user)
        cluster.has_job("here")
        operator.kill()
    with start(kubeconfig, both) as operator:
        cluster.apply(manifest("later"))
        wait_until(lambda: cluster.status("later").get("phase") == "Pending", "the job is reconciled")
        wait_until(lambda: other.namespace in operator.get("/readyz")[1], "it says so")
        assert not operator.works
        other.grant(user, EVERYTHING)
        wait_until(lambda: operator.works, "it is back")
        other.apply(manifest("again"))
        wait_until(lambda: other.status("again").get("phase") == "Pending", "that of the other too")
