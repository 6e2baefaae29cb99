from tests.unit.operator.jobs.training_cluster import reasons, training

LEARNER = "us-west/old/1"


def test_each_loss_and_return_is_recorded_once() -> None:
    w = training()
    w.syncers["demo"].cut_off = {LEARNER}
    w.run(80)
    w.syncers["demo"].cut_off = set()
    w.run(80)
    told = [(event["type"], event["note"]) for event in w.api.events if event["reason"].startswith("Learners")]
    assert told == [
        ("Warning", f"1 learner(s) lost their session with the syncer: {LEARNER}"),
        *((one["type"], one["note"]) for one in w.api.events if one["reason"] == "LearnersMissing"),
        ("Normal", f"1 learner(s) joined the syncer again: {LEARNER}"),
    ]


def test_a_link_that_is_cut_again_and_again_is_told_once_a_minute() -> None:
    w = training()
    for _ in range(30):
        w.syncers["demo"].cut_off = {LEARNER}
        w.run(10)
        w.syncers["demo"].cut_off = set()
        w.run(10)
    told = [reason for reason in reasons(w) if reason in ("LearnersLost", "LearnersBack")]
    assert 5 <= len(told) <= 20


def test_another_operator_does_not_tell_of_it_again() -> None:
    w = training()
    w.syncers["demo"].cut_off = {LEARNER}
    w.run(20)
    w.new_operator()
    w.run(20)
    assert reasons(w).count("LearnersLost") == 1
