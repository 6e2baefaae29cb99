"""The page of a job that runs: from a status, the curves and the journals, in whatever state they are."""

import base64
import hashlib
import math
import re
from pathlib import Path
from typing import Any

import pytest

from diloco.local.report.history import Life, RunHistory, Span
from diloco.local.report.live import LivePage
from diloco.runtime.journal import Entry, Journal
from diloco.spec.status.curves import CurveRow, LearnerCurve, MergeCurve
from diloco.spec.status.engine import EvaluationStatus
from diloco.spec.status.syncer import BytesByKind, LinksStatus, MeasuredLinkStatus, RegionBytes
from tests.support.status_of_a_job import STATUS, changed, learner_status

LEARNER, OTHER = "a/b/0", "a/b/1"
LEARNERS = (learner_status(0), learner_status(1))
START = 1_700_000_000.0


def status(**changes: Any) -> Any:
    return changed(STATUS, **{"learners": LEARNERS, "parameters": 10} | changes)


def row(seconds: float, tokens: float, **changes: Any) -> CurveRow:
    curve = LearnerCurve(steps=1, tokens_per_second=2.0, loss=3.0, gradient_norm=1.0, learning_rate=0.1)
    whole = CurveRow(
        epoch=1,
        unix_seconds=START + seconds,
        merged_tokens=tokens,
        inner_steps=1,
        tokens_per_second=2.0,
        eval_loss=None,
        learners={LEARNER: curve, OTHER: changed(curve, loss=None)},
        merge=MergeCurve(fragment=1, version=2, members=1, asked=2, waited_seconds=0.5, versions_behind=1),
        time_seconds={"merged": seconds, "late": seconds},
        bytes_by_region=(RegionBytes(region="a", up=BytesByKind(bulk=round(1000 * seconds))),),
    )
    return changed(whole, **changes)


def note(process: str, seconds: float, kind: str, reason: str = "") -> Entry:
    return Entry("note", process, START + seconds, {"kind": kind, "reason": reason})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    folder = tmp_path / "syncer"
    folder.mkdir()
    return folder


def write(directory: Path, rows: list[CurveRow], *entries: Entry) -> None:
    (directory / "curves.jsonl").write_text("".join(one.model_dump_json() + "\n" for one in rows))
    Journal(directory / "journal.jsonl").append(*entries)


def history(directory: Path, seconds: float = 100.0, **changes: Any) -> RunHistory:
    return LivePage(directory, lambda: START + seconds).history(status(**changes))


def page(directory: Path, **changes: Any) -> str:
    return LivePage(directory, lambda: START + 100)(status(**changes)).body.decode()


def lives(history: RunHistory, learner: int) -> list[tuple[Life, float, float]]:
    return [(span.life, span.start, span.end) for span in history.learners[learner].life]


def test_without_a_supervisor_the_syncers_journal_tells_the_lives(directory: Path) -> None:
    write(
        directory,
        [row(50, 10), row(65, 20)],
        Entry("serves", "syncer", START, {"epoch": "1"}),
        Entry("admit", LEARNER, START + 10, {}),
        note(LEARNER, 20, "LearnerTrains"),
        note(LEARNER, 30, "LearnerLeft", "its connection broke"),
        Entry("admit", LEARNER, START + 35, {}),
        note(LEARNER, 40, "LearnerTrains"),
        Entry("serves", "syncer", START + 80, {"epoch": "2"}),
        Entry("admit", LEARNER, START + 85, {}),
        note(LEARNER, 90, "LearnerTrains"),
    )
    seen = history(directory)
    assert lives(seen, 0) == [
        (Life.STARTING, 10.0, 20.0),
        (Life.TRAINING, 20.0, 30.0),
        (Life.AWAY, 30.0, 40.0),
        (Life.TRAINING, 40.0, 65.0),  # the last sign of the first syncer
        (Life.AWAY, 65.0, 90.0),
        (Life.TRAINING, 90.0, 100.0),
    ]
    assert lives(seen, 1) == []
    assert [(span.life, span.end) for span in seen.syncer_life] == [
        (Life.TRAINING, 65.0),
        (Life.DOWN, 80.0),
        (Life.TRAINING, 100.0),
    ]
    assert [(one.seconds, one.process, one.text) for one in seen.incidents] == [
        (30.0, LEARNER, "lost: its connection broke"),
        (80.0, "syncer", "restarted (restart 1)"),
    ]


