import math
from dataclasses import replace

import pytest

from diloco.core.account.time_class import TimeClass
from diloco.core.engine.events import BudgetChanged
from diloco.core.fragments import Layout
from diloco.local.report import record
from diloco.local.report.history import Life, RunHistory, Span
from diloco.local.report.html import render_report
from diloco.local.report.record import Point
from diloco.local.report.summary import closing_table, summarize
from diloco.local.report.timeline import RunClock, Turn, faults, spans
from diloco.local.view.time_classes import WORDS
from diloco.runtime.journal import Entry
from diloco.spec import parse_job
from diloco.spec.status.syncer import BytesByKind, RegionBytes
from tests.support.drawn import drawn
from tests.support.one_learner_run import JOB, LEARNER, START, OneLearner, history_of, status_of
from tests.support.status_of_a_job import changed


def test_the_figures_are_the_engines_own(history: RunHistory) -> None:
    assert history.complete
    assert (history.loss_start, history.loss_end) == (5.0, 2.0)
    assert history.merged_tokens >= 60
    assert history.syncer_steps > 1
    assert history.merges[-1][1].version > 1
    assert history.parameters == 10


def test_of_too_many_incidents_the_page_has_the_first(history: RunHistory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diloco.local.report.html._MOST_AT_END", 2)
    page = render_report(history, "")
    assert "<td>link cut for 2 s (injected)</td>" in page
    assert "<td>link is back</td>" not in page
    assert [one["what"] for one in summarize(history)["incidents"]][-1] == "link is back"


def test_the_budget_is_the_latest_one(layout: Layout, journal: list[Entry]) -> None:
    job = parse_job(JOB)
    world = OneLearner(job, layout)
    world.tell(BudgetChanged(90, 60))
    world.train(12)
    assert history_of(job, layout, world, journal).budget_tokens == 90
    assert history_of(job, layout, None, journal).budget_tokens == 60


def test_bytes_by_region_are_a_table_and_a_chart(layout: Layout, journal: list[Entry]) -> None:
    early = RegionBytes(region="east", up=BytesByKind(bulk=1_000))
    final = RegionBytes(region="east", up=BytesByKind(bulk=5_000, again=1_200), down=BytesByKind(control=70))
    world = OneLearner(parse_job(JOB), layout)
    status = changed(status_of(parse_job(JOB), layout, world), bytes_by_region=(final,))
    history = record.history_of(status, [Point(1, START + 20, 1.0, {}, {}, None, (early,))], journal, None)
    assert [(sample.seconds, sample.counts) for sample in history.region_samples] == [(20.0, (early,))]
    page = render_report(history, "")
    for cells in (
        ["east", "up", "5.00 kB", "0 B", "1.20 kB", "6.20 kB"],
        ["east", "down", "0 B", "70 B", "0 B", "70 B"],
    ):
        assert "".join(f"<td>{cell}</td>" for cell in cells) in page
    assert "east, down" in page
    summary = summarize(history)
    assert summary["bytes_by_region"][0]["up"]["again"] == 1_200
    assert (summary["bytes_pushed"], summary["bytes_pulled"]) == (6_200, 70)


def test_what_learners_computed_in_is_told(history: RunHistory) -> None:
    history = replace(history, computing="BF16")
    assert summarize(history)["computing"] == "BF16"
    assert "computed in BF16" in " ".join(drawn(closing_table(history)).split())
    assert "Learners computed in BF16." in render_report(history, "")


def test_processes_are_told_if_a_learner_has_several(layout: Layout, journal: list[Entry]) -> None:
    single = history_of(parse_job(JOB), layout, None, journal)
    assert "processes" not in drawn(closing_table(single))
    assert f"{LEARNER}," not in render_report(single, "")
    run = Entry("run", "", START, {"processes": {LEARNER: 4}})
    several = history_of(parse_job(JOB), layout, None, [run, *journal[1:]])
    assert [one["processes"] for one in summarize(several)["learners"]] == [4, 1]
    assert "processes" in drawn(closing_table(several))
    assert f"{LEARNER}, 4 processes" in render_report(several, "")


def test_data_parallel_is_a_ring_all_reduce_of_every_step(history: RunHistory) -> None:
    steps = sum(learner.steps for learner in history.learners)
    assert history.data_parallel_bytes == steps * 2 * (2 - 1) / 2 * 4 * 10


def test_steps_of_learners_that_a_smaller_pool_no_longer_has_count(layout: Layout, journal: list[Entry]) -> None:
    status = changed(status_of(parse_job(JOB), layout, OneLearner(parse_job(JOB), layout)), inner_steps=7)
    history = record.history_of(status, [], journal, None)
    assert [one.steps for one in history.learners] == [0, 0]
    assert history.data_parallel_bytes == 7 * 2 * (2 - 1) / 2 * 4 * 10


def test_learners_that_a_resumed_run_no_longer_has_keep_their_lives(layout: Layout, journal: list[Entry]) -> None:
    resumed = [
        Entry("start", "west/b/0", START + 2, {"restarts": 0}),
        Entry("note", "west/b/0", START + 4, {"kind": "LearnerTrains"}),
        *journal[3:-1],
        Entry("end", "", START + 20, {"ending": "interrupted"}),
        Entry("run", "", START + 100, {"resumed": True}),
        Entry("start", "syncer", START + 100, {"restarts": 0}),
        Entry("end", "", START + 110, {"ending": "finished"}),
    ]
    history = history_of(parse_job(JOB), layout, None, [*journal[:3], *resumed])
    assert history.former == {"west/b/0": (Span(2.0, 4.0, Life.STARTING), Span(4.0, 20.0, Life.TRAINING))}
    assert summarize(history)["former_learners"] == ["west/b/0"]
    page = render_report(history, "")
    assert "<title>west/b/0 training, 4s to 20s</title>" in page
    assert "No longer in the job: west/b/0." in page


def test_a_learners_life_runs_from_its_start_to_its_end(history: RunHistory) -> None:
    learner = history.learners[0]
    assert [(span.start, span.life) for span in learner.life] == [(1.0, Life.STARTING), (10.0, Life.TRAINING)]
    assert learner.life[-1].end == 30.0
    assert history.learners[1].life == ()


def test_what_was_done_on_purpose_is_told(history: RunHistory) -> None:
    assert [(i.seconds, i.process, i.text) for i in history.incidents] == [
        (11.0, "east/a/1", "killed with SIGKILL (injected)"),
        (12.0, "east", "link cut for 2 s (injected)"),
        (14.0, "east", "link is back"),
    ]
    assert [(region, cut.start, cut.end) for region, cut in history.cuts] == [("east", 12.0, 14.0)]


def test_a_run_that_no_learner_joined_has_a_history_too(layout: Layout, journal: list[Entry]) -> None:
    history = history_of(parse_job(JOB), layout, None, journal)
    assert not history.complete
    assert history.data_parallel_bytes == 0
    assert '<g class="t-' not in render_report(history, "")


def test_the_summary_has_what_scripts_rely_on(history: RunHistory) -> None:
    summary = summarize(history)
    promised = (
        "wall_seconds",
        "tokens",
        "syncer_steps",
        "eval_loss_start",
        "eval_loss",
        "goodput",
        "merged",
        "bytes_pushed",
    )
    assert all(summary[name] is not None for name in (*promised, "bytes_pulled"))
    learner = summary["learners"][0]
    assert {"id", "steps", "tokens", "restarts", "tokens_per_second"} <= learner.keys()


def test_the_report_and_the_closing_table_tell_who_waited_and_overhead(history: RunHistory) -> None:
    time = {**history.learners[0].time, TimeClass.OVERHEAD: 0.067, TimeClass.WAITING: 0.231}
    busy = replace(history, learners=(replace(history.learners[0], time=time), *history.learners[1:]))
    assert "<td>23.1 %</td><td>6.7 %</td>" in render_report(busy, "")
    assert "23.1 %" in drawn(closing_table(busy), 160)


def test_the_summary_says_where_the_time_went_in_shares_that_add_up(history: RunHistory) -> None:
    summary = summarize(history)
    for told in (summary, summary["learners"][0]):
        assert set(told["time_shares"]) == {one.value for one in TimeClass}
        assert math.fsum(told["time_shares"].values()) == pytest.approx(1.0)
        assert told["time_shares"]["merged"] == pytest.approx(told["merged"])
        assert told["merged"] <= told["goodput"] <= 1
    never_there = summary["learners"][1]
    assert (never_there["merged"], never_there["goodput"], never_there["time_shares"]) == (None, None, {})
    assert "share of the time that learners compute" in render_report(history, "")
    assert "of the learners' time was spent in inner steps" in drawn(closing_table(history), 160)


def test_the_report_shows_each_class_on_a_bar_in_a_table_and_in_words(history: RunHistory) -> None:
    page = render_report(history, "")
    present = [one for one in TimeClass if history.time[one] > 0]
    assert {TimeClass.MERGED, TimeClass.PENDING} < set(present)
    for number, one in enumerate(present, 1):
        assert f"<td>{number} {WORDS[one].title}</td><td>{WORDS[one].meaning}</td>" in page
    assert page.count('<g class="t-merged">') == 2
    assert all(f".t-{one.value} {{ color:" in page for one in TimeClass), "each has a color"
    absent = [one for one in TimeClass if one not in present]
    assert not any(f"{WORDS[one].title}</td>" in page for one in absent)


def test_the_report_needs_nothing_but_itself(history: RunHistory) -> None:
    odd = replace(history.learners[0], id="<a&b>", left_out=1, left_out_reason="<i>")
    page = render_report(replace(history, job="<job>", learners=(odd,)), "def f(<x>): $y {{ z }}")
    assert "def f(&lt;x&gt;): $y {{ z }}" in page
    assert not any(text in page for text in ("<job>", "<a&b>", "<i>"))
    assert page.count("&lt;a&amp;b&gt;") > 3
    assert not any(outside in page for outside in ("http:", "https:", "src=", "href=", "@import", "url("))
    assert page.count("<svg") == 7


def test_the_clock_leaves_out_the_time_between_interruption_and_resumption() -> None:
    clock = RunClock(
        [Entry("run", "", 100.0), Entry("end", "", 110.0), Entry("run", "", 500.0), Entry("end", "", 520.0)]
    )
    assert [clock.seconds(at) for at in (90.0, 105.0, 300.0, 505.0)] == [0.0, 5.0, 10.0, 15.0]
    assert clock.end_seconds == 30.0


def test_lives_follow_from_turns_in_any_order() -> None:
    order = ["STARTED", "TRAINS", "LOST", "TRAINS", "PAUSED", "CONTINUED", "ENDED", "STARTED", "OVER"]
    turns = [(float(at), Turn[name]) for at, name in enumerate(order)]
    found = spans([turns[-1], *turns[:-1]], 20.0)
    lives = ["STARTING", "TRAINING", "AWAY", "TRAINING", "PAUSED", "TRAINING", "DOWN", "STARTING"]
    assert [(span.start, span.life.name) for span in found] == list(enumerate(lives))
    assert found[-1].end == 8.0


@pytest.mark.parametrize("event", ["end", "exit", "give_up", "pause", "cut"])
def test_a_damaged_entry_of_the_journal_is_one_incident(layout: Layout, event: str) -> None:
    journal = [
        Entry("run", "", START),
        Entry(event, "east/a/0", START + 1),
        Entry("kill", "east/a/0", START + 2, {"seconds": "long"}),
        Entry("recovered", "east/a/0", START + 3, {"learner": 1}),
    ]
    history = history_of(parse_job(JOB), layout, None, journal)
    assert history.incidents[0].text == f"entry '{event}' of the supervisor's journal is damaged"
    assert history.recoveries == ()
    assert all(one.seconds == 0.0 for one in history.faults)


def test_injected_faults_stand_in_the_report(layout: Layout, journal: list[Entry], history: RunHistory) -> None:
    assert [(one.kind, one.victims, one.seconds) for one in history.faults] == [
        ("kill", ("east/a/1",), 0.0),
        ("cut", ("east",), 2.0),
    ]
    page = render_report(history, "")
    assert "Injected faults and what they did" in page
    assert "kill east/a/1" in page
    killed = next(number for number, one in enumerate(history.incidents, 1) if one.text.startswith("killed"))
    assert f"<title>{killed}: east/a/1 killed with SIGKILL (injected)</title>" in page
    assert page.count('class="flag"') == len(history.incidents)
    assert not any(word in page for word in ("in doubt", "quorum", "Bytes by region"))
    quiet = [entry for entry in journal if entry.event not in ("kill", "cut")]
    assert "Injected faults" not in render_report(history_of(parse_job(JOB), layout, None, quiet), "")


def test_entries_with_one_fault_id_are_one_fault() -> None:
    entries = [
        Entry("run", "", START),
        Entry("kill", "east/a/0", START + 1, {"seconds": 0.0, "fault_id": "s-1"}),
        Entry("kill", "east/a/1", START + 1, {"seconds": 0.0, "fault_id": "s-1"}),
        Entry("kill", "east/a/1", START + 5, {"seconds": 0.0, "fault_id": "s-2"}),
    ]
    found = faults(entries, RunClock(entries))
    assert [one.victims for one in found] == [("east/a/0", "east/a/1"), ("east/a/1",)]
