"""The operator's objects after a real API server has stored them: a second reconcile finds nothing to do."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from diloco.spec.reading.document import read_document
from diloco_operator.cluster_state import ClusterSeen, ClusterState
from diloco_operator.decide.clusters import FINALIZER
from diloco_operator.decide.objects.drift import applied_as
from diloco_operator.decide.observed import ChildKey, Observed
from diloco_operator.decide.plan import Plan
from diloco_operator.decide.reconcile import reconcile
from diloco_operator.labels import FIELD_MANAGER
from diloco_operator.signing import RandomCertificateMaker
from testbed.api_server.server import ApiServer
from tests.support.made_objects import ALL_FIELDS, OPTIONS, TWO_REGIONS, UID

NAMESPACE = "settled-objects"
NOW = datetime.now(UTC)


def job_object(path: Path) -> dict[str, Any]:
    job = read_document(path.read_text(), path.name)
    assert isinstance(job, dict)
    assert isinstance(job["metadata"], dict)
    job["metadata"] |= {"namespace": NAMESPACE, "uid": UID, "generation": 1}
    return job


Made = list[tuple[dict[str, Any], dict[str, Any]]]
"""Objects as they were applied, and as the API server answered."""


def observed(made: Made, clusters: dict[str, str]) -> Observed:
    """``clusters``: the cluster of each namespace but home's."""
    keyed = [(ChildKey.of(live, clusters.get(live["metadata"]["namespace"], "")), sent, live) for sent, live in made]
    return Observed(
        {key: live for key, _, live in keyed},
        applied={key: applied_as(sent, live) for key, sent, live in keyed},
    )


def planned(job: dict[str, Any], made: Made) -> Plan:
    return reconcile(job, observed(made, {}), NOW, OPTIONS, RandomCertificateMaker())


def applied(server: ApiServer, plan: Plan) -> Made:
    sent = [one.body for one in plan.apply]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": sent})
    owner = ("--server-side", "--force-conflicts", f"--field-manager={FIELD_MANAGER}")
    made = json.loads(server.kubectl("apply", *owner, "--output=json", "--filename=-", text=text).stdout)
    return list(zip(sent, made.get("items", [made]), strict=True))


@pytest.fixture(scope="module")
def server(job_server: ApiServer) -> ApiServer:
    job_server.kubectl("create", "namespace", NAMESPACE)
    return job_server


@pytest.mark.parametrize("path", [TWO_REGIONS, ALL_FIELDS], ids=lambda path: path.parent.name)
def test_what_was_applied_needs_no_applying(path: Path, server: ApiServer) -> None:
    job = job_object(path)
    live = applied(server, planned(job, []))
    assert planned(job, live).apply == ()


def test_a_limit_that_is_taken_out_of_the_manifest_is_taken_out_of_the_set(server: ApiServer) -> None:
    job = job_object(TWO_REGIONS)
    pool = job["spec"]["regions"][0]["pools"][0]
    pool["resources"] = {"limits": {"cpu": "1000m", "memory": "1024Mi"}}
    live = applied(server, planned(job, []))
    assert planned(job, live).apply == ()
    del pool["resources"]["limits"]["memory"]
    plan = planned(job, live)
    # The manifest in the ConfigMap contains it too.
    assert [one.body["kind"] for one in plan.apply] == ["ConfigMap", "StatefulSet"]
    (found,) = [item for _, item in applied(server, plan) if item["kind"] == "StatefulSet"]
    assert found["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "1"}


def test_what_was_applied_in_another_cluster_needs_no_applying(server: ApiServer) -> None:
    elsewhere = "settled-elsewhere"
    server.kubectl("create", "namespace", elsewhere)
    job = job_object(TWO_REGIONS)
    job["metadata"] |= {"name": "spread", "finalizers": [FINALIZER]}
    job["spec"]["regions"][1]["cluster"] = {"kubeconfigSecretRef": {"name": "far"}}
    job["spec"]["syncer"] = {"expose": {"type": "NodePort", "host": "192.0.2.1"}}
    options = replace(OPTIONS, home_id="home-1")
    clusters = {"far": ClusterSeen(ClusterState.READY, namespace=elsewhere)}

    def spread(made: Made) -> Plan:
        seen = replace(observed(made, {elsewhere: "far"}), clusters=clusters)
        return reconcile(job, seen, NOW, options, RandomCertificateMaker())

    made = applied(server, spread([]))
    there = sorted(one["kind"] for one, _ in made if one["metadata"]["namespace"] == elsewhere)
    assert there == ["ConfigMap", "NetworkPolicy", "Secret", "Service", "StatefulSet"]
    # Learners there are told where the syncer is once its Service has a port.
    (told,) = spread(made).apply
    assert (told.body["kind"], told.cluster) == ("ConfigMap", "far")
    plan = spread([*made, *applied(server, spread(made))])
    assert (plan.apply, plan.scale, plan.delete) == ((), (), ())