def test_the_life_of_one_that_was_taken_out_ends_when_it_left(directory: Path) -> None:
    gone = "a/b/2"
    write(
        directory,
        [],
        Entry("serves", "syncer", START, {"epoch": "1"}),
        Entry("admit", gone, START + 10, {}),
        note(gone, 20, "LearnerTrains"),
        note(gone, 30, "LearnerLeft", "left"),
        Entry("fence", "a/b/3", START + 40, {"kind": "Removed", "reason": "its pool was removed"}),
    )
    seen = history(directory)
    assert seen.former == {gone: (Span(10.0, 20.0, Life.STARTING), Span(20.0, 30.0, Life.TRAINING))}


def test_beside_a_supervisors_journal_the_syncers_adds_sessions(directory: Path) -> None:
    Journal(directory.parent / "supervisor.jsonl").append(
        Entry("run", "", START, {"processes": {LEARNER: 2}}),
        Entry("start", "syncer", START, {"restarts": 0}),
        Entry("start", LEARNER, START + 1, {"restarts": 0}),
        Entry("kill", LEARNER, START + 40, {}),
        Entry("exit", LEARNER, START + 40, {"code": -9, "verdict": "restart", "by_chaos": True}),
    )
    write(
        directory,
        [],
        Entry("serves", "syncer", START + 2, {"epoch": "1"}),
        Entry("admit", LEARNER, START + 5, {}),
        note(LEARNER, 10, "LearnerTrains"),
        note(LEARNER, 41, "LearnerLeft", "its connection broke"),
    )
    seen = history(directory)
    assert lives(seen, 0) == [(Life.STARTING, 1.0, 10.0), (Life.TRAINING, 10.0, 40.0), (Life.DOWN, 40.0, 100.0)]
    assert seen.learners[0].processes == 2
    assert [one.text for one in seen.incidents] == ["killed with SIGKILL (injected)"]
    assert [fault.victims for fault in seen.faults] == [(LEARNER,)]


def test_a_learner_without_kept_entries_is_shown_all_the_same(directory: Path) -> None:
    write(
        directory,
        [row(50, 10)],
        Entry("admit", LEARNER, START + 60, {}),
        note(LEARNER, 70, "LearnerTrains"),
        note(LEARNER, 80, "LearnerLeft", "its connection broke"),
    )
    absent = changed(learner_status(2), state="Absent")
    assert lives(history(directory, learners=(*LEARNERS, absent)), 1) == []
    (directory / "journal.older.jsonl").write_text("")
    seen = history(directory, learners=(*LEARNERS, absent))
    assert lives(seen, 0) == [(Life.STARTING, 10.0, 20.0), (Life.TRAINING, 20.0, 30.0), (Life.AWAY, 30.0, 50.0)]
    assert lives(seen, 1) == [(Life.TRAINING, 10.0, 50.0)]
    assert lives(seen, 2) == []


@pytest.mark.parametrize("loss", [1e16, -1e17, 1e99, 1e308, 5e-324, math.inf, math.nan])
def test_any_loss_leaves_a_page(directory: Path, loss: float) -> None:
    curve = LearnerCurve(steps=1, tokens_per_second=2.0, loss=loss, gradient_norm=1.0, learning_rate=0.1)
    write(directory, [row(50, 10, learners={LEARNER: curve}), row(60, 20, learners={LEARNER: curve})])
    assert "Training after" in page(directory)


