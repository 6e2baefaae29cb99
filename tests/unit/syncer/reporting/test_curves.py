import logging
import math
from pathlib import Path

import pytest

from diloco.core.account.time_spent import TimeSpent
from diloco.core.engine.actions import AskFragment, Broadcast, Member, Merge
from diloco.local.status_poll import read_status
from diloco.spec.status.curves import CurveRow, FragmentCurve, MergeCurve
from diloco.spec.status.engine import Phase
from diloco.spec.status.syncer import StoredStatus, SyncerStatus
from diloco.syncer.reporting.curves import MOST_LEARNERS, CurveFiles, Curves
from diloco.syncer.reporting.status_builder import Reporter
from diloco.syncer.tracking.curve_reader import CurveReader, points
from diloco.wire.messages import StepReport
from tests.support.job_engine import engine_of
from tests.support.status_of_a_job import changed
from tests.support.syncer_process import SmallJob

STORED = StoredStatus()
ROW = CurveRow(epoch=1, unix_seconds=5.0, merged_tokens=64, inner_steps=2, tokens_per_second=3.5, eval_loss=None)


@pytest.fixture
def status(tmp_path: Path) -> SyncerStatus:
    engine = engine_of(SmallJob(tmp_path), (2.0, 3.0), TimeSpent(training=0.5))
    return Reporter("small", 4).status(engine.view(1.0), STORED)


def test_a_row_has_what_learners_reported_and_merges_found(status: SyncerStatus) -> None:
    curves = Curves()
    curves.reported("here/cpu/0", StepReport(1, 1, 64, 0.5, 2.0, 4, gradient_norm=1.5, learning_rate=0.01))
    curves.fragments[1] = FragmentCurve(version=3, gradient_norm=0.5, agreement=0.75)
    row = curves.row(status)
    assert list(row.learners) == ["here/cpu/0"]
    learner = row.learners["here/cpu/0"]
    assert (learner.loss, learner.gradient_norm, learner.learning_rate) == (2.0, 1.5, 0.01)
    assert ("fragments/1/agreement", 0.75) in points(row)
    assert ("learners/here/cpu/0/loss", 2.0) in points(row)
    curves.reported("here/cpu/0", StepReport(1, 1, 64, 0.5, 2.0, 4, gradient_norm=math.nan))
    row = CurveRow.model_validate_json(curves.row(status).model_dump_json())
    assert row.learners["here/cpu/0"].gradient_norm is None


def test_a_row_has_the_latest_merge_from_its_first_request_on(status: SyncerStatus) -> None:
    def asked(learner: str, version: int, fragment: int = 1) -> AskFragment:
        return AskFragment(learner, 1, fragment, version, 1, "due")

    members = tuple(Member(learner, 1, 1, base, 4, 128, 0.5, "") for learner, base in (("a", 6), ("b", 4)))
    curves = Curves()
    curves.observe(Broadcast(1, 6, (), ""), 1.0)  # of a round that began before this start of the syncer
    assert curves.row(status).merge is None
    curves.observe(asked("c", 6), 1.0)  # a round that is abandoned
    for learner, now in (("a", 2.0), ("b", 2.5), ("a", 3.0)):
        curves.observe(asked(learner, 7), now)
    curves.observe(asked("a", 7, fragment=2), 3.0)
    curves.observe(Merge(1, 7, members, ""), 4.0)
    assert curves.row(status).merge is None
    curves.observe(Broadcast(1, 7, (), ""), 4.5)
    merged = MergeCurve(fragment=1, version=7, members=2, asked=2, waited_seconds=2.5, versions_behind=2)
    assert curves.row(status).merge == merged


def test_a_job_has_a_thousand_rows_more_at_its_start_and_one_at_its_end(status: SyncerStatus) -> None:
    curves, written = Curves(), []
    for tokens in range(0, 100_001, 10):
        now = changed(
            status, merged_tokens=tokens, budget_tokens=100_000, phase="Complete" if tokens == 100_000 else "Training"
        )
        if curves.due(now):
            written.append(curves.row(now).merged_tokens)
    assert 1050 < len(written) < 1150
    assert sum(tokens > 5000 for tokens in written) in (950, 951)
    assert written[:3] == [10, 20, 30]
    assert written[-1] == 100_000


def test_learners_of_a_large_job_have_no_curves_of_their_own(status: SyncerStatus) -> None:
    curves = Curves()
    many = [status.learners[0].model_copy(update={"id": f"here/cpu/{n}"}) for n in range(MOST_LEARNERS + 1)]
    for one in many:
        curves.reported(one.id, StepReport(1, 1, 64, 0.5, 2.0, 4))
    assert curves.row(changed(status, learners=many)).learners == {}
    assert len(curves.row(changed(status, learners=many[1:])).learners) == MOST_LEARNERS


def test_rows_are_read_once_and_a_cut_one_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "curves.jsonl"
    reader, file = CurveReader(path), CurveFiles(path, tmp_path / "status.json")
    assert list(reader.rows()) == []
    file.append(ROW)
    with path.open("a") as cut:
        cut.write('{"epoch": 1, "unix')
    assert list(reader.rows()) == [ROW]
    later = ROW.model_copy(update={"epoch": 2})
    file.append(later)
    assert list(reader.rows()) == [later]
    assert list(reader.rows()) == []


def test_the_latest_status_is_kept_for_the_report(tmp_path: Path, status: SyncerStatus) -> None:
    files = CurveFiles(tmp_path / "curves.jsonl", tmp_path / "status.json")
    files.keep(changed(status, merged_tokens=1.0))
    files.keep(status)
    assert read_status(tmp_path).model_dump_json() == status.model_dump_json()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_who_begins_after_the_end_leaves_the_status_of_who_saw_it(tmp_path: Path, status: SyncerStatus) -> None:
    files = CurveFiles(tmp_path / "curves.jsonl", tmp_path / "status.json")
    end = changed(status, phase=Phase.COMPLETE, computing="F32 on cpu")
    files.keep(changed(end, phase=Phase.TRAINING))
    files.keep(end)
    files.keep(changed(end, epoch=end.epoch + 1, computing=""))
    assert read_status(tmp_path).model_dump_json() == end.model_dump_json()
    raised = changed(end, epoch=end.epoch + 1, merged_tokens=end.merged_tokens + 1)
    files.keep(raised)
    assert read_status(tmp_path).model_dump_json() == raised.model_dump_json()


def test_a_disk_that_takes_nothing_is_told_of_once(
    tmp_path: Path, status: SyncerStatus, caplog: pytest.LogCaptureFixture
) -> None:
    files = CurveFiles(tmp_path / "none" / "curves.jsonl", tmp_path / "none" / "status.json")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            files.append(ROW)
            files.keep(status)
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/none/{name}: cannot be written (No such file or directory); trying again"
        for name in ("curves.jsonl", "status.json")
    ]
