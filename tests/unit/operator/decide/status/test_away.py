from testbed.virtual_cluster.operator_world import World, job_object
from testbed.virtual_cluster.world_pods import stamp, unschedulable
from tests.unit.operator.decide.training_world import degraded, training_world


def test_an_unreachable_syncer_makes_ready_unknown_and_keeps_the_progress() -> None:
    w = training_world()
    progress = w.status["progress"]
    assert progress["tokensPerSecond"] > 0
    w.unreachable = "no answer within 3 s"
    w.tick()
    since = stamp(w.now)
    w.reconcile()
    for type_ in ("Ready", "Progressing"):
        assert (w.condition(type_)["status"], w.condition(type_)["reason"]) == ("Unknown", "SyncerUnreachable")
    assert w.condition("Degraded")["message"] == f"the syncer does not answer: no answer within 3 s, since {since}"
    assert w.status["phase"] == "Training"
    writes = w.status_writes
    w.run(300, every=20.0)
    assert w.status_writes == writes
    assert w.status["learners"] == {"desired": 4, "ready": 4, "training": 0, "summary": "?/4"}
    # How far it came is known, how fast it goes is not.
    rates = {"tokensPerSecond", "secondsLeft"}
    assert w.status["progress"]["tokensPerSecond"] == 0
    assert "secondsLeft" not in w.status["progress"]
    for field in set(progress) - rates:
        assert w.status["progress"][field] == progress[field]
    w.unreachable = ""
    w.run(15)
    assert w.condition("Ready")["status"] == "True"
    assert w.condition("Degraded")["status"] == "False"
    assert w.status["progress"]["step"] > progress["step"]


def test_pods_that_are_all_pending_are_not_said_to_train() -> None:
    w = training_world()
    for name in list(w.pods.pods):
        w.pods.troubles[name.rpartition("-")[0]] = unschedulable("0/4 nodes are available.")
    w.pods.troubles["demo-syncer"] = unschedulable("0/4 nodes are available.")
    w.run(3600, every=60.0)
    assert (w.condition("Ready")["status"], w.condition("Ready")["reason"]) == ("False", "SyncerUnreachable")
    assert w.status["phase"] == "Pending"
    assert w.status["learners"]["summary"] == "?/4"
    assert w.status["progress"]["tokensPerSecond"] == 0
    message, writes = w.condition("Degraded")["message"], w.status_writes
    w.run(600, every=60.0)
    assert w.status_writes == writes
    w.pods.troubles.clear()
    w.run(60)
    assert "the syncer does not answer: its pod is not ready, since " in message
    assert w.status["phase"] == "Training"
    assert w.condition("Degraded")["status"] == "False"


def loses_its_syncer_for_ten_minutes(w: World) -> None:
    """The phase says Training for ten minutes from the syncer's end, and Pending after them."""
    w.pods.troubles["demo-syncer"] = {"phase": "Pending"}
    w.pods.delete(w.pods_of("syncer")[0])
    w.run(580, every=20.0)
    assert w.status["phase"] == "Training"
    w.run(60)
    assert w.status["phase"] == "Pending"


def test_a_job_trains_until_its_syncer_is_not_ready_for_ten_minutes() -> None:
    w = training_world()
    loses_its_syncer_for_ten_minutes(w)
    w.change(suspend=True)
    w.run(90)
    assert w.status["phase"] == "Suspended"


def test_the_ten_minutes_begin_when_the_syncer_goes_not_the_quorum() -> None:
    w = training_world()
    w.syncer.stalled = set(w.syncer.joined)
    w.run(1200, every=60.0)
    assert (w.condition("Ready")["status"], w.condition("Ready")["reason"]) == ("False", "QuorumMissing")
    loses_its_syncer_for_ten_minutes(w)


def test_an_edited_message_without_a_time_has_the_wait_begin_anew() -> None:
    w = training_world()
    w.pods.troubles["demo-syncer"] = {"phase": "Pending"}
    w.pods.delete(w.pods_of("syncer")[0])
    w.run(580, every=20.0)
    said = w.condition("Ready")["message"].rpartition(", since ")[0]
    w.condition("Ready")["message"] = f"{said}, since long ago"
    w.run(60)
    assert w.status["phase"] == "Training"
    assert "long ago" not in w.condition("Ready")["message"]
    w.run(600, every=20.0)
    assert w.status["phase"] == "Pending"


def test_a_starting_syncer_is_waited_for_and_reported_a_while_after() -> None:
    w = World(unreachable="cannot connect: Connection refused")
    w.reconcile()
    assert w.condition("Ready")["reason"] == "WaitingForSyncer"
    assert w.condition("Degraded")["status"] == "False"
    w.run(60)
    assert w.condition("Ready")["reason"] == "SyncerUnreachable"
    assert w.status["phase"] == "Pending"


def test_the_deadline_counts_while_the_syncer_is_away() -> None:
    w = World(job=job_object(activeDeadlineSeconds=100))
    w.run(60)
    w.unreachable = "no answer within 3 s"
    w.run(60)
    assert w.status["reason"] == "DeadlineExceeded"


def test_a_full_disk_is_told_until_the_syncer_says_otherwise() -> None:
    w = training_world()
    w.syncer.checkpoint_problem = "no space left on device"
    w.run(10)
    assert degraded(w)[1] == "CheckpointFailing"
    told = "the syncer cannot write checkpoints: no space left on device (when the syncer last answered)"
    w.change(syncer={"resources": {"requests": {"cpu": "1"}}})
    w.run(10)
    assert w.condition("Ready")["reason"] == "WaitingForSyncer"
    assert degraded(w) == ("True", "CheckpointFailing", told)
    w.change(suspend=True)
    w.run(120)
    assert w.condition("Suspended")["message"] == ""
    assert degraded(w) == ("True", "CheckpointFailing", told)
    assert "no longer degraded" not in str(w.events)
    w.syncer.checkpoint_problem = ""
    w.change(suspend=False)
    w.run(60)
    assert degraded(w)[0] == "False"


def test_a_replaced_syncer_gives_no_all_clear_of_its_learners() -> None:
    w = training_world()
    w.syncer.stalled = {"us-east/new/0"}
    w.run(10)
    w.change(syncer={"resources": {"requests": {"cpu": "1"}}})
    w.run(10)
    assert degraded(w)[1] == "LearnersStalled"
    w.change(suspend=True)
    w.run(120)
    assert degraded(w)[0] == "False", "no learner runs"


def test_a_drained_syncer_is_told_as_evicted_and_not_as_changed() -> None:
    w = training_world()
    (name,) = w.pods_of("syncer")
    why = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
    w.pods.pods[name]["status"]["conditions"].append({"type": "DisruptionTarget", "status": "True", **why})
    w.pods.delete(name)
    w.run(5)
    assert degraded(w) == ("True", "Evicted", "syncer evicted: Eviction API: evicting (node-1)")
    told = "the syncer's pod was evicted: Eviction API: evicting (node-1)"
    assert (w.condition("Ready")["reason"], w.condition("Ready")["message"]) == ("WaitingForSyncer", told)
    w.run(60)
    assert w.condition("Ready")["status"] == "True"
    assert degraded(w)[0] == "False"


def test_a_syncer_that_is_replaced_as_the_user_wanted_is_no_warning() -> None:
    w = training_world()
    told = len(w.events)
    w.change(syncer={"resources": {"requests": {"cpu": "1"}}})
    w.run(40)
    assert w.condition("Ready")["reason"] == "Training"
    assert [(one.type, one.reason) for one in w.events[told:]] == [
        ("Normal", "WaitingForSyncer"),
        ("Normal", "Training"),
    ]