def test_figures_are_the_statuss_and_curves_the_files(directory: Path) -> None:
    write(directory, [row(10, 10), row(20, 300)], Entry("admit", LEARNER, START + 5, {}))
    seen = history(
        directory,
        evaluations=(EvaluationStatus(tokens=200, loss=None, seconds=1.0, final=False),),
        time_seconds={"merged": 30.0, "late": 10.0},
    )
    assert (seen.parameters, seen.merged_tokens, seen.syncer_steps) == (10, 640.0, 5)
    assert [(one.seconds, one.merged, one.goodput) for one in seen.samples] == [
        (5.0, 0.5, 1.0),
        (15.0, 0.5, 1.0),
        (95.0, 0.75, 1.0),
    ]
    assert [point.loss for point in seen.learners[0].losses] == [3.0, 3.0]
    assert seen.learners[1].losses == ()
    assert [(at, one.members, one.asked) for at, one in seen.merges] == [(5.0, 1, 2), (15.0, 1, 2)]
    assert seen.evaluations[0].seconds == 15.0
    assert [one.counts[0].up.total for one in seen.region_samples] == [10_000, 20_000]


def test_recoveries_are_those_of_the_journal_over_all_starts(directory: Path) -> None:
    parts = {"restarted": True, "lost_seconds": 3.0, "down": 1.0, "loading": 2.0, "stepping": 0.5, "merging": 0.5}
    write(
        directory,
        [],
        Entry("serves", "syncer", START, {"epoch": "1"}),
        Entry("recovered", LEARNER, START + 9, {"learner": LEARNER, **parts}),
        Entry("serves", "syncer", START + 50, {"epoch": "2"}),
        Entry("recovered", OTHER, START + 70, {"learner": OTHER, **parts}),
        Entry("recovered", OTHER, START + 71, {"learner": OTHER}),
    )
    found = history(directory).recoveries
    assert [(one.recovery.learner, one.lost_at, one.seconds) for one in found] == [
        (LEARNER, 5.0, 9.0),
        (OTHER, 66.0, 70.0),
    ]


def test_what_a_restarted_syncer_merged_again_replaces_what_was_there(directory: Path) -> None:
    curve = row(0, 0).learners[LEARNER]

    def at(epoch: int, seconds: float, tokens: float, loss: float) -> CurveRow:
        return row(seconds, tokens, epoch=epoch, learners={LEARNER: changed(curve, loss=loss)})

    rows = [at(1, 10, 100, 9.0), at(1, 20, 200, 8.0), at(1, 30, 300, 7.0), at(2, 50, 150, 6.0), at(2, 60, 250, 5.0)]
    write(directory, [*rows, at(3, 80, 240, 4.0), at(3, 90, 310, 3.0)])
    seen = history(directory, evaluations=(EvaluationStatus(tokens=220, loss=2.0, seconds=1.0, final=False),))
    drawn = [(point.tokens, point.loss) for point in seen.learners[0].losses]
    assert drawn == [(100, 9.0), (150, 6.0), (240, 4.0), (310, 3.0)]
    assert seen.evaluations[0].seconds == 70.0, "the time of the last row with fewer tokens that counts is 40"
    assert [one.seconds for one in seen.samples] == [0.0, 10.0, 20.0, 40.0, 50.0, 70.0, 80.0, 90.0]


def test_whatever_comes_from_elsewhere_is_text(directory: Path) -> None:
    attack = "<img src=x onerror=alert(1)>\"'&"
    hostile = changed(learner_status(0), id=attack, left_out=1, left_out_reason=attack)
    write(directory, [], note(attack, 1, "LearnerQuarantined", attack))
    shown = page(
        directory,
        learners=(hostile,),
        job=attack,
        phase="Waiting",
        phase_reason=attack,
        computing=attack,
        tape_problem=attack,
        measured_links=(MeasuredLinkStatus(region=attack, up_bytes_per_second=1.0),),
        bytes_by_region=(RegionBytes(region=attack),),
    )
    assert "<img" not in shown
    assert shown.count("&lt;img") >= 8


