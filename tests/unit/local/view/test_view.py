import io
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from diloco.local.report.svg import Axis, Series, line_chart, thinned
from diloco.local.status_poll import Seen
from diloco.local.view.screen import PlainRunView, progress_line, render
from diloco.local.view.snapshot import BandwidthMeter, RunSnapshot
from diloco.local.view.units import bytes_text, count_text, duration_text, loss_text, percent_text
from diloco.spec.status.syncer import BytesByKind, RegionBytes, SyncerStatus
from testbed.virtual_cluster.world_syncer import THIN_LINKS
from tests.support.drawn import drawn
from tests.support.seen_jobs import syncer_account


def status(**changes: object) -> SyncerStatus:
    return SyncerStatus.model_validate(syncer_account(**changes))


def snapshot_of(**changes: object) -> RunSnapshot:
    return RunSnapshot.from_status(status(**changes))


def shown(snapshot: RunSnapshot, width: int = 140) -> str:
    return drawn(render(snapshot, ("something happened",)), width)


def test_the_view_shows_job_learners_and_events() -> None:
    text = shown(snapshot_of())
    for words in ("two-regions", "us-west/old/0", "training", "2.500", "25%", "1m15s left", "something happened"):
        assert words in text


def test_eighty_columns_hold_the_view_with_whole_names() -> None:
    (known,) = syncer_account()["learners"]
    busy = {"steps": 123456, "tokens_per_second": 12_345.0, "time_seconds": {"merged": 3.0}}
    learner = known | busy | {"id": "us-west-2/spot/127"}
    snapshot = snapshot_of(learners=[learner], goodput=0.95, merged=0.9)
    text = shown(snapshot, width=80)
    assert learner["id"] in text
    assert "\u2026" not in text
    assert "merged" in text
    assert "restarts" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert len(f"{'1h05m':>6}  {progress_line(snapshot)}") <= 80


def test_processes_are_shown_if_a_learner_has_several() -> None:
    single = snapshot_of()
    assert "processes" not in shown(single)
    several = replace(single, learners=tuple(replace(one, processes=4) for one in single.learners))
    assert re.search(r"us-west/old/0 +training +4 ", shown(several))


def test_what_learners_compute_in_is_shown() -> None:
    assert "computing in BF16 on NVIDIA L4" in shown(snapshot_of(computing="BF16 on NVIDIA L4"))
    assert "computing" not in shown(snapshot_of())


def test_goodput_and_merged_work_are_shown() -> None:
    known = snapshot_of(goodput=0.875, merged=0.7)
    assert "goodput 87.5 %  merged 70.0 %" in shown(known)
    assert "merged 70%" in progress_line(known)
    unknown = snapshot_of(goodput=None, merged=None, train_loss=None, eval_loss=None, seconds_left=None)
    assert "goodput -  merged -" in shown(unknown)


def test_links_that_do_not_carry_the_schedule_are_told_with_what_would_do() -> None:
    text = shown(snapshot_of(links=THIN_LINKS))
    assert "links: LinkTooThin: the link us-west/old would be used to 133 %" in text
    assert "remedies: sync.interval: 34; or 33.3 Mbit/s on the link us-west/old" in text
    assert progress_line(snapshot_of(links=THIN_LINKS)).endswith("links: LinkTooThin")
    fits = snapshot_of(links=THIN_LINKS | {"kind": "Fits", "remedies": []})
    assert "links" not in shown(fits) + progress_line(fits)


def test_files_that_are_not_written_are_told_with_the_reason() -> None:
    checkpoint = {"problem": "No space left on device"}
    snapshot = snapshot_of(checkpoint=checkpoint, tape_problem="the tape waits for the disk: full")
    text = shown(snapshot)
    assert "checkpoints: No space left on device; training goes on" in text
    assert "the tape waits for the disk: full; training goes on" in text
    assert progress_line(snapshot).endswith("checkpoints: No space left on device")
    assert "training goes on" not in shown(snapshot_of(tape_problem=""))


def learners(*left_out: int) -> list[dict[str, object]]:
    (known, *_) = syncer_account()["learners"]
    told = {"left_out_reason": "it is 40 times as large in wte as the others are"}
    return [
        known | told | {"id": f"east/new/{index}", "left_out": count, "left_out_now": "it is" if count > 1 else ""}
        for index, count in enumerate(left_out)
    ]


def test_who_is_left_out_of_merges_is_named_with_the_reason() -> None:
    snapshot = snapshot_of(learners=learners(0, 1, 3))
    text = shown(snapshot)
    assert "east/new/2: 3 merges without it, most recently: it is 40 times as large in wte as the others are" in text
    assert text.index("east/new/2: 3") < text.index("east/new/1: 1"), "first where it still goes on"
    assert "east/new/0: " not in text
    assert progress_line(snapshot).endswith("left out: east/new/2")
    many = snapshot_of(learners=learners(*[2] * 9))
    assert shown(many).count("merges without it") == 5
    assert "4 more learners were left out of merges" in shown(many)
    assert progress_line(many).endswith("east/new/4 and 4 more")


