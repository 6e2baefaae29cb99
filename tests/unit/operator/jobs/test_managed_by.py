"""Jobs that another controller manages: the operator does nothing about them, and forgets what it knew."""

from diloco.spec.job import MANAGER
from diloco_operator.api_server.kinds import JOB
from diloco_operator.jobs.jobs import JobKey
from testbed.virtual_cluster.cluster_world import NAMESPACE, ClusterWorld
from testbed.virtual_cluster.operator_world import job_object

OTHER = "kueue.x-k8s.io/multikueue"
KEY = JobKey(NAMESPACE, "demo")


def test_nothing_is_written_for_a_job_that_another_controller_manages() -> None:
    w = ClusterWorld(job_names=())
    w.create(job_object(managedBy=OTHER))
    w.create(job_object("ours", managedBy=MANAGER), number=1)
    theirs = {"phase": "Running", "observedGeneration": 7}
    w.home.put({**w.job(), "status": theirs})
    w.run(60)
    assert w.status() == theirs
    assert {name for kind, name in w.home.objects if name.startswith("demo")} == {"demo"}
    assert w.status("ours")["phase"] == "Training"
    assert {event["regarding"]["name"] for event in w.api.events} == {"ours"}
    assert w.jobs.phases() == {"Training": 1}


def test_of_a_name_that_another_controller_takes_over_nothing_is_kept() -> None:
    w = ClusterWorld()
    w.run(20)
    assert KEY in w.controller._memories
    del w.home.objects[JOB.name, "demo"]
    w.create(job_object(managedBy=OTHER), number=1)
    w.api.writes.clear()
    w.run(20)
    assert w.api.writes == []
    assert KEY not in w.controller._memories
