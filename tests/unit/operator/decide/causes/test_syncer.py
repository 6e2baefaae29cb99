"""What the syncer reports of learners, its tape and the links, as the job's conditions show it."""

from datetime import timedelta
from typing import Any

import pytest

from testbed.virtual_cluster.world_pods import crashed, running
from testbed.virtual_cluster.world_syncer import THIN_LINKS
from tests.unit.operator.decide.training_world import OLD, degraded, training_world


def test_a_running_learner_that_the_syncer_has_not_heard_of_is_missing() -> None:
    w = training_world()
    w.pods.troubles[f"{OLD}1"] = running(w.now) | {"conditions": [{"type": "Ready", "status": "False"}]}
    w.run(30)
    assert degraded(w)[0] == "False", "it may still be loading"
    w.run(60)
    assert degraded(w)[1:] == ("LearnersMissing", "1 of 3 learners of us-west/old running but not joined to the syncer")


@pytest.mark.parametrize("ready", [True, False])
def test_a_learner_whose_link_is_cut_is_missing_whatever_its_pod_says(ready: bool) -> None:
    w = training_world()
    w.syncer.cut_off = {"us-west/old/1"}
    if not ready:
        began = running(w.now - timedelta(minutes=5))
        w.pods.troubles[f"{OLD}1"] = began | {"conditions": [{"type": "Ready", "status": "False"}]}
    w.run(10)
    assert degraded(w)[0] == ("False" if ready else "True")
    w.run(10)
    why = "it was joined before, so its link is cut, its node is gone or its process hangs"
    told = f"1 of 3 learners of us-west/old running but not joined to the syncer: {why}"
    assert degraded(w) == ("True", "LearnersMissing", told)
    w.syncer.cut_off, w.pods.troubles = set(), {}
    w.run(10)
    assert degraded(w)[0] == "False"
    assert [event.reason for event in w.events].count("LearnersMissing") == 1
    assert w.events[-1].message == "no longer degraded (was LearnersMissing)"


def test_a_learner_that_has_left_or_starts_again_is_not_missed() -> None:
    w = training_world()
    w.pods.delete(f"{OLD}1")
    w.run(60)
    assert degraded(w)[0] == "False"
    assert [event for event in w.events if event.reason == "LearnersMissing"] == []


def test_given_up_and_stalled_learners_are_named_and_not_their_pods() -> None:
    w = training_world()
    w.syncer.given_up = {"us-west/old/0"}
    w.syncer.stalled = {"us-east/new/0"}
    w.pods.troubles[f"{OLD}0"] = crashed(3, "given up")
    w.run(10)
    remedy = "annotate the job with diloco.dev/readmit=us-west/old/0 to let it back in"
    told = f"us-west/old/0 given up after too many restarts; {remedy}; us-east/new/0 connected but making no steps"
    assert degraded(w)[1:] == ("LearnersGivenUp", told)


def test_a_learner_that_loads_the_model_for_too_long_is_named() -> None:
    w = training_world(sync={"startupSeconds": 900})
    w.syncer.loading = {"us-west/old/0": 899.0}
    w.run(10)
    assert degraded(w)[0] == "False"
    w.syncer.loading = {"us-west/old/0": 900.0}
    w.run(10)
    told = "us-west/old/0 loading the model for more than sync.startupSeconds (900 s)"
    assert degraded(w) == ("True", "LearnersStalled", told)


def test_what_the_syncer_has_told_stays_in_the_status_without_a_report() -> None:
    w = training_world()
    assert not {"outerOptimizer", "computing"} & set(w.status)
    chosen, computing = "learning rate 1, momentum 0 (as given)", "BF16, compiled on NVIDIA H100 80GB HBM3"
    for told in (chosen, computing), ("", ""):
        w.syncer.outer_optimizer, w.syncer.computing = told
        w.run(10)
        assert (w.status["outerOptimizer"], w.status["computing"]) == (chosen, computing)


FITS = THIN_LINKS | {"kind": "Fits", "since_seconds": 1.0}
OF_A_NEWER_SYNCER = THIN_LINKS | {"kind": "LinkHaunted", "remedies": []}
TOO_FAST = "reporting far more steps than count beside the others; the excess is ignored"
SILENT = "does not answer requests in time"
AGAINST = "sending outer gradients that point against the others', merge after merge"
REMEDIES = "; remedies: sync.interval: 34; or 33.3 Mbit/s on the link us-west/old"


@pytest.mark.parametrize(
    ("field", "bad", "good", "reason", "words"),
    [
        ("too_fast", {"us-west/old/0"}, set(), "LearnersTooFast", f"us-west/old/0 {TOO_FAST}"),
        ("unanswering", {"us-west/old/0": SILENT}, {}, "LearnersNotAnswering", f"us-west/old/0: {SILENT}"),
        ("against", {"us-west/old/0"}, set(), "LearnersDisagreeing", f"us-west/old/0 {AGAINST}"),
        ("tape_problem", "no space", "", "TapeFailing", "the tape is incomplete: no space"),
        ("backup_problem", "access denied", "", "BackupFailing", "the syncer cannot upload backups: access denied"),
        ("links", THIN_LINKS, FITS, "ScheduleMisfit", THIN_LINKS["reason"] + REMEDIES),
        ("links", OF_A_NEWER_SYNCER, None, "ScheduleMisfit", THIN_LINKS["reason"]),
    ],
)
def test_what_the_syncer_reports_is_told_of_a_job_that_is_ready(
    field: str, bad: Any, good: Any, reason: str, words: str
) -> None:
    w = training_world()
    setattr(w.syncer, field, bad)
    w.run(10)
    assert degraded(w) == ("True", reason, words)
    assert w.condition("Ready")["status"] == "True"
    setattr(w.syncer, field, good)
    w.run(10)
    assert degraded(w)[0] == "False"


def test_what_is_graver_than_the_rest_is_an_event_of_its_own() -> None:
    w = training_world(sync={"quorum": 4})
    told = len(w.events)
    reports: dict[str, Any] = {
        "stalled": {"us-east/new/0"},
        "against": {"us-west/old/0"},
        "too_fast": {"us-west/old/0"},
        "unanswering": {"us-west/old/1": SILENT},
        "quorum": 3,
        "left_out": {"us-west/old/2": "not finite"},
    }
    for field, report in reports.items():
        setattr(w.syncer, field, report)
        w.run(10)
    assert [event.reason for event in w.events[told:] if event.reason not in ("QuorumMissing", "Training")] == [
        "LearnersStalled",
        "LearnersDisagreeing",
        "LearnersTooFast",
        "LearnersNotAnswering",
        "QuorumLowered",
        "LearnersDiverging",
    ]


def test_a_verdict_that_lasts_costs_no_further_write() -> None:
    w = training_world()
    w.syncer.links = THIN_LINKS
    w.syncer.frozen = True
    w.run(60)
    before = w.condition("Degraded")
    w.syncer.links = THIN_LINKS | {"since_seconds": 600.0, "used": []}
    w.run(60)
    assert w.condition("Degraded") == before