def test_who_reports_far_more_steps_than_count_is_named() -> None:
    few = [one | {"counted_share": share} for one, share in zip(learners(0, 0, 0), (1.0, 0.8, 0.1), strict=True)]
    assert progress_line(snapshot_of(learners=few)).endswith("faster than counts: east/new/2")


def test_who_leaves_requests_unanswered_is_named() -> None:
    silent = "does not answer requests in time"
    snapshot = snapshot_of(learners=[one | {"unanswered_now": silent} for one in learners(0)])
    assert f"east/new/0: {silent}; the others go on without it" in shown(snapshot)
    assert progress_line(snapshot).endswith("not answering: east/new/0")


def test_a_quorum_below_the_manifests_is_shown() -> None:
    snapshot = snapshot_of(quorum=2, quorum_wanted=3)
    assert "quorum 2: only that many learners are left (sync.quorum: 3)" in shown(snapshot)
    assert progress_line(snapshot).endswith("quorum 2 (sync.quorum 3)")
    assert "quorum" not in shown(snapshot_of(quorum=3, quorum_wanted=3))


def test_an_evaluation_in_doubt_is_shown_beside_the_believed_one() -> None:
    believed = {"tokens": 1, "loss": 2.5, "seconds": 1.0, "final": False}
    made_up = believed | {"loss": 0.01, "doubted": True}
    snapshot = snapshot_of(evaluations=[believed, made_up], eval_loss=2.5)
    assert "evaluated 2.500, in doubt: 0.010" in shown(snapshot)
    assert "loss 2.500 eval 2.500, in doubt: 0.010" in progress_line(snapshot)
    later = snapshot_of(evaluations=[made_up, believed], eval_loss=2.5)
    assert "doubt" not in shown(later) + progress_line(later)


def test_who_is_connected_and_does_not_train_is_counted_too() -> None:
    (known,) = syncer_account()["learners"]
    states = ("Training", "Loading", "Absent")
    learners = [known | {"id": f"a/b/{n}", "state": state} for n, state in enumerate(states)]
    assert "1/3 train (2 connected)" in progress_line(snapshot_of(learners=learners))
    assert "1/1 train  " in progress_line(snapshot_of())


def test_plain_lines_come_with_events_and_every_ten_seconds() -> None:
    file = io.StringIO()
    view = PlainRunView(Console(file=file, width=40, force_terminal=False))
    for tenth in range(250):
        snapshot = snapshot_of(elapsed_seconds=tenth / 10)
        view.update(snapshot)
    view.announce("us-west/old/0 started again")
    lines = file.getvalue().splitlines()
    assert len(lines) == 3
    assert all("two" not in line and "25%" in line for line in lines[:2])
    assert lines[2].endswith("us-west/old/0 started again")


def pushed_bytes(count: int) -> SyncerStatus:
    return status(bytes_by_region=(RegionBytes(region="us-east", up=BytesByKind(bulk=count)),))


def test_bandwidth_covers_the_last_seconds_and_survives_a_restarted_count() -> None:
    meter = BandwidthMeter(window_seconds=10.0)
    pushed = [meter.read(Seen(pushed_bytes(100 * second), float(second))).pushed for second in range(30)]
    assert pushed[-1] == pytest.approx(100.0)
    assert meter.read(Seen(pushed_bytes(5), 31.0)).pushed == 0.0


@pytest.mark.parametrize(
    ("text", "value", "written"),
    [
        (bytes_text, 0, "0 B"),
        (bytes_text, 1530, "1.53 kB"),
        (bytes_text, 999_600, "1.00 MB"),
        (bytes_text, 64 << 20, "67.1 MB"),
        (count_text, 870_000, "870 k"),
        (count_text, 12, "12"),
        (duration_text, 59.6, "1m00s"),
        (duration_text, 7620, "2h07m"),
        (loss_text, None, "-"),
        (loss_text, float("nan"), "-"),
        (percent_text, 0.975, "97.5 %"),
    ],
)
def test_quantities_are_written_for_people(
    text: Callable[[float | None], str], value: float | None, written: str
) -> None:
    assert text(value) == written


def test_a_chart_of_nothing_is_nothing_and_of_one_point_a_dot() -> None:
    axis = Axis("x", str)
    assert line_chart([Series("none", [])], axis, axis) == ""
    assert line_chart([Series("one", [(1.0, float("nan"))])], axis, axis) == ""
    assert line_chart([Series("one", [(1.0, 1.0)])], axis, axis).count("<circle") == 1


def test_thinning_keeps_the_ends_of_a_curve_apart_and_its_mean() -> None:
    points = [(float(i), float(i % 7)) for i in range(5000)]
    thin = thinned(points, 100)
    assert len(thin) == 100
    assert (thin[0][0] < 50, thin[-1][0] > 4950) == (True, True)
    assert sum(y for _, y in thin) / 100 == pytest.approx(3.0, abs=0.01)
