"""The operator's permissions, by RBAC of a real API server."""

from typing import Any

import pytest

from diloco.runtime.exits import EXIT_OK
from testbed.api_server.server import ApiServer
from testbed.kind.cache import Cache
from testbed.kind.tools import helm_if_there
from testbed.operator_process import eventually
from tests.support.operator_scene import Cluster, Start, manifest, reconciles_again
from tests.support.rendered_chart import helm_template


def test_a_missing_permission_is_named_in_a_condition_until_it_is_granted(cluster: Cluster, start: Start) -> None:
    name = f"operator-of-{cluster.namespace}"
    role: dict[str, Any] = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name}}
    # Everything but to patch StatefulSets.
    others = [
        {"apiGroups": ["", "policy", "networking.k8s.io", "diloco.dev", "coordination.k8s.io", "events.k8s.io"]}
        | {"resources": ["*"], "verbs": ["*"]},
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["*"]},
        {"apiGroups": ["apps"], "resources": ["statefulsets"], "verbs": ["get", "list", "watch"]},
    ]
    cluster.apply({**role, "rules": others})
    cluster.kubectl("create", "rolebinding", name, f"--role={name}", f"--user={name}")
    with start(cluster.server.kubeconfig_for(name)) as operator:
        cluster.apply(manifest("two"))
        eventually("refused", lambda: cluster.condition("two", "Degraded").get("reason") == "ApplyRefused")
        assert "statefulsets" in cluster.condition("two", "Degraded")["message"]
        writes = operator.writes
        reconciles_again(operator, times=6)
        # Each set is retried at most once in that time, not every time.
        assert operator.writes - writes <= 2
        cluster.apply({**role, "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]})
        cluster.settled("two")


def test_a_namespace_that_is_gone_keeps_no_other_from_being_looked_after(
    server: ApiServer, cluster: Cluster, start: Start
) -> None:
    other = Cluster(server, f"{cluster.namespace}-other")
    server.kubectl("create", "namespace", other.namespace)
    name = f"operator-of-{cluster.namespace}"
    everything = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    for one in (cluster, other):
        one.apply(
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name}}
            | {"rules": everything}
        )
        one.kubectl("create", "rolebinding", name, f"--role={name}", f"--user={name}")
    kubeconfig = server.kubeconfig_for(name)
    both = f"--namespaces={cluster.namespace},{other.namespace}"
    with start(kubeconfig, both) as operator:
        other.has_job("there")
        # A namespace's role is deleted with it. No controller finishes the deletion here, so that is all that is
        # deleted.
        other.kubectl("delete", "rolebinding", name)
        cluster.has_job("here")
        operator.kill()
    with start(kubeconfig, both) as operator:
        eventually("it works", lambda: operator.works)
        cluster.apply(manifest("later"))
        eventually("the job is reconciled", lambda: cluster.status("later").get("phase") == "Pending")
        eventually("it says so", lambda: f"namespace {other.namespace}" in operator.get("/readyz")[1])
        assert operator.works
        other.kubectl("create", "rolebinding", name, f"--role={name}", f"--user={name}")
        eventually("it is back", lambda: f"namespace {other.namespace}" not in operator.get("/readyz")[1])
        other.apply(manifest("again"))
        eventually("that of the other too", lambda: other.status("again").get("phase") == "Pending")


def test_the_rules_of_the_chart_are_enough(cluster: Cluster, start: Start) -> None:
    helm = helm_if_there(Cache.of_user())
    if helm is None:
        pytest.skip("no helm here to render the chart's rules")
    rendered = helm_template(helm, {"watchNamespaces": [cluster.namespace]}, namespace=cluster.namespace)
    for one in (*rendered.of_kind("Role"), *rendered.of_kind("RoleBinding")):
        cluster.apply(one)
    account = rendered.only("ServiceAccount", "operator")["metadata"]["name"]
    user = f"system:serviceaccount:{cluster.namespace}:{account}"
    groups = ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{cluster.namespace}"]
    with start(cluster.server.kubeconfig_for(user, groups)) as operator:
        cluster.has_job("two")
        eventually("an event", lambda: cluster.get("events")["items"])
        eventually("a look at the pods", lambda: operator.metric("api_requests_total", 'resource="pods"') > 0)
        assert operator.metric("api_requests_total", 'code="403"') == 0
        assert "forbidden" not in operator.log.lower()
        assert operator.stop() == EXIT_OK
