"""What goes wrong with pods, volumes and objects: each its reason, counted by pool, and cleared when mended."""

import json
from datetime import timedelta
from typing import Any

import pytest

from diloco_operator.decide.observed import ChildKey
from testbed.virtual_cluster.operator_world import World, job_object
from testbed.virtual_cluster.world_pods import crashed, running, stamp, unschedulable, waiting
from testbed.virtual_cluster.world_syncer import THIN_LINKS

OLD = "demo--us-west-old-"
NO_GPU = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
LONG = "registry.example/team/trainer@sha256:" + "0" * 64
STEPS = f'failed to pull and unpack image "{LONG}": failed to resolve reference "{LONG}"'
LAST_LINES = "starting\n" + json.dumps({"level": "ERROR", "message": "data.text.path: /data/none is not there"}) + "\n"

POD_TROUBLES: dict[str, tuple[dict[str, Any], str, str]] = {
    "no node": (
        unschedulable(NO_GPU),
        "Unschedulable",
        "2 of 3 learners of us-west/old unschedulable: 0/4 nodes are available: 4 Insufficient nvidia.com/gpu",
    ),
    "no node, as newer schedulers put it": (
        unschedulable(f"{NO_GPU} no new claims to deallocate,"),
        "Unschedulable",
        "2 of 3 learners of us-west/old unschedulable: 0/4 nodes are available: 4 Insufficient nvidia.com/gpu",
    ),
    "a claim of the user's that is not there": (
        unschedulable('0/1 nodes are available: persistentvolumeclaim "corpus" not found.'),
        "VolumePending",
        'waiting for a volume: 0/1 nodes are available: persistentvolumeclaim "corpus" not found',
    ),
    "an image that is being tried": (
        waiting("ErrImagePull", "not found", image="r.example/none:1"),
        "ImagePullFailed",
        "2 of 3 learners of us-west/old cannot pull the image: r.example/none:1: not found",
    ),
    "the same image while it is not": (
        waiting(
            "ImagePullBackOff",
            'Back-off pulling image "r.example/none:1": ErrImagePull: not found',
            image="r.example/none:1",
        ),
        "ImagePullFailed",
        "2 of 3 learners of us-west/old cannot pull the image: r.example/none:1: not found",
    ),
    "an image of a long name": (
        waiting("ImagePullBackOff", f'Back-off pulling image "{LONG}": ErrImagePull: {STEPS}: not found', image=LONG),
        "ImagePullFailed",
        f"2 of 3 learners of us-west/old cannot pull the image: {LONG}: not found",
    ),
    "the same image in an older cluster": (
        waiting(
            "ImagePullBackOff",
            'Back-off pulling image "r.example/none:1"',
            image="r.example/none:1",
            events=(
                ("Failed", 'Failed to pull image "r.example/none:1": not found'),
                ("Failed", "Error: ErrImagePull"),
            ),
        ),
        "ImagePullFailed",
        "2 of 3 learners of us-west/old cannot pull the image: r.example/none:1: not found",
    ),
    "a missing Secret in its environment": (
        waiting("CreateContainerConfigError", 'secret "token" not found'),
        "ContainerConfigError",
        'cannot create the container: secret "token" not found',
    ),
    "a missing ConfigMap among its volumes": (
        waiting(
            "ContainerCreating", "", events=(("FailedMount", 'MountVolume.SetUp failed: configmap "x" not found'),)
        ),
        "MountFailed",
        'cannot mount a volume: MountVolume.SetUp failed: configmap "x" not found',
    ),
    "no sandbox": (
        waiting("ContainerCreating", "", events=(("FailedCreatePodSandBox", "no RuntimeClass"),)),
        "SandboxFailed",
        "cannot create the sandbox: no RuntimeClass",
    ),
    "bad input": (
        crashed(2, LAST_LINES, restarts=1),
        "ConfigurationError",
        "2 of 3 learners of us-west/old stopped by a configuration error: data.text.path: /data/none is not there",
    ),
    "turned away": (crashed(3, "us-west/old/0: certificate of another job"), "Refused", "refused by the syncer: us-"),
    "too much memory": (crashed(137, "", reason="OOMKilled", restarts=1), "OutOfMemory", "out of memory"),
    "killed again and again": (crashed(137, "", restarts=4), "CrashLooping", "crash-looping: ended by signal 9"),
    "a fault": (crashed(1, "Traceback\nValueError: x"), "CrashLooping", "crash-looping: exit code 1: ValueError: x"),
    "evicted": (
        {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
        "Evicted",
        "evicted: Evicted: The node was low on resource: memory.",
    ),
}


def training_world() -> World:
    world = World(job=job_object(tokens=100_000_000))
    world.run(60)
    return world


def degraded(world: World) -> tuple[str, str, str]:
    found = world.condition("Degraded")
    return found["status"], found["reason"], found["message"]


@pytest.mark.parametrize("trouble", POD_TROUBLES)
def test_a_pods_trouble_is_told_with_pool_count_and_cause_and_cleared_when_mended(trouble: str) -> None:
    status, reason, words = POD_TROUBLES[trouble]
    w = training_world()
    for index in (1, 2):
        w.pods.troubles[f"{OLD}{index}"] = status
    w.run(10)
    found = degraded(w)
    assert found[:2] == ("True", reason)
    assert words in found[2]
    assert w.status["phase"] == "Training", "the others train on"
    assert w.condition("Ready")["status"] == "True"
    assert w.status["learners"]["summary"] == "2/4"
    assert w.status["reason"] == reason
    w.run(20)
    assert degraded(w) == found
    assert [event.reason for event in w.events].count(reason) == 1
    w.pods.troubles.clear()
    w.run(30)
    assert degraded(w) == ("False", "AsExpected", "")
    assert w.events[-1].message == f"no longer degraded (was {reason})"


HARMLESS = {
    "being created": waiting("ContainerCreating", ""),
    "started again once": waiting(
        "ContainerCreating", "", lastState={"terminated": {"exitCode": 137, "reason": "Error"}}, restartCount=1
    ),
    "pulled, after its volumes were late": waiting(
        "ContainerCreating", "", events=(("FailedMount", "failed to sync configmap cache: timed out"),)
    )
    | {"conditions": [{"type": "PodReadyToStartContainers", "status": "True"}]},
    "just scheduled, with a volume that is tried again": waiting(
        "ContainerCreating", "", events=(("FailedMount", 'object "ns"/"demo-job" not registered'),)
    )
    | {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2099-01-01T00:00:00Z"}]},
    "told that the job is over": crashed(4, "the job is over"),
}


@pytest.mark.parametrize("status", HARMLESS.values(), ids=HARMLESS)
def test_what_passes_by_itself_degrades_nothing(status: dict[str, Any]) -> None:
    w = training_world()
    w.pods.troubles[f"{OLD}1"] = status
    w.run(20)
    assert degraded(w)[0] == "False"


def test_several_causes_stand_in_one_message_the_gravest_first() -> None:
    w = training_world()
    w.pods.troubles = {
        f"{OLD}0": unschedulable(NO_GPU),
        f"{OLD}1": crashed(2, "no data"),
        "demo--us-east": crashed(1, "x"),
    }
    w.syncer.checkpoint_problem = "No space left on device"
    w.run(10)
    status, reason, message = degraded(w)
    assert (status, reason) == ("True", "CheckpointFailing")
    assert [part.split(":")[0] for part in message.split("; ")] == [
        "the syncer cannot write checkpoints",
        "1 of 3 learners of us-west/old stopped by a configuration error",
        "1 of 3 learners of us-west/old unschedulable",
        "1 of 1 learners of us-east/new crash-looping",
    ]


def test_the_commonest_detail_is_told_for_a_pool() -> None:
    w = training_world()
    w.pods.troubles = {f"{OLD}0": crashed(1, "b"), f"{OLD}1": crashed(1, "a"), f"{OLD}2": crashed(1, "b")}
    w.run(10)
    assert degraded(w)[2] == "3 of 3 learners of us-west/old crash-looping: exit code 1: b"


def test_a_message_is_bounded_whatever_pods_say() -> None:
    w = training_world()
    w.pods.troubles = {f"{OLD}{index}": crashed(index + 1, f"{index} " + "long " * 1000) for index in range(3)}
    w.run(10)
    assert len(degraded(w)[2]) <= 1000


def test_a_missing_storage_class_is_told_and_cleared_once_the_claim_is_bound() -> None:
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
    w.children[ChildKey("PersistentVolumeClaim", "demo-syncer")]["status"] = {"phase": "Pending"}
    assert degraded(w)[0] == "False"


def test_a_syncer_that_cannot_start_says_why() -> None:
    w = World()
    w.pods.troubles["demo-syncer"] = crashed(2, "the checkpoint is of another job")
    w.run(20)
    assert degraded(w) == (
        "True",
        "ConfigurationError",
        "syncer stopped by a configuration error: the checkpoint is of another job",
    )


def test_pods_that_may_not_be_created_are_told_with_the_controllers_words() -> None:
    w = World()
    w.pods.forbidden.add("demo--us-west-old")
    w.run(40)
    assert degraded(w) == ("True", "PodsForbidden", "pods of us-west/old cannot be created: exceeded quota")
    w.pods.forbidden.clear()
    w.run(30)
    assert degraded(w)[0] == "False"


def test_a_pod_that_does_not_end_names_its_lost_node() -> None:
    w = training_world()
    w.pods.stuck.add(f"{OLD}1")
    w.pods.delete(f"{OLD}1")
    w.run(60)
    assert degraded(w)[0] == "False"
    w.run(60)
    assert degraded(w)[1:] == (
        "NodeLost",
        f"1 of 3 learners of us-west/old cannot be deleted: node-1 does not respond, so pod {OLD}1 stays",
    )


def test_a_lost_nodes_learner_is_waited_for_a_while_and_then_the_syncer_stops_without_it() -> None:
    w = training_world()
    w.pods.stuck.add(f"{OLD}1")
    w.change(suspend=True)
    w.run(50)
    assert w.condition("Suspended")["reason"] == "Suspending"
    assert w.syncer_pods(), "it may still hand in its work"
    w.run(150)
    assert not w.syncer_pods()
    assert w.condition("Suspended")["status"] == "True"
    assert degraded(w)[1] == "NodeLost"
    w.pods.stuck.clear()
    w.run(60)
    assert w.status["phase"] == "Suspended"
    assert degraded(w)[0] == "False"


def test_a_complete_job_lets_its_syncer_go_although_a_learners_node_is_lost() -> None:
    w = training_world()
    w.pods.stuck.add(f"{OLD}1")
    w.syncer.merged = w.syncer.budget
    w.run(200)
    assert w.status["phase"] == "Complete"
    assert w.learner_pods() == [f"{OLD}1"]
    assert not w.syncer_pods()
    assert degraded(w)[1:] == (
        "NodeLost",
        f"1 learner(s) of us-west/old cannot be deleted: node-1 does not respond, so pod {OLD}1 stays",
    )
    w.pods.stuck.clear()
    w.run(60)
    assert degraded(w)[0] == "False"


def test_a_syncer_on_a_lost_node_is_not_said_to_be_suspended() -> None:
    w = training_world()
    w.pods.stuck |= set(w.syncer_pods())
    w.change(suspend=True)
    w.run(300)
    assert w.condition("Suspended")["status"] == "False"
    assert degraded(w)[1] == "NodeLost"


def test_a_running_learner_that_the_syncer_has_not_heard_of_is_missing() -> None:
    w = training_world()
    w.pods.troubles[f"{OLD}1"] = running(w.now) | {"conditions": [{"type": "Ready", "status": "False"}]}
    w.run(30)
    assert degraded(w)[0] == "False", "it may still be loading"
    w.run(60)
    assert degraded(w)[1:] == ("LearnersMissing", "1 of 3 learners of us-west/old running but not joined to the syncer")


def test_given_up_and_stalled_learners_are_named_and_a_given_up_ones_pod_is_not_held_against_it() -> None:
    w = training_world()
    w.syncer.given_up = {"us-west/old/0"}
    w.syncer.stalled = {"us-east/new/0"}
    w.pods.troubles[f"{OLD}0"] = crashed(3, "given up")
    w.run(10)
    assert degraded(w)[1:] == (
        "LearnersGivenUp",
        "us-west/old/0 given up after too many restarts; us-east/new/0 connected but making no steps",
    )


def test_an_incomplete_tape_is_told() -> None:
    w = training_world()
    w.syncer.tape_problem = "No space left on device"
    w.run(10)
    assert degraded(w)[1:] == ("TapeFailing", "the tape is incomplete: No space left on device")


def test_links_that_do_not_carry_the_schedule_are_told_with_what_would_do() -> None:
    w = training_world()
    w.syncer.links = THIN_LINKS
    w.run(10)
    would_do = "; remedies: sync.interval: 34; or 33.3 Mbit/s on the link us-west/old"
    assert degraded(w) == ("True", "LinkTooThin", THIN_LINKS["reason"] + would_do)
    assert w.condition("Ready")["status"] == "True"
    w.syncer.links = THIN_LINKS | {"kind": "Fits", "since_seconds": 1.0}
    w.run(10)
    assert degraded(w)[0] == "False"


def test_a_kind_of_a_newer_syncer_is_no_trouble() -> None:
    w = training_world()
    w.syncer.links = THIN_LINKS | {"kind": "LinkHaunted"}
    w.run(10)
    assert degraded(w)[0] == "False"


def test_a_verdict_that_lasts_costs_no_further_write() -> None:
    w = training_world()
    w.syncer.links = THIN_LINKS
    w.syncer.frozen = True
    w.run(60)
    before = w.condition("Degraded")
    w.syncer.links = THIN_LINKS | {"since_seconds": 600.0, "used": []}
    w.run(60)
    assert w.condition("Degraded") == before


def test_fewer_learners_than_the_quorum_are_not_ready() -> None:
    w = World(job=job_object(tokens=10_000_000, sync={"quorum": 3}))
    w.run(60)
    assert w.condition("Ready")["status"] == "True"
    for index in range(3):
        w.pods.troubles[f"{OLD}{index}"] = unschedulable(NO_GPU)
    w.run(10)
    assert (w.condition("Ready")["status"], w.condition("Ready")["reason"]) == ("False", "QuorumMissing")
    assert w.condition("Ready")["message"] == "1 of 4 learners train, spec.sync.quorum is 3"
    assert w.status["reason"] == "Unschedulable"


def test_an_object_that_the_api_server_refuses_is_told_and_tried_again() -> None:
    key = ChildKey("StatefulSet", "demo--us-west-old")
    w = World(refusals={key: "spec.template.spec.containers[0].resources.requests: quantities must match"})
    w.run(60)
    assert degraded(w)[1] == "ApplyRefused"
    assert degraded(w)[2].startswith("the API server rejected StatefulSet demo--us-west-old: spec.template")
    assert w.status["learners"]["training"] == 1, "the other pool trains"
    w.refusals.clear()
    w.run(60)
    assert degraded(w)[0] == "False"
    assert w.status["learners"]["summary"] == "4/4"


def test_a_name_that_is_taken_is_left_alone_and_nothing_new_is_made() -> None:
    key = ChildKey("Service", "demo-syncer")
    w = World(foreign=frozenset({key}))
    w.run(30)
    assert not w.children
    assert degraded(w) == ("True", "NameTaken", "names taken by another owner: Service demo-syncer")
    w.foreign = frozenset()
    w.run(60)
    assert w.status["phase"] == "Training"
    assert degraded(w)[0] == "False"


def test_a_job_that_runs_is_kept_running_while_one_of_its_names_is_taken() -> None:
    w = training_world()
    key = ChildKey("Service", "demo-syncer")
    taken = w.children.pop(key)
    w.foreign = frozenset({key})
    w.set_named("us-west/old")["spec"]["replicas"] = 1
    w.run(30)
    assert w.set_named("us-west/old")["spec"]["replicas"] == 3
    assert degraded(w)[1] == "NameTaken"
    assert taken["metadata"]["name"] == "demo-syncer"


INVALID: dict[str, tuple[dict[str, Any], str, str]] = {
    "a mistake": ({"sync": {"quorum": 9}}, "InvalidSpec", "spec.sync.quorum: 9 is above the 4 learners"),
    "another cluster": (
        {
            "syncer": {"expose": {"type": "LoadBalancer"}},
            "regions": [
                {"name": "a", "cluster": {"kubeconfigSecret": {"name": "far"}}, "pools": [{"name": "b"}]},
            ],
        },
        "RemoteClusterUnsupported",
        "spec.regions[0].cluster: other clusters are not supported; remove it",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_what_cannot_be_is_invalid_and_creates_nothing(case: str) -> None:
    spec, reason, words = INVALID[case]
    w = World(job=job_object(**spec))
    w.run(30)
    assert not w.children
    assert (w.status["phase"], w.status["reason"]) == ("Invalid", reason)
    assert words in w.condition("Ready")["message"]
    assert w.status_writes == 1
    assert [(event.type, event.reason) for event in w.events] == [("Warning", reason)]


def test_without_any_image_nothing_is_created_until_there_is_one() -> None:
    w = World()
    w.options = type(w.options)(operator_namespace="diloco-system")
    w.run(30)
    assert not w.children
    assert (w.status["phase"], w.status["reason"]) == ("Pending", "NoImage")
    w.change(image="registry.example/diloco@sha256:" + 64 * "0")
    w.run(60)
    assert w.status["phase"] == "Training"


def test_what_runs_of_a_job_that_became_invalid_is_left_running() -> None:
    w = training_world()
    progress = w.status["progress"]
    w.change(sync={"quorum": 9})
    w.run(30)
    assert w.status["phase"] == "Invalid"
    assert w.condition("Ready")["message"].endswith("what already runs keeps running")
    assert len(w.pods.pods) == 5
    assert w.status["progress"]["step"] == progress["step"]
    w.change(sync={"quorum": 1})
    w.run(30)
    assert w.status["phase"] == "Training"


def test_a_status_that_somebody_has_spoilt_is_written_anew() -> None:
    w = training_world()
    w.job["status"] = {"phase": 7, "conditions": "none"}
    w.run(10)
    assert w.status["phase"] == "Training"
    assert w.status["startTime"] <= stamp(w.now + timedelta(seconds=1))
