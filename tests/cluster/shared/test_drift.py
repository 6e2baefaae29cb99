"""Changes that others make to a job's objects: the operator restores its own fields, and no others.

What it restores of each kind is tested on an API server alone (`test_operator_process`).
"""

import json
from typing import Any

import pytest

from diloco_operator import labels
from diloco_operator.manifests import common
from diloco_operator.options import JOBS_LEASE
from testbed.kind.clusters import Cluster
from testbed.kind.project_images import Images
from testbed.kind.waiting import wait_until
from tests.support.cluster_jobs import ClusterJob, apply, apply_idle, identities, manifest, pool, region
from tests.support.cluster_operator import CHILDREN

pytestmark = [pytest.mark.usefixtures("chart"), pytest.mark.timeout(600)]

REGION = region("here", pool("a"))


@pytest.fixture(scope="module")
def still(cluster: Cluster, elsewhere: str) -> ClusterJob:
    """A suspended job, with all of its objects and no pod."""
    return apply_idle(cluster, elsewhere, manifest("still", REGION))


def objects(job: ClusterJob) -> dict[str, dict[str, Any]]:
    """The objects that the operator makes for a job, by kind and name."""
    return {f"{item['kind']}/{item['metadata']['name']}": item for item in job.items(CHILDREN)}


def test_objects_that_are_deleted_by_hand_are_made_anew(still: ClusterJob) -> None:
    before = {name: item["metadata"]["uid"] for name, item in objects(still).items()}
    assert {name.partition("/")[0] for name in before} == {
        *("StatefulSet", "Deployment", "Service", "ConfigMap", "Secret"),
        *("PersistentVolumeClaim", "NetworkPolicy"),
    }
    # A claim that is deleted is no drift: the training is lost with it (test_job_faults).
    claim = f"PersistentVolumeClaim/{still.name}-syncer"
    kept = before.pop(claim)
    others = CHILDREN.replace("persistentvolumeclaims,", "")
    still.kubectl("delete", others, "--selector", f"{labels.JOB}={still.name}")

    def all_new() -> bool:
        now = {name: item["metadata"]["uid"] for name, item in objects(still).items()}
        return now.pop(claim) == kept and now.keys() == before.keys() and not set(now.values()) & set(before.values())

    wait_until(all_new, "everything is there again")


# A job that trains.

SIDECAR = "proxy"
NOTES = {"example.com/cost-centre": "42", "autoscaling.alpha.kubernetes.io/conditions": "[]"}


def inject(job: ClusterJob, image: str) -> None:
    """Do what a service mesh does: add a container and an annotation to the pods, as another field manager."""
    # The first process of a container gets no signal that it has no handler for.
    command = ["python3", "-c", "import signal; signal.signal(15, lambda *_: exit(0)); signal.pause()"]
    container = {"name": SIDECAR, "image": image, "command": command, "securityContext": common.container_security()}
    template = {"metadata": {"annotations": NOTES}, "spec": {"containers": [container]}}
    injected = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": f"{job.name}--here-a"},
        "spec": {"template": template},
    }
    manager = ("apply", "--server-side", "--field-manager=injector", "--filename=-", "--namespace", job.namespace)
    job.cluster.kubectl(*manager, stdin=json.dumps(injected))


def test_what_others_add_stays_without_restarts_until_the_job_is_deleted(
    cluster: Cluster, namespace: str, images: Images
) -> None:
    empty = everything(cluster, namespace)
    job = apply(cluster, namespace, manifest("mine", REGION))
    job.all_train("here/a/0")
    inject(job, images.operator)
    for name in ("statefulset/mine--here-a", "service/mine-syncer", "deployment/mine-syncer", "pvc/mine-syncer"):
        job.kubectl("annotate", name, *(f"{key}={value}" for key, value in NOTES.items()))
        job.kubectl("label", name, "team=research")

    def containers() -> set[str]:
        pods = cluster.items("pods", namespace, f"{labels.COMPONENT}=learner")
        return {one["name"] for pod in pods for one in pod["status"].get("containerStatuses", ()) if one["ready"]}

    wait_until(lambda: containers() == {"learner", SIDECAR}, "its pod has the sidecar")
    job.all_train("here/a/0")
    lives = identities(job.pods())
    # The operator applies the set that has the sidecar, because a field of its own was changed.
    job.kubectl("label", "statefulset", "mine--here-a", f"{labels.PART_OF}-")
    set_ = wait_until(
        lambda: (found := objects(job)["StatefulSet/mine--here-a"])["metadata"]["labels"].get(labels.PART_OF) and found,
        "the set is put back",
    )
    template = set_["spec"]["template"]
    assert {one["name"] for one in template["spec"]["containers"]} == {"learner", SIDECAR}
    assert NOTES.items() <= template["metadata"]["annotations"].items()
    for name in ("StatefulSet/mine--here-a", "Service/mine-syncer", "Deployment/mine-syncer"):
        metadata = objects(job)[name]["metadata"]
        assert NOTES.items() <= metadata["annotations"].items()
        assert metadata["labels"]["team"] == "research"
    job.goes_on("here/a/0")
    assert identities(job.pods()) == lives

    merged = job.all_train("here/a/0").syncer_step
    learner = identities([job.pod("here/a/0")])
    job.kubectl("delete", "deployment", "mine-syncer")
    job.wait_for_account(lambda now: now.epoch == 2 and now.syncer_step > merged, "its syncer is back and goes on")
    assert learner.items() <= identities(job.pods()).items()

    job.kubectl("delete", "dilocojob", "mine")
    wait_until(lambda: everything(cluster, namespace) == empty, "nothing is left")
    wait_until(lambda: namespace not in claimants(cluster), "its volume is gone")


def claimants(cluster: Cluster) -> set[str]:
    """Namespaces whose claims volumes are bound to."""
    found = cluster.items("persistentvolumes")
    return {one["spec"].get("claimRef", {}).get("namespace", "") for one in found}


def everything(cluster: Cluster, namespace: str) -> set[str]:
    """All objects in a namespace, except events and the operator's Lease, which is the namespace's and no job's."""
    kinds = cluster.kubectl("api-resources", "--namespaced", "--verbs=list", "--output=name").split()
    listed = ",".join(kind for kind in kinds if kind.partition(".")[0] not in ("events", "endpoints"))
    names = cluster.kubectl("get", listed, "--namespace", namespace, "--output=name", "--ignore-not-found").split()
    return set(names) - {f"lease.coordination.k8s.io/{JOBS_LEASE}"}
