import base64

from diloco_operator import names
from diloco_operator.decide.certificates import REVOKED_FILE
from diloco_operator.names import PoolKey
from testbed.virtual_cluster.world_pods import stamp
from tests.unit.operator.decide.training_world import training_world

EXPOSED = ("Service", names.exposed_syncer("demo"))
SYNCER = ("Secret", names.syncer_secret("demo"))


def test_a_load_balancers_address_comes_late_changes_and_restarts_nothing() -> None:
    w = training_world(syncer={"expose": {"type": "LoadBalancer"}})
    syncer, pods, held = w.status["syncer"], w.pods_of("learner"), w.home.objects[SYNCER]["data"]
    assert "the load balancer has no address yet" in syncer["externalEndpointMissing"]
    assert syncer["externalEndpoint"] == ""
    for ip in ("198.51.100.1", "198.51.100.2"):
        w.home.objects[EXPOSED]["status"] = {"loadBalancer": {"ingress": [{"ip": ip}]}}
        plan = w.reconcile()
        assert (plan.apply, plan.delete, plan.scale) == ((), (), ())
        assert w.status["syncer"]["externalEndpoint"] == f"{ip}:29400"
        assert w.status["syncer"]["externalEndpointMissing"] == ""
    assert w.pods_of("learner") == pods
    assert w.home.objects[SYNCER]["data"] == held


def test_revoking_replaces_certificates_and_restarts_nothing() -> None:
    w = training_world()
    pools = [PoolKey(region["name"], pool["name"]) for region in w.job["spec"]["regions"] for pool in region["pools"]]
    mine, *others = [("Secret", names.learner_secret(names.stateful_set("demo", pool))) for pool in pools]
    before, pods = {key: w.home.objects[key]["data"] for key in (mine, *others)}, w.pods_of("learner")
    w.job["spec"]["regions"][0]["pools"][0]["certificatesNotBefore"] = stamp(w.now)
    w.run(60)
    listed = base64.b64decode(w.home.objects[SYNCER]["data"][REVOKED_FILE]).decode()
    assert listed.startswith(f"{pools[0]} ")
    assert w.home.objects[mine]["data"]["tls.crt"] != before[mine]["tls.crt"]
    assert [w.home.objects[key]["data"] for key in others] == [before[key] for key in others]
    assert w.pods_of("learner") == pods
    assert w.status["phase"] == "Training"
