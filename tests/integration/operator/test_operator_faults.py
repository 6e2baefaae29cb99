"""What a failing API server, or the deletion of a namespace, does to the whole operator."""

from diloco.runtime.exits import EXIT_LEASE_LOST
from testbed.api_server.fault_proxy import FaultProxy
from testbed.operator_process import eventually
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
            proxy.fault("watch=", times=2, code=410, reason="Expired")
            proxy.cut()
            eventually("new watches", lambda w=watches: proxy.asked("watch=") >= w + 9)  # type: ignore[misc]
        proxy.mend()
        cluster.kubectl("delete", "configmap", "two-job")
        cluster.apply(manifest("late", {"here": {"cpu": 1}}))
        eventually("mended", lambda: "ConfigMap/two-job" in cluster.children())
        eventually("the late job", lambda: cluster.status("late").get("phase") == "Pending")
        eventually("ready again", lambda: operator.works)
        assert "reconcile failed" not in operator.log


def test_an_outage_of_the_api_server_changes_nothing_and_work_resumes(cluster: Cluster, start: Start) -> None:
    with start() as first:
        versions = at_rest(cluster, first)
        cluster.server.stop()
        try:
            eventually("it notices", lambda: "retrying" in first.log)
        finally:
            cluster.server.start()
        # On a slow machine it takes longer than the lease lasts: then it has ended, and is started again as by kubelet.
        if first.exit_code is not None:
            assert first.exit_code == EXIT_LEASE_LOST
        with start() if first.exit_code is not None else first as operator:
            eventually("it works", lambda: operator.works)
            assert cluster.versions() == versions
            cluster.apply(manifest("late", {"here": {"cpu": 1}}))
            eventually("the late job", lambda: cluster.status("late").get("phase") == "Pending")


def test_in_a_namespace_that_is_being_deleted_nothing_is_made_anew(cluster: Cluster, start: Start) -> None:
    with start() as operator:
        cluster.has_job("two")
        # No controller carries the deletion out here, so job and children stay and the namespace remains Terminating.
        cluster.server.kubectl("delete", "namespace", cluster.namespace, "--wait=false")
        cluster.kubectl("delete", "configmap", "two-job")
        eventually("it sees that", lambda: "not reconciled" in operator.log)
        assert "ConfigMap/two-job" not in cluster.children()
        # A write that meets one of the namespace's controllers conflicts, which is no error of this case.
        assert operator.metric("reconcile_errors_total", without='reason="Conflict"') == 0
        assert "refused" not in cluster.condition("two", "Degraded").get("message", "")


def test_a_typo_in_a_passthrough_field_is_reported_and_suspend_still_works(cluster: Cluster, start: Start) -> None:
    body = manifest("typo", {"here": {"a": 2}})
    with start() as operator:
        cluster.apply(body)
        eventually("it is reconciled", lambda: cluster.status("typo").get("phase") == "Pending")
        body["spec"]["suspend"] = True
        # The API server cannot know: it is free-form here, and answers 500 to the set that it is in.
        body["spec"]["regions"][0]["pools"][0]["affinity"] = {"nodeAfinity": {}}
        cluster.apply(body)
        eventually("it is reported", lambda: cluster.condition("typo", "Degraded").get("reason") == "ApplyRefused")
        assert "nodeAfinity" in cluster.condition("typo", "Degraded")["message"]
        (learners,) = cluster.get("statefulsets")["items"]
        assert learners["spec"]["replicas"] == 0
        eventually("it works on", lambda: operator.works)
