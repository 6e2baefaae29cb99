"""The whole operator against a real API server. There are no controllers, so its objects stay as they were created."""

from pathlib import Path

from diloco.runtime.exits import EXIT_BAD_INPUT, EXIT_OK
from testbed.operator_process import eventually
from tests.support.operator_scene import Cluster, Start, at_rest, manifest, reconciles_again


def test_a_job_gets_children_a_status_and_an_event_but_no_finalizer(cluster: Cluster, start: Start) -> None:
    with start() as operator:
        cluster.has_job("two")
        eventually("an event", lambda: cluster.get("events")["items"])
        live = cluster.get("dilocojob", "two")
        owners = [owner for child in cluster.children().values() for owner in child["metadata"]["ownerReferences"]]
        assert {owner["uid"] for owner in owners} == {live["metadata"]["uid"]}
        assert "finalizers" not in live["metadata"]
        assert set(live["metadata"]["annotations"]) == {"kubectl.kubernetes.io/last-applied-configuration"}
        assert cluster.condition("two", "Ready")["reason"] == "WaitingForSyncer"
        [event] = cluster.get("events")["items"]
        assert event["reason"] == "WaitingForSyncer"
        assert event["involvedObject"]["uid"] == live["metadata"]["uid"]
        assert "reconcile failed" not in operator.log
        assert operator.stop() == EXIT_OK


def test_where_nothing_changes_nothing_is_written(cluster: Cluster, start: Start) -> None:
    with start() as operator:
        versions, writes = at_rest(cluster, operator), operator.writes
        reconciles_again(operator, times=10)
        assert operator.writes == writes
        assert cluster.versions() == versions


def test_edited_or_deleted_children_are_restored_and_others_fields_kept(cluster: Cluster, start: Start) -> None:
    with start():
        cluster.has_job("two")
        cluster.kubectl("annotate", "statefulset/two--eu-slow", "example.com/theirs=1")
        cluster.kubectl("scale", "statefulset/two--eu-slow", "--replicas=7")
        cluster.kubectl("delete", "service/two-syncer", "secret/two-syncer-tls", "configmap/two-job")
        cluster.kubectl("label", "networkpolicy/two-syncer", "diloco.dev/job-", "app.kubernetes.io/managed-by-")
        eventually("the replicas", lambda: cluster.get("statefulset", "two--eu-slow")["spec"]["replicas"] == 1)
        cluster.settled("two")
        assert cluster.get("statefulset", "two--eu-slow")["metadata"]["annotations"]["example.com/theirs"] == "1"


def test_a_pool_is_scaled_and_the_job_suspended_as_the_manifest_says(cluster: Cluster, start: Start) -> None:
    def replicas(name: str) -> int:
        replicas: int = cluster.get("statefulset", name)["spec"]["replicas"]
        return replicas

    with start():
        cluster.has_job("two")
        cluster.apply(manifest("two", {"us-east": {"fast": 5}, "eu": {"slow": 1}}))
        eventually("five learners", lambda: replicas("two--us-east-fast") == 5)
        cluster.apply(manifest("two", suspend=True))
        eventually("no learners", lambda: replicas("two--us-east-fast") == replicas("two--eu-slow") == 0)


def test_a_job_of_a_deleted_jobs_name_waits_until_its_children_are_gone(cluster: Cluster, start: Start) -> None:
    with start() as operator:
        cluster.has_job("two")
        cluster.kubectl("delete", "dilocojob", "two")
        eventually("it has heard of it", lambda: operator.metric("jobs") == 0)
        cluster.kubectl("delete", "service/two-syncer")
        cluster.apply(manifest("other", {"here": {"cpu": 1}}))
        eventually("another job is reconciled", lambda: cluster.status("other").get("phase") == "Pending")
        assert "Service/two-syncer" not in cluster.children()

        cluster.apply(manifest("two"))
        eventually("names are taken", lambda: cluster.condition("two", "Degraded").get("reason") == "NameTaken")
        cluster.collect_garbage("two")
        eventually("its own children", lambda: "Service/two-syncer" in cluster.children())
        eventually("no more trouble", lambda: cluster.condition("two", "Degraded").get("reason") == "AsExpected")
        uid = cluster.get("dilocojob", "two")["metadata"]["uid"]
        mine = [child for name, child in cluster.children().items() if "/two-" in name]
        assert {owner["uid"] for child in mine for owner in child["metadata"]["ownerReferences"]} == {uid}


def test_an_object_of_somebody_else_is_never_overwritten(cluster: Cluster, start: Start) -> None:
    with start():
        cluster.kubectl("create", "configmap", "two-job", "--from-literal=precious=1")
        cluster.apply(manifest("two"))
        eventually("the name is taken", lambda: cluster.condition("two", "Degraded").get("reason") == "NameTaken")
        assert "two-job" in cluster.condition("two", "Degraded")["message"]
        assert cluster.get("configmap", "two-job")["data"] == {"precious": "1"}
        cluster.kubectl("delete", "configmap", "two-job")
        cluster.settled("two")


def test_one_operator_looks_after_all_namespaces(cluster: Cluster, start: Start) -> None:
    other = Cluster(cluster.server, f"{cluster.namespace}-other")
    cluster.server.kubectl("create", "namespace", other.namespace)
    with start(None, "--namespaces="):
        for each in (cluster, other):
            each.apply(manifest("same"))
        for each in (cluster, other):
            each.settled("same")


def test_a_mistake_of_whoever_starts_it_is_one_line_and_exit_code_2(start: Start, tmp_path: Path) -> None:
    for kubeconfig, flag, named in (
        (tmp_path / "absent.kubeconfig", "--log-json", "absent.kubeconfig"),
        (None, "--health-address=nowhere", "HOST:PORT"),
        (None, "--poll-seconds=0", "poll_seconds"),
    ):
        with start(kubeconfig, flag) as operator:
            assert operator.wait() == EXIT_BAD_INPUT
            assert named in operator.log
            assert len(operator.log.splitlines()) == 1
