"""How jobs of a cluster are displayed, compared with complete texts, and as plain lines."""

from datetime import UTC, datetime

from diloco.cli.live.cluster_jobs import seen_job
from diloco.cli.live.cluster_view import Closeup, job_line, job_view, jobs_table, most_telling, news_lines
from diloco.local.view.snapshot import LearnerSnapshot, RunSnapshot
from tests.support.drawn import drawn
from tests.support.seen_jobs import UNSCHEDULABLE, complete_status, condition, job, training_status
from tests.support.status_of_a_job import changed, learner_status

NOW = datetime(2026, 1, 2, 3, 9, 17, tzinfo=UTC)


def learner(index: int, state: str = "training") -> LearnerSnapshot:
    time = {"merged": 80.0, "late": 15.0, "lost": 5.0} if state == "training" else {}
    status = changed(learner_status(index), steps=40 + index, loss=1.5, tokens_per_second=2000.0, time_seconds=time)
    return LearnerSnapshot(f"us-east/new/{index}", state, 0, status)


def snapshot(*learners: LearnerSnapshot) -> RunSnapshot:
    return RunSnapshot("two-regions", 312.0, "training", learners)


def test_jobs_are_a_line_each() -> None:
    waiting = job(
        training_status(
            phase="Pending",
            reason="NoImage",
            progress=None,
            learners={"desired": 2, "ready": 0, "training": 0, "summary": "0/2"},
        ),
        name="a-new-one",
    )
    jobs = (waiting, job(), job(complete_status(), name="done"), job({}, name="unknown"))
    assert drawn(jobs_table(jobs, namespaces=False)) == (
        "job          phase     step  progress         learners   loss  goodput  tokens/s   left  reason\n"
        "a-new-one    Pending      0             0%         0/2      -        -         0      -  NoImage\n"
        "two-regions  Training   120  ━━━━       42%        3/4  1.630      88%    12.3 k  3m05s  Unschedulable\n"
        "done         Complete   290  ━━━━━━━━━━ 100%       0/0  1.398      92%         0      -  BudgetReached\n"
        "unknown      Pending      0             0%         0/0      -        -         0      -  no status yet"
    )
    table = drawn(jobs_table((job(), job(namespace="other")), namespaces=True), width=130)
    assert [line.split()[0] for line in table.splitlines()] == ["namespace", "ml", "other"]
    assert drawn(jobs_table((), namespaces=True)) == "no jobs"


def test_a_job_whose_syncer_may_not_be_asked_is_shown_from_its_status() -> None:
    unseen = Closeup(unseen="not permitted: pods is forbidden")
    assert drawn(job_view(job(), unseen, NOW)) == (
        "two-regions  in ml  Training  Unschedulable  3/4 learners train\n"
        "Degraded  for 5m12s  Unschedulable  1 of 2 learners of us-west/old unschedulable: 0/4 nodes have\n"
        "                                    nvidia.com/gpu\n"
        "step 120  loss 1.630  training 1.712  goodput 88%  merged 76%  12.3 k tokens/s\n"
        "━━━━━━━━━━━━━━━━╸                        42% 840 k of 2.00 M tokens  3m05s left\n"
        "pool         train  ready  wanted  StatefulSet\n"
        "us-east/new      2      2       2  two-regions-new\n"
        "us-west/old      1      1       2  two-regions-old\n"
        "restarts: us-west/old/0 2\n"
        "Learners are not shown individually: not permitted: pods is forbidden"
    )


def test_an_elastic_pool_is_shown_with_its_bounds_and_why_learners_wait() -> None:
    waits = "5 of 8 learners of us-west/spot (minimum 2) unschedulable: 0/3 nodes are available"
    spot = {"name": "spot", "desired": 8, "ready": 3, "training": 3, "minimum": 2, "waiting": 5, "message": waits}
    spot["fallbackLearners"] = 4
    status = training_status(regions=[{"name": "us-west", "desired": 8, "training": 3, "pools": [spot]}])
    lines = drawn(job_view(job(status), Closeup(), NOW)).splitlines()
    assert "pool          train  ready  wanted  StatefulSet" in lines
    assert "us-west/spot      3      3  2 to 8  -" in lines
    assert waits in lines
    assert "4 learners of us-west/spot run in the region's next pool" in lines


def test_pods_are_shown_if_learners_have_several() -> None:
    unit = {"name": "big", "desired": 4, "ready": 1, "readyPods": 3, "nodesPerLearner": 2, "training": 1}
    single = {"name": "old", "desired": 2, "ready": 2, "training": 2}
    status = training_status(regions=[{"name": "us-west", "desired": 6, "training": 3, "pools": [unit, single]}])
    lines = drawn(job_view(job(status), Closeup(), NOW)).splitlines()
    assert "pool         train  ready  wanted  pods ready  StatefulSet" in lines
    assert "us-west/big      1      1       4      3 of 8  -" in lines
    assert "us-west/old      2      2       2           2  -" in lines


def test_doubts_left_out_learners_and_the_quorum_are_shown_from_the_status() -> None:
    status = training_status()
    status["progress"]["doubtedLoss"] = "0.010"
    status["learners"]["quorum"] = 3
    status["regions"][1]["pools"][0]["leftOut"] = 1
    text = drawn(job_view(job(status), Closeup(), NOW))
    assert "3/4 learners train  quorum 3" in text
    assert "loss 1.630, in doubt: 0.010" in text
    assert (
        "pool         train  ready  wanted  left out  StatefulSet\n"
        "us-east/new      2      2       2         0  two-regions-new\n"
        "us-west/old      1      1       2         1  two-regions-old\n"
    ) in text
    assert "loss 1.630, in doubt: 0.010 (training 1.712)" in job_line(job(status))


