"""The whole operator against a real API server. There are no controllers, so its objects stay as they were created."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diloco.runtime.process.exits import EXIT_BAD_INPUT, EXIT_OK
from diloco_operator import labels
from testbed.kind.waiting import wait_until
from tests.support.operator_scene import Cluster, Start, at_rest, manifest, reconciles_again


@pytest.mark.core
def test_a_job_gets_children_a_status_and_an_event_but_no_finalizer(cluster: Cluster, start: Start) -> None:
    with start(None, "--log-json") as operator:
        cluster.has_job("two")
        wait_until(lambda: cluster.get("events")["items"], "an event")
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
        said = [one for one in map(json.loads, operator.log.splitlines()) if "applied" in one["message"]]
        assert {(one["job"], one["namespace"]) for one in said} == {("two", cluster.namespace)}
        assert operator.stop() == EXIT_OK


def test_where_nothing_changes_nothing_is_written(cluster: Cluster, start: Start) -> None:
    with start() as operator:
        versions, writes = at_rest(cluster, operator), operator.writes
        reconciles_again(operator, times=10)
        assert operator.writes == writes
        assert cluster.versions() == versions


@pytest.fixture
def _as_on_openshift(cluster: Cluster) -> Iterator[None]:
    """The server has the API group by which the platform is known, until the end of the test."""
    names = {"plural": "securitycontextconstraints", "kind": "SecurityContextConstraints"}
    schema = {"openAPIV3Schema": {"type": "object"}}
    group, version = "security.openshift.io", {"name": "v1", "served": True, "storage": True, "schema": schema}
    name = f"{names['plural']}.{group}"
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {"group": group, "scope": "Cluster", "names": names, "versions": [version]},
    }

    def is_known() -> bool:
        return group in {one["name"] for one in cluster.server.request("GET", "/apis")[1]["groups"]}

    cluster.apply(definition)
    wait_until(is_known, f"{group} is known")
    yield
    cluster.kubectl("delete", "crd", name)
    wait_until(lambda: not is_known(), f"{group} is gone")


@pytest.mark.usefixtures("_as_on_openshift")
def test_where_the_platform_assigns_users_pods_name_none(cluster: Cluster, start: Start) -> None:
    ids = {"runAsUser", "runAsGroup", "fsGroup"}

    def contexts() -> list[dict[str, Any]]:
        found = [one for name, one in cluster.children().items() if name.startswith(("StatefulSet", "Deployment"))]
        return [one["spec"]["template"]["spec"]["securityContext"] for one in found]

    with start():
        cluster.has_job("two")
        assert len(contexts()) == 3
        assert all(ids.isdisjoint(one) and one["runAsNonRoot"] for one in contexts())


EDITS: dict[str, dict[str, Any]] = {
    "StatefulSet/two--eu-slow": {"spec": {"replicas": 3, "template": {"spec": {"enableServiceLinks": True}}}},
    "Deployment/two-syncer": {"spec": {"replicas": 2, "strategy": {"type": "RollingUpdate"}}},
    "Service/two-syncer": {"spec": {"type": "NodePort", "ports": [{"name": "sync", "port": 29401}]}},
    "Service/two-learners": {"metadata": {"labels": {labels.MANAGED_BY: "me"}}},
    "ConfigMap/two-job": {"data": {"job.json": "{}"}},
    "Secret/two--eu-slow-tls": {"data": {"ca.crt": ""}},
    "NetworkPolicy/two-learners": {"spec": {"ingress": [{}]}},
    "NetworkPolicy/two-syncer": {"metadata": {"labels": {labels.JOB: None, labels.MANAGED_BY: None}}},
}
"""By object a merge patch, as ``kubectl edit`` would send it."""


def wanted(item: dict[str, Any]) -> dict[str, Any]:
    """An object without the fields that every write changes."""
    counters = {"resourceVersion", "generation", "managedFields"}
    metadata = {key: value for key, value in item["metadata"].items() if key not in counters}
    return {key: value for key, value in item.items() if key != "status"} | {"metadata": metadata}


def is_as(cluster: Cluster, name: str, before: dict[str, Any]) -> bool:
    found = cluster.children().get(name)
    return found is not None and wanted(found) == before


@pytest.mark.core
def test_edited_or_deleted_children_are_restored_and_others_fields_kept(cluster: Cluster, start: Start) -> None:
    with start():
        cluster.has_job("two")
        cluster.kubectl("annotate", "statefulset/two--eu-slow", "example.com/theirs=1")
        before = {name: wanted(item) for name, item in cluster.children().items()}
        for name, patch in EDITS.items():
            edited = cluster.kubectl("patch", name, "--type=merge", f"--patch={json.dumps(patch)}", "--output=json")
            assert wanted(json.loads(edited)) != before[name]
            wait_until(partial(is_as, cluster, name, before[name]), f"{name} is put back")
        cluster.kubectl("delete", "service/two-syncer", "secret/two-syncer-tls", "configmap/two-job")
        cluster.settled("two")
        assert cluster.get("statefulset", "two--eu-slow")["metadata"]["annotations"]["example.com/theirs"] == "1"


def test_a_job_of_a_deleted_jobs_name_waits_until_its_children_are_gone(cluster: Cluster, start: Start) -> None:
    with start() as operator:
        cluster.has_job("two")
        cluster.kubectl("delete", "dilocojob", "two")
        wait_until(lambda: operator.metric("jobs") == 0, "it has heard of it")
        cluster.kubectl("delete", "service/two-syncer")
        cluster.apply(manifest("other", {"here": {"cpu": 1}}))
        wait_until(lambda: cluster.status("other").get("phase") == "Pending", "another job is reconciled")
        assert "Service/two-syncer" not in cluster.children()

        cluster.apply(manifest("two"))
        wait_until(lambda: cluster.condition("two", "Degraded").get("reason") == "NameTaken", "names are taken")
        cluster.collect_garbage("two")
        wait_until(lambda: "Service/two-syncer" in cluster.children(), "its own children")
        wait_until(lambda: cluster.condition("two", "Degraded").get("reason") == "AsExpected", "no more trouble")
        uid = cluster.get("dilocojob", "two")["metadata"]["uid"]
        mine = [child for name, child in cluster.children().items() if "/two-" in name]
        assert {owner["uid"] for child in mine for owner in child["metadata"]["ownerReferences"]} == {uid}


def test_an_object_of_somebody_else_is_never_overwritten(cluster: Cluster, start: Start) -> None:
    with start():
        cluster.kubectl("create", "configmap", "two-job", "--from-literal=precious=1")
        cluster.apply(manifest("two"))
        wait_until(lambda: cluster.condition("two", "Degraded").get("reason") == "NameTaken", "the name is taken")
        assert "two-job" in cluster.condition("two", "Degraded")["message"]
        assert cluster.get("configmap", "two-job")["data"] == {"precious": "1"}
        cluster.kubectl("delete", "configmap", "two-job")
        cluster.settled("two")


@pytest.mark.core
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
