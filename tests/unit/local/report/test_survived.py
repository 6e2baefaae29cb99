"""The sentence on what a run survived: from its faults and recoveries, with what they cost."""

from dataclasses import replace

from diloco.core.account.time_class import TimeClass
from diloco.local.chaos.spec import Fault, FaultKind
from diloco.local.report.chaos_report import survived_text
from diloco.local.report.history import LearnerHistory, RecoveryPoint, RunHistory
from diloco.local.report.html import render_report
from diloco.local.report.summary import closing_table
from diloco.spec.status.engine import RecoveryStatus
from tests.support.drawn import drawn

KILL = Fault(FaultKind.KILL, "east/a/1", ("east/a/1",), at_seconds=11.0)
KILLED = RecoveryPoint(
    14.5, RecoveryStatus("east/a/1", restarted=True, lost_seconds=1.0, down=1.0, loading=1.0, stepping=1.0, merging=0.5)
)


def away(one: LearnerHistory, name: str, **shares: float) -> LearnerHistory:
    time = {TimeClass(kind): share for kind, share in shares.items()}
    return replace(one, id=name, allotted_seconds=20.0, time=time)


def test_it_names_each_fault_with_its_recovery_and_ends_with_the_price(history: RunHistory) -> None:
    time = {**history.time, TimeClass.LOST: 0.05, TimeClass.AWAY: 0.0}
    told = replace(history, faults=(KILL, history.faults[1]), recoveries=(KILLED,), time=time, merged=0.82)
    assert survived_text(told) == (
        "Survived: east/a/1 killed (back after 3.5 s), east cut off for 2 s; this cost 5.0 % of the learners' time, "
        "no other learner paused, and 82.0 % of all time is work in the model."
    )
    assert " ".join(drawn(closing_table(told)).split()).endswith(survived_text(told))
    assert "Survived: east/a/1 killed" in render_report(told, "")


def test_a_learner_that_paused_though_no_fault_hit_it_is_told(history: RunHistory) -> None:
    west = away(history.learners[0], "west/a/0", waiting=0.2, merged=0.8)
    told = replace(history, faults=(KILL,), learners=(*history.learners, west))
    assert "the others paused for 4.0 s at most" in survived_text(told)


def test_a_loss_without_an_injected_fault_is_told_too(history: RunHistory) -> None:
    assert "east/a/1 lost (back after 3.5 s)" in survived_text(replace(history, faults=(), recoveries=(KILLED,)))


def test_many_faults_are_counted(history: RunHistory) -> None:
    many = replace(history, faults=(KILL,) * 5, recoveries=(KILLED,))
    assert "Survived: 5 times killed (back after 3.5 s at most);" in survived_text(many)


def test_without_a_failure_or_an_end_there_is_none(history: RunHistory) -> None:
    assert survived_text(replace(history, faults=())) == ""
    assert survived_text(replace(history, phase="Failed")) == ""