def test_a_job_whose_syncer_answers_is_shown_learner_by_learner() -> None:
    view = drawn(job_view(job(), Closeup(snapshot(learner(0), learner(1, "absent"))), NOW))
    assert view.endswith(
        "us-west/old      1      1       2  two-regions-old\n"
        "two-regions  syncer training\n"
        "                      5m12s elapsed\n"
        "learner        state     step   loss  tokens/s  waiting  merged  restarts\n"
        "us-east/new/0  training    40  1.500    2.00 k    0.0 %     80%         0\n"
        "us-east/new/1  absent      41  1.500    2.00 k        -       -         0"
    )


def test_where_room_is_short_learners_that_do_not_train_are_shown_first() -> None:
    learners = (learner(0), learner(1), learner(2, "absent"), learner(3), learner(4, "stalled"))
    assert [each.id[-1] for each in most_telling(learners, 3)] == ["0", "2", "4"]
    view = drawn(job_view(job(), Closeup(snapshot(*learners), learners_shown=3), NOW))
    assert view.endswith("\nand 2 more learners that train")


def test_a_complete_job_says_where_its_model_is() -> None:
    assert drawn(job_view(job(complete_status()), Closeup(), NOW)) == (
        "two-regions  in ml  Complete  BudgetReached\n"
        "Complete  for 5m12s  BudgetReached  2001920 tokens were merged\n"
        "step 290  loss 1.398  training 1.402  goodput 92%  merged 81%  0 tokens/s\n"
        "━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 100% 2.00 M of 2.00 M tokens\n"
        "model: model.safetensors on PersistentVolumeClaim two-regions-syncer"
    )


def test_a_job_that_no_operator_has_seen_says_what_to_look_at() -> None:
    view = drawn(job_view(job({}), Closeup(), NOW))
    assert view.splitlines()[0] == "two-regions  in ml  Pending"
    assert view.splitlines()[1].startswith("no status yet; check that the operator runs: kubectl get pods")


def test_a_job_of_another_controller_says_whose_it_is() -> None:
    item = {"metadata": {"name": "two-regions", "namespace": "ml"}, "spec": {"managedBy": "example.com/other"}}
    view = drawn(job_view(seen_job({**item, "status": training_status()}), Closeup(), NOW))
    assert view.splitlines()[1] == "spec.managedBy is example.com/other: the operator leaves this job alone"
    assert view.splitlines()[0].startswith("two-regions  in ml  Training")


def test_a_status_that_is_behind_the_manifest_says_so() -> None:
    metadata = {"name": "two-regions", "namespace": "ml", "generation": 2}
    behind = seen_job({"metadata": metadata, "status": training_status()})
    assert "has not processed the latest change" in drawn(job_view(behind, Closeup(), NOW))


def test_the_status_of_a_newer_operator_is_shown() -> None:
    newer = condition("Migrating", "True", "NodesGoing", "2 nodes go")
    lines = drawn(job_view(job(training_status(phase="Hibernating", conditions=[newer])), Closeup(), NOW)).splitlines()
    assert "Hibernating" in lines[0]
    assert lines[1].startswith("Migrating")


def test_a_status_that_cannot_be_read_is_no_crash() -> None:
    unreadable = job(training_status(phase=7))
    assert "this version cannot read its status" in drawn(job_view(unreadable, Closeup(), NOW))


def test_what_a_container_said_at_its_end_cannot_steer_the_terminal() -> None:
    message = "us-west/old: \x1b]0;owned\x07 exit code 1\nTraceback"
    hostile = job(training_status(conditions=[condition("Degraded", "True", "CrashLooping", message)]))
    assert hostile.status.conditions[0].message == "us-west/old: ?]0;owned? exit code 1 Traceback"


def test_a_job_in_one_line() -> None:
    assert job_line(job()) == (
        "two-regions  Training (Unschedulable)  42%  840 k of 2.00 M tokens  step 120  loss 1.630 (training 1.712)  "
        "12.3 k tokens/s  3/4 train  goodput 88%  merged 76%  3m05s left"
    )
    assert job_line(job({})) == "two-regions  Pending"


def test_what_changes_of_a_jobs_conditions_is_a_line_each() -> None:
    degraded = f"two-regions  Degraded: Unschedulable: {UNSCHEDULABLE}"
    assert news_lines(job(), None) == (degraded,)
    assert news_lines(job(), job()) == ()
    assert news_lines(job(complete_status()), job()) == (
        "two-regions  Complete: BudgetReached: 2001920 tokens were merged",
        "two-regions  no longer Degraded",
    )
    waiting = [condition("Ready", "False", "WaitingForSyncer")]
    assert news_lines(job(training_status(conditions=waiting)), None) == ("two-regions  not Ready: WaitingForSyncer",)
    resting = [condition("Progressing", "False", "Suspended"), condition("Suspended", "True", "Suspended")]
    suspended = job(training_status(phase="Suspended", conditions=resting))
    assert news_lines(suspended, None) == ("two-regions  Suspended: Suspended",), "not that it does not progress"
