"""What is said of a claim that is not there or not bound, and of a pod that a lost node keeps for its claim."""

from typing import Any

import pytest

from diloco_operator.decide.causes.claims import with_claims
from diloco_operator.decide.causes.pods import PodProblem
from diloco_operator.decide.observed import ChildKey, PodObserved
from diloco_operator.decide.reasons import Reason
from testbed.virtual_cluster.operator_world import World, job_object
from testbed.virtual_cluster.world_pods import unschedulable
from tests.unit.operator.decide.training_world import OLD, degraded, lose

VICTIM = f"{OLD}1"
CLAIM = ChildKey("PersistentVolumeClaim", f"state-{VICTIM}")
NOT_BOUND = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims."
CONFLICT = "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had volume node affinity conflict"


def world(**storage: Any) -> World:
    """A job that trains, with a claim for each learner of one pool."""
    made = job_object(tokens=100_000_000)
    regions = made["spec"]["regions"]
    (pool,) = [pool for region in regions for pool in region["pools"] if pool["name"] == "old"]
    pool["storage"] = storage
    w = World(job=made)
    w.run(60)
    assert w.status["phase"] == "Training"
    return w


@pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadWriteOncePod"])
def test_a_lost_learner_with_a_claim_of_its_own_stays_and_it_is_said(mode: str) -> None:
    w = world(accessMode=mode)
    lose(w, VICTIM)
    w.run(120)
    assert not w.forced
    assert degraded(w) == (
        "True",
        "LostPodKept",
        (
            f"1 of 3 learners of us-west/old lost: node-1 does not respond, and pod {VICTIM} stays: it mounts claim "
            f"state-{VICTIM} with {mode}"
        ),
    )


def test_a_claim_that_is_not_provisioned_is_named_with_the_reason() -> None:
    w = world(className="fast")
    w.pods.unprovisioned = 'storageclass.storage.k8s.io "fast" not found'
    w.pods.troubles[VICTIM] = unschedulable(NOT_BOUND)
    w.pods.delete(VICTIM)
    w.run(60)
    del w.pods.pods[VICTIM]["spec"]["nodeName"]
    w.run(30)
    assert degraded(w) == (
        "True",
        "VolumePending",
        (
            f"1 of 3 learners of us-west/old waiting for a volume: claim state-{VICTIM} is pending: "
            'storageclass.storage.k8s.io "fast" not found'
        ),
    )
    w.pods.unprovisioned = ""
    w.pods.troubles.clear()
    w.run(30)
    assert degraded(w)[0] == "False"


def seen(*, node: str = "", claim: bool = True, **metadata: str) -> PodObserved:
    mounted = {"persistentVolumeClaim": {"claimName": CLAIM.name}} if claim else {"emptyDir": {}}
    spec: dict[str, Any] = {"volumes": [{"name": "state", **mounted}], **({"nodeName": node} if node else {})}
    created = {"creationTimestamp": "2026-01-01T12:00:00Z"}
    return PodObserved({"metadata": {"name": VICTIM, **created, **metadata}, "spec": spec, "status": {}})


def told(message: str, at: str = "2026-01-01T12:01:00Z", reason: str = "ProvisioningFailed") -> dict[str, Any]:
    return {"reason": reason, "message": message, "lastTimestamp": at}


UNSCHEDULABLE = PodProblem(Reason.UNSCHEDULABLE, "0/2 nodes are available: 2 Insufficient cpu")
NO_VOLUME = PodProblem(Reason.VOLUME_PENDING, NOT_BOUND)
EARLIER = "2026-01-01T11:59:00Z"


@pytest.mark.parametrize(
    ("problem", "observed", "events", "expected"),
    [
        (NO_VOLUME, seen(), [told("no room")], "claim {} is pending: no room"),
        (NO_VOLUME, seen(), [told("first"), told("last", "2026-01-01T12:02:00Z")], "claim {} is pending: last"),
        (None, seen(), [told("no room")], "claim {} is pending: no room"),
        (
            PodProblem(Reason.UNSCHEDULABLE, 'running PreBind plugin "VolumeBinding": timed out'),
            *(seen(), [told("no room")], "claim {} is pending: no room"),
        ),
        (NO_VOLUME, seen(), [told("of an earlier claim", EARLIER)], NOT_BOUND),
        (NO_VOLUME, seen(), [told("another matter", reason="VolumeResizeFailed")], NOT_BOUND),
        (UNSCHEDULABLE, seen(), [told("no room")], UNSCHEDULABLE.detail),
        (NO_VOLUME, seen(claim=False), [told("no room")], NOT_BOUND),
        (None, seen(deletionTimestamp=EARLIER), [told("no room")], None),
        (None, seen(node="n1"), [told("no room")], None),
        (
            PodProblem(Reason.UNSCHEDULABLE, CONFLICT),
            *(seen(), [], CONFLICT + "; the volume of claim {} cannot be reached from other nodes"),
        ),
        (
            PodProblem(Reason.POD_NOT_STARTED, 'Multi-Attach error for volume "pvc-1"'),
            *(seen(node="n1"), [], 'Multi-Attach error for volume "pvc-1" (claim {})'),
        ),
        (
            PodProblem(Reason.POD_NOT_STARTED, "Unable to attach or mount volumes: unmounted volumes=[state]"),
            *(seen(node="n1"), [], "Unable to attach or mount volumes: unmounted volumes=[state] (claim {})"),
        ),
        (
            PodProblem(Reason.POD_NOT_STARTED, 'MountVolume.SetUp failed for volume "tls" : secret "x" not found'),
            *(seen(node="n1"), [], 'MountVolume.SetUp failed for volume "tls" : secret "x" not found'),
        ),
    ],
)
def test_what_is_said_of_a_pods_claim(
    problem: PodProblem | None, observed: PodObserved, events: list[dict[str, Any]], expected: str | None
) -> None:
    found = with_claims(problem, observed, {CLAIM: tuple(events)})
    assert (None if found is None else found.detail) == (None if expected is None else expected.format(CLAIM.name))


def test_a_claim_of_that_name_in_another_cluster_is_another_claim() -> None:
    there = PodObserved(seen().pod, (), "west")
    assert with_claims(NO_VOLUME, there, {CLAIM: (told("no room"),)}) == NO_VOLUME


def test_a_missing_storage_class_is_reported_until_the_claim_is_bound() -> None:
    w = World()
    w.pods.unprovisioned = 'storageclass.storage.k8s.io "fast" not found'
    w.pods.troubles["demo-syncer"] = unschedulable("0/1 nodes: pod has unbound immediate PersistentVolumeClaims.")
    w.run(30)
    assert w.status["phase"] == "Pending"
    expected = 'claim demo-syncer is pending: storageclass.storage.k8s.io "fast" not found'
    assert degraded(w) == ("True", "VolumePending", expected)
    assert w.condition("Ready")["reason"] == "WaitingForSyncer"
    w.pods.unprovisioned = ""
    w.pods.troubles.clear()
    w.run(30)
    assert degraded(w)[0] == "False"
    assert w.status["phase"] == "Training"


def test_a_claim_that_waits_for_its_first_pod_is_no_trouble() -> None:
    w = World()
    w.run(5)
    w.home.objects["PersistentVolumeClaim", "demo-syncer"]["status"] = {"phase": "Pending"}
    w.reconcile()
    assert degraded(w)[0] == "False"
