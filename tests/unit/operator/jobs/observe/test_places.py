"""What is kept of objects at home."""

from diloco_operator.api_server.intake import size_of
from diloco_operator.api_server.kinds import JOB
from diloco_operator.decide.observed import Flavor
from diloco_operator.decide.queue.workload import Workload
from diloco_operator.jobs.observe.places import kept_at_home
from testbed.virtual_cluster.world_queue import FLAVOR
from tests.unit.operator.jobs.test_queue import FIRST, training


def test_of_a_workload_only_what_decisions_read_is_kept() -> None:
    owner = {"apiVersion": JOB.api_version, "kind": JOB.name, "controller": True}
    live = {"apiVersion": "kueue.x-k8s.io/v1beta2", **training().q.workloads[FIRST]}
    live["metadata"] = {**live["metadata"], "ownerReferences": [owner]}
    live["status"]["admissionChecks"] = [{"name": "c", "podSetUpdates": [{"name": "syncer", "labels": {"a": "b"}}]}]
    kept = kept_at_home(live)
    assert kept is not None
    assert (kept["kind"], kept["apiVersion"], kept["metadata"]) == ("Workload", live["apiVersion"], live["metadata"])
    assert "template" not in kept["spec"]["podSets"][0]
    assert size_of(kept) < size_of(live) - size_of(live["spec"]["podSets"][0]["template"])
    before, after, flavors = Workload(live), Workload(kept), {FLAVOR: Flavor({"a": "b"}, ())}
    assert (after.digest, after.pods, after.flavors) == (before.digest, before.pods, before.flavors)
    assert after.placing("syncer", flavors) == before.placing("syncer", flavors)
    assert (after.admitted, after.told_ready, after.message) == (before.admitted, before.told_ready, before.message)
