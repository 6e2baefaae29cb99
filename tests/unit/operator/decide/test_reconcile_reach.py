"""The syncer's endpoint and revoked certificates in whole reconciles, in virtual time."""

import base64
from datetime import timedelta
from typing import Any

import pytest

from diloco_operator import names
from diloco_operator.decide.certificates import REVOKED_FILE
from diloco_operator.decide.observed import ChildKey
from diloco_operator.decide.revocation import REVOKED, with_entry
from diloco_operator.names import PoolKey
from testbed.virtual_cluster.operator_world import World, job_object
from tests.unit.operator.decide.training_world import training_world

EXPOSED = ChildKey("Service", names.exposed_syncer("demo"))
SYNCER = ChildKey("Secret", names.syncer_secret("demo"))


def training(**spec: Any) -> World:
    made = World(job=job_object(**spec))
    made.run(60)
    assert made.status["phase"] == "Training"
    return made


def test_a_load_balancers_address_comes_late_changes_and_restarts_nothing() -> None:
    w = training(syncer={"expose": {"type": "LoadBalancer"}})
    syncer, pods, held = w.status["syncer"], w.learner_pods(), w.children[SYNCER]["data"]
    assert "the load balancer has no address yet" in syncer["externalEndpointMissing"]
    assert syncer["externalEndpoint"] == ""
    for ip in ("198.51.100.1", "198.51.100.2"):
        w.children[EXPOSED]["status"] = {"loadBalancer": {"ingress": [{"ip": ip}]}}
        plan = w.reconcile()
        assert (plan.apply, plan.delete, plan.scale) == ((), (), ())
        assert w.status["syncer"]["externalEndpoint"] == f"{ip}:29400"
        assert w.status["syncer"]["externalEndpointMissing"] == ""
    assert w.learner_pods() == pods
    assert w.children[SYNCER]["data"] == held


def test_another_host_of_a_node_port_changes_the_endpoint_alone() -> None:
    w = training(syncer={"expose": {"type": "NodePort", "host": "203.0.113.7"}})
    w.children[EXPOSED]["spec"]["ports"][0]["nodePort"] = 31234
    w.reconcile()
    assert w.status["syncer"]["externalEndpoint"] == "203.0.113.7:31234"
    w.change(syncer={"expose": {"type": "NodePort", "host": "node.example"}})
    plan = w.reconcile()
    assert plan.apply == ()
    assert w.status["syncer"]["externalEndpoint"] == "node.example:31234"


def test_an_external_way_has_a_service_with_the_one_port() -> None:
    w = training(syncer={"expose": {"type": "External", "host": "syncer.example.com", "port": 443}})
    service = w.children[EXPOSED]["spec"]
    assert (service["type"], [port["port"] for port in service["ports"]]) == ("ClusterIP", [29400])
    assert w.status["syncer"]["externalEndpoint"] == "syncer.example.com:443"


def test_revoking_replaces_certificates_and_restarts_nothing() -> None:
    w = training()
    pools = [PoolKey(region["name"], pool["name"]) for region in w.job["spec"]["regions"] for pool in region["pools"]]
    mine, *others = [ChildKey("Secret", names.learner_secret(names.stateful_set("demo", pool))) for pool in pools]
    before, pods = {key: w.children[key]["data"] for key in (mine, *others)}, w.learner_pods()
    w.job["metadata"]["annotations"] = {REVOKED: with_entry("", str(pools[0]), w.now)}
    w.run(60)
    listed = base64.b64decode(w.children[SYNCER]["data"][REVOKED_FILE]).decode()
    assert listed.startswith(f"{pools[0]} ")
    assert w.children[mine]["data"]["tls.crt"] != before[mine]["tls.crt"]
    assert [w.children[key]["data"] for key in others] == [before[key] for key in others]
    assert w.learner_pods() == pods
    assert w.status["phase"] == "Training"


def test_an_annotation_that_is_not_understood_stops_nothing() -> None:
    w = training()
    w.job["metadata"]["annotations"] = {REVOKED: f"nowhere={w.now + timedelta(days=1):%Y-%m-%dT%H:%M:%SZ}"}
    w.reconcile()
    assert w.condition("Degraded")["reason"] == "RevocationIgnored"
    assert "nowhere is not a region or pool" in w.condition("Degraded")["message"]
    assert w.status["phase"] == "Training"
    assert REVOKED_FILE not in w.children[SYNCER]["data"]


def test_while_a_job_is_suspended_it_is_said_what_is_not_understood() -> None:
    w = training()
    w.change(suspend=True)
    w.run(90)
    w.job["metadata"]["annotations"] = {REVOKED: "us-west"}
    w.reconcile()
    assert (w.status["phase"], w.condition("Degraded")["reason"]) == ("Suspended", "RevocationIgnored")
    del w.job["metadata"]["annotations"]
    w.reconcile()
    assert w.condition("Degraded")["status"] == "False"


@pytest.mark.parametrize("suspend", [False, True])
def test_while_the_manifest_is_refused_it_is_said_that_nothing_is_revoked(suspend: bool) -> None:
    w = training_world()
    region = w.job["spec"]["regions"][0]["name"]
    w.job["metadata"]["annotations"] = {REVOKED: with_entry("", region, w.now)}
    w.run(5)
    w.change(suspend=suspend, sharding={"ways": 4})
    w.run(90)
    assert w.condition("Degraded")["reason"] == "InvalidSpec"
    assert REVOKED not in w.condition("Degraded")["message"], "the syncer knows of it"
    w.job["metadata"]["annotations"] = {REVOKED: with_entry("", region, w.now)}
    w.run(5)
    assert f"{REVOKED}]: has no effect on {region}/" in w.condition("Degraded")["message"]
