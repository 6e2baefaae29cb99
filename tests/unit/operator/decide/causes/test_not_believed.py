from testbed.virtual_cluster.operator_world import World
from tests.unit.operator.decide.training_world import degraded, training_world

WORDS = "it is 40 times as large in wte as the others are"


def given_up(index: int) -> str:
    learner = f"us-west/old/{index}"
    remedy = f"annotate the job with diloco.dev/readmit={learner} to let it back in"
    return f"{learner} given up after too many restarts; {remedy}"


def left_out_of_pools(world: World) -> dict[str, int | None]:
    return {
        f"{region['name']}/{pool['name']}": pool.get("leftOut")
        for region in world.status["regions"]
        for pool in region["pools"]
    }


def test_a_left_out_learner_degrades_the_job_and_is_named_with_the_reason() -> None:
    w = training_world()
    w.syncer.left_out = {"us-west/old/1": WORDS, "us-west/old/0": "", "us-west/old/9": "no longer planned"}
    w.run(10)
    assert degraded(w) == ("True", "LearnersDiverging", f"merges leave out us-west/old/1: {WORDS}")
    assert left_out_of_pools(w) == {"us-east/new": None, "us-west/old": 1}
    assert (w.condition("Ready")["status"], w.status["reason"]) == ("True", "LearnersDiverging")
    assert [(event.type, event.reason) for event in w.events][-1] == ("Warning", "LearnersDiverging")
    w.syncer.left_out = {}
    w.run(10)
    assert degraded(w)[0] == "False"
    assert left_out_of_pools(w) == {"us-east/new": None, "us-west/old": None}


def test_many_that_are_left_out_are_told_together() -> None:
    w = training_world()
    spiked = "it holds values that are not finite"
    w.syncer.left_out = {"us-east/new/0": WORDS, "us-west/old/0": spiked, "us-west/old/2": WORDS}
    w.run(10)
    without = "merges leave out"
    expected = f"{without} us-east/new/0, us-west/old/2: {WORDS}; {without} us-west/old/0: {spiked}"
    assert degraded(w)[1:] == ("LearnersDiverging", expected)
    w.syncer.left_out = {f"us-west/old/{index}": f"{index}" for index in range(3)} | {"us-east/new/0": "9"}
    w.run(10)
    assert f"{without} us-west/old/1: 1" in degraded(w)[2]
    assert f"{without} 1 more learner(s)" in degraded(w)[2]
    w.syncer.left_out = {f"us-west/old/{index}": f"{index} " + "x" * 5000 for index in range(3)}
    w.run(10)
    assert len(degraded(w)[2]) <= 1000


def test_of_one_that_was_given_up_only_that_is_told() -> None:
    w = training_world()
    w.syncer.left_out, w.syncer.given_up = {"us-west/old/1": WORDS}, {"us-west/old/1"}
    w.run(10)
    assert degraded(w)[1:] == ("LearnersGivenUp", given_up(1))
    assert left_out_of_pools(w)["us-west/old"] is None


def test_an_evaluation_in_doubt_is_shown_beside_the_loss_that_is_believed() -> None:
    w = training_world()
    assert "doubtedLoss" not in w.status["progress"]
    # A doubt alone is news enough for a write.
    w.syncer.frozen = True
    w.run(30)
    w.syncer.doubted_loss = 0.01
    w.run(20)
    assert w.status["progress"]["doubtedLoss"] == "0.010"
    w.syncer.doubted_loss = float("nan")
    w.run(20)
    assert w.status["progress"]["doubtedLoss"] == "NaN"
    w.syncer.doubted_loss = None
    w.run(20)
    assert "doubtedLoss" not in w.status["progress"]


def test_the_quorum_in_force_is_shown_and_a_job_that_has_it_is_ready() -> None:
    w = training_world(sync={"quorum": 4})
    assert "quorum" not in w.status["learners"]
    w.syncer.given_up, w.syncer.quorum = {"us-west/old/2"}, 3
    w.run(10)
    ready = w.condition("Ready")
    assert (ready["status"], ready["message"]) == (
        "True",
        "3 of 4 learners train, the quorum is 3 (spec.sync.quorum is 4)",
    )
    assert w.status["learners"]["quorum"] == 3
    lowered = "the quorum is 3, below spec.sync.quorum (4): only 3 learner(s) are left"
    assert degraded(w)[1:] == ("LearnersGivenUp", f"{given_up(2)}; {lowered}")
    w.syncer.given_up, w.syncer.quorum = set(), 4
    w.run(10)
    assert "quorum" not in w.status["learners"]
    assert degraded(w)[0] == "False"


def test_fewer_than_the_quorum_in_force_is_told_by_that_quorum() -> None:
    w = training_world(sync={"quorum": 4})
    w.syncer.given_up, w.syncer.stalled, w.syncer.quorum = {"us-west/old/2"}, {"us-west/old/1"}, 3
    w.run(10)
    ready = w.condition("Ready")
    assert (ready["reason"], ready["message"]) == (
        "QuorumMissing",
        "2 of 4 learners train, the quorum is 3 (spec.sync.quorum is 4)",
    )
