"""Problems of pods: each has its reason, is counted by pool, and clears when it is over."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from diloco_operator.decide.causes.pods import seconds_until_lost
from testbed.virtual_cluster.operator_world import World, job_object
from testbed.virtual_cluster.world_pods import crashed, unschedulable, waiting
from tests.unit.operator.decide.training_world import OLD, degraded, training_world

TWO = "2 of 3 learners of us-west/old"
NO_GPU = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu"
NO_NODE = f"{TWO} unschedulable: {NO_GPU}"
IMAGE = "r.example/none:1"
NO_IMAGE = f"{TWO} cannot pull the image: {IMAGE}: not found"
BACK_OFF = f'Back-off pulling image "{IMAGE}"'
PULL_EVENTS = (("Failed", f'Failed to pull image "{IMAGE}": not found'), ("Failed", "Error: ErrImagePull"))
LONG = "registry.example/team/trainer@sha256:" + "0" * 64
STEPS = f'failed to pull and unpack image "{LONG}": failed to resolve reference "{LONG}"'
LAST_LINES = "starting\n" + json.dumps({"level": "ERROR", "message": "data.text.path: /data/none is not there"}) + "\n"

POD_TROUBLES: dict[str, tuple[dict[str, Any], str, str]] = {
    "no node": (unschedulable(f"{NO_GPU}."), "Unschedulable", NO_NODE),
    "no node, by newer words": (unschedulable(f"{NO_GPU}. no new claims to deallocate,"), "Unschedulable", NO_NODE),
    "a claim of the user's that is not there": (
        unschedulable('0/1 nodes are available: persistentvolumeclaim "corpus" not found.'),
        "VolumePending",
        'waiting for a volume: 0/1 nodes are available: persistentvolumeclaim "corpus" not found',
    ),
    "a volume that is not bound in time": (
        unschedulable('running PreBind plugin "VolumeBinding": binding volumes: context deadline exceeded'),
        *("VolumePending", f"{TWO} waiting for a volume: binding volumes: context deadline exceeded"),
    ),
    "another plugin of the scheduler": (
        unschedulable('running "DynamicResources" filter plugin: allocate claim: no driver'),
        *("Unschedulable", f"{TWO} unschedulable: allocate claim: no driver"),
    ),
    "an image that is being tried": (waiting("ErrImagePull", "not found", image=IMAGE), "ImagePullFailed", NO_IMAGE),
    "the same image while it is not": (
        waiting("ImagePullBackOff", f"{BACK_OFF}: ErrImagePull: not found", image=IMAGE),
        *("ImagePullFailed", NO_IMAGE),
    ),
    "an image of a long name": (
        waiting("ImagePullBackOff", f'Back-off pulling image "{LONG}": ErrImagePull: {STEPS}: not found', image=LONG),
        "ImagePullFailed",
        f"{TWO} cannot pull the image: {LONG}: not found",
    ),
    "the same image in an older cluster": (
        waiting("ImagePullBackOff", BACK_OFF, image=IMAGE, events=PULL_EVENTS),
        *("ImagePullFailed", NO_IMAGE),
    ),
    "a missing Secret in its environment": (
        waiting("CreateContainerConfigError", 'secret "token" not found'),
        "PodNotStarted",
        'cannot be started: secret "token" not found',
    ),
    "a missing ConfigMap among its volumes": (
        waiting(
            "ContainerCreating", "", events=(("FailedMount", 'MountVolume.SetUp failed: configmap "x" not found'),)
        ),
        "PodNotStarted",
        'cannot be started: MountVolume.SetUp failed: configmap "x" not found',
    ),
    "no sandbox": (
        waiting("ContainerCreating", "", events=(("FailedCreatePodSandBox", "no RuntimeClass"),)),
        "PodNotStarted",
        "cannot be started: no RuntimeClass",
    ),
    "bad input": (
        crashed(2, LAST_LINES, restarts=1),
        "ConfigurationError",
        f"{TWO} stopped by a configuration error: data.text.path: /data/none is not there",
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


@pytest.mark.parametrize("trouble", POD_TROUBLES)
def test_a_pod_problem_is_reported_with_pool_count_and_cause_until_solved(trouble: str) -> None:
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


@pytest.mark.parametrize(
    ("grace", "silent", "seconds"), [(120, True, 60.0), (1200, False, 60.0), (1200, True, -990.0), (None, True, 60.0)]
)
def test_a_silent_node_is_not_given_the_time_of_a_large_checkpoint(
    grace: int | None, seconds: float, *, silent: bool
) -> None:
    given = {} if grace is None else {"deletionGracePeriodSeconds": grace}
    conditions = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": str(silent)}]
    pod = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", **given}, "status": {"conditions": conditions}}
    assert seconds_until_lost(pod, datetime(2026, 1, 1, tzinfo=UTC), 60.0) == seconds
