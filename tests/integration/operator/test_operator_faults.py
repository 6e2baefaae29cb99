"""What a failing API server, or the deletion of a namespace, does to the whole operator."""

import pytest

from diloco.runtime.process.exits import EXIT_LEASE_LOST
from testbed.api_server.fault_proxy import FaultProxy
from testbed.kind.waiting import wait_until
from tests.support.operator_scene import Cluster, Start, at_rest, manifest


def test_faults_of_the_server_are_survived(cluster: Cluster, start: Start, proxy: FaultProxy) -> None:
    proxy.fault("GET .*dilocojobs", times=2, code=500)
    proxy.fault("GET .*secrets", times=1, code=429, reason="TooManyRequests", headers={"Retry-After": "1"})
    proxy.fault("PATCH .*secrets/two-ca", code=429, reason="TooManyRequests", headers={"Retry-After": "1"})
    proxy.fault("PATCH .*configmaps", code=500)
    proxy.fault("PATCH .*services", code=0, after_asking=True)
    proxy.fault("PATCH .*dilocojobs/two/status", code=409, reason="Conflict")
    proxy.fault("PATCH .*dilocojobs/two/status", code=0, after_asking=True)
    with start(proxy.kubeconfig) as operator:
        cluster.has_job("two")
        for _ in range(2):
            watches = proxy.asked("watch=")
            proxy.fault("(secrets|services).*watch=", times=2, code=410, reason="Expired")
            # An API server answers kopf's watch with a status only if it fails; what has expired is told by an event.
            proxy.fault("dilocojobs.*watch=", code=500)
            proxy.cut()
            wait_until(lambda w=watches: proxy.asked("watch=") >= w + 8, "new watches")  # type: ignore[misc]
        proxy.mend()
        cluster.kubectl("delete", "configmap", "two-job")
        cluster.apply(manifest("late", {"here": {"cpu": 1}}))
        wait_until(lambda: "ConfigMap/two-job" in cluster.children(), "mended")
        wait_until(lambda: cluster.status("late").get("phase") == "Pending", "the late job")
        wait_until(lambda: operator.works, "ready again")
        assert "reconcile failed" not in operator.log


@pytest.mark.core
def test_an_outage_of_the_api_server_changes_nothing_and_work_resumes(cluster: Cluster, start: Start) -> None:
    with start() as first:
        versions = at_rest(cluster, first)
        cluster.server.stop()
        try:
            wait_until(lambda: "retrying" in first.log, "it notices")
        finally:
            cluster.server.start()
        # On a slow machine it takes longer than the lease lasts: then it has ended, and is started again as by kubelet.
        if first.exit_code is not None:
            assert first.exit_code == EXIT_LEASE_LOST
        with start() if first.exit_code is not None else first as operator:
            wait_until(lambda: operator.works, "it works")
            assert cluster.versions() == versions
            cluster.apply(manifest("late", {"here": {"cpu": 1}}))
            wait_until(lambda: cluster.status("late").get("phase") == "Pending", "the late job")


def test_in_a_namespace_that_is_being_deleted_nothing_is_made_anew(cluster: Cluster, start: Start) -> None:
    with start() as operator:
        cluster.has_job("two")
        # No controller carries the deletion out here, so job and children stay and the namespace remains Terminating.
        cluster.server.kubectl("delete", "namespace", cluster.namespace, "--wait=false")
        cluster.kubectl("delete", "configmap", "two-job")
        wait_until(lambda: "not reconciled" in operator.log, "it sees that")
        assert "ConfigMap/two-job" not in cluster.children()
        # A write that meets one of the namespace's controllers conflicts, which is no error of this case.
        assert operator.metric("reconcile_errors_total", without='reason="Conflict"') == 0
        assert "refused" not in cluster.condition("two", "Degraded").get("message", "")


@pytest.mark.core
def test_pod_settings_that_are_refused_are_reported_and_suspend_works(cluster: Cluster, start: Start) -> None:
    body = manifest("typo", {"here": {"a": 2}})
    with start() as operator:
        cluster.apply(body)
        wait_until(lambda: cluster.status("typo").get("phase") == "Pending", "it is reconciled")
        body["spec"]["suspend"] = True
        # Only the API server looks: this is no key of a label.
        term = {"topologyKey": "a b", "labelSelector": {}}
        affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        # Of a Deployment every version looks, of a StatefulSet only newer ones.
        body["spec"]["syncer"] = body["spec"].get("syncer", {}) | {"podTemplate": {"spec": {"affinity": affinity}}}
        cluster.apply(body)
        wait_until(lambda: cluster.condition("typo", "Degraded").get("reason") == "ApplyRefused", "it is reported")
        assert "topologyKey" in cluster.condition("typo", "Degraded")["message"]
        (learners,) = cluster.get("statefulsets")["items"]
        assert learners["spec"]["replicas"] == 0
        wait_until(lambda: operator.works, "it works on")