def test_the_policy_allows_the_pages_own_script_and_nothing_else(directory: Path) -> None:
    answer = LivePage(directory)(status())
    (script,) = re.findall(r"<script>(.*?)</script>", answer.body.decode(), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = dict(answer.headers)["Content-Security-Policy"]
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{digest}'; ")
    assert not re.search(r"https?://|\son\w+=|\ssrc=|<link", answer.body.decode())


def test_the_page_says_when_to_stop_asking(directory: Path) -> None:
    assert "<main data-over>" in page(directory, phase="Complete")
    assert "<main>" in page(directory)


def test_without_files_and_with_damaged_ones_there_is_a_page(directory: Path) -> None:
    assert "Training after 0s: 2 of 2 learners train." in page(directory)
    (directory / "journal.jsonl").write_text('{"event": "admit"}\n[]\n{"event": "x", "process": "", "time": 1e309}\nno')
    (directory / "curves.jsonl").write_text('{"epoch": 1}\n')
    assert "Training after" in page(directory)
    (directory / "journal.jsonl").unlink()
    (directory / "journal.jsonl").mkdir()
    (directory / "curves.jsonl").write_bytes(b"x" * (2 << 20))
    shown = page(directory)
    assert "what became of learners is not known" in shown
    assert "has a line of" in shown


def test_rows_come_once_and_are_bounded(directory: Path) -> None:
    live = LivePage(directory, lambda: START + 10_000)
    write(directory, [row(n, n) for n in range(5000)])
    assert 2000 <= len(live.history(status()).merges) <= 4000
    before = live.history(status()).merges
    with (directory / "curves.jsonl").open("a") as file:
        file.write(row(5000, 5000).model_dump_json() + "\n")
    assert len(live.history(status()).merges) == len(before) + 1


def test_what_the_syncer_complains_of_is_on_the_page(directory: Path) -> None:
    links = LinksStatus(kind="LinkTooThin", reason="a link carries too little", since_seconds=1.0, remedies=(), used=())
    shown = page(directory, links=links, tape_problem="no space")
    assert "Links: a link carries too little." in shown
    assert "The tape: no space." in shown
    assert "Checkpoints: full." in shown


def test_the_timeline_of_a_running_job_numbers_the_latest_incidents(directory: Path) -> None:
    noted = [note(LEARNER, second, "LearnerQuarantined", f"the {second}th") for second in range(40)]
    write(directory, [], Entry("admit", LEARNER, START, {}), *noted)
    numbered = re.findall(r"<title>(\d+): [^<]*the (\d+)th</title>", page(directory))
    assert numbered == [(str(index + 1), str(second)) for index, second in enumerate(range(20, 40))]


def test_the_page_of_a_large_job_that_flaps_is_bounded(directory: Path) -> None:
    learners = tuple(learner_status(index) for index in range(64))
    losses = {one.id: row(0, 0).learners[LEARNER] for one in learners}
    flapping = [
        entry
        for turn in range(200)
        for one in learners
        for entry in (
            Entry("admit", one.id, START + turn, {}),
            note(one.id, turn + 0.3, "LearnerTrains"),
            note(one.id, turn + 0.6, "LearnerLeft", "its connection broke"),
        )
    ]
    write(directory, [row(n, n, learners=losses) for n in range(1000)], *flapping)
    shown = page(directory, learners=learners, syncer_step=100_000)
    assert len(shown) < 6_000_000
    assert shown.count("its connection broke") <= 500 + 2 * 20


def test_learners_that_leave_a_finished_job_are_not_lost(directory: Path) -> None:
    write(
        directory,
        [],
        Entry("serves", "syncer", START, {"epoch": "1"}),
        Entry("admit", LEARNER, START + 10, {}),
        note(LEARNER, 20, "LearnerTrains"),
        Entry("finish", "syncer", START + 30, {"reason": "merged"}),
        note(LEARNER, 31, "LearnerLeft", "left"),
    )
    seen = history(directory)
    assert lives(seen, 0) == [(Life.STARTING, 10.0, 20.0), (Life.TRAINING, 20.0, 31.0)]
    assert seen.incidents == ()
