"""``report.html``: the run for people, in one file that needs nothing else. Pure: a history in, a page out."""

from html import escape
from importlib.resources import files
from string import Template

from diloco.local.report.history import LearnerHistory, Life, RunHistory, Span
from diloco.local.report.summary import quorum_text
from diloco.local.report.svg import Axis, Bar, Lane, Series, line_chart, thinned, timeline
from diloco.local.report.time_report import time_bars, time_rows, time_words
from diloco.local.view.units import bytes_text, count_text, duration_text, loss_text, percent_text
from diloco.spec.learner_ids import region_of

_STYLES = {
    Life.STARTING: "starting",
    Life.TRAINING: "training",
    Life.AWAY: "away",
    Life.PAUSED: "paused",
    Life.DOWN: "down",
}
_LEGEND = [
    *((str(life), style) for life, style in _STYLES.items()),
    ("blocked on synchronization", "blocked"),
    ("link cut", "cut"),
]
_MOST_MERGES = 1500
_MOST_BLOCKS = 300

_TOKENS = Axis("merged tokens", count_text, from_zero=True)
_LOSS = Axis("loss, nats a token", lambda value: f"{value:.2f}")


def render_report(history: RunHistory, sample: str) -> str:
    """The page; ``sample`` is text that the trained model wrote (empty: none)."""
    page = Template(_resource("report.html"))
    charts = [
        ("Loss by tokens", _loss_by_tokens(history)),
        ("Loss by time", _loss_by_time(history)),
        ("Members of each merge", _members(history)),
        ("From a round's opening to the merged fragment", _waits(history)),
        ("Age of the oldest outer gradient merged", _lags(history)),
        ("Bytes over time", _bytes(history)),
        ("Goodput", _goodput(history)),
    ]
    return page.substitute(
        title=escape(f"{history.job}: {history.phase.lower()}"),
        style=_resource("report.css"),
        job=escape(history.job),
        verdict=escape(_verdict(history)),
        cards="".join(_card(name, value, told) for name, value, told in _cards(history)),
        life=_life(history),
        charts="".join(f"<figure><figcaption>{escape(name)}</figcaption>{svg}</figure>" for name, svg in charts if svg),
        time=time_bars(history),
        time_table=_table(*time_rows(history)) if history.time else "",
        time_words=time_words(history),
        learners=_table(*_learner_rows(history)),
        evaluations=_table(*_evaluation_rows(history)),
        incidents=_table(*_incident_rows(history)),
        sample=f"<h2>The model writes</h2><pre>{escape(sample)}</pre>" if sample.strip() else "",
        notes="".join(f"<p class='note'>{escape(note)}</p>" for note in _notes(history)),
    )


def _notes(history: RunHistory) -> list[str]:
    followed = quorum_text(history)
    return [*history.notes, f"The quorum was {followed}."] if followed else [*history.notes]


def _resource(name: str) -> str:
    return (files("diloco.local") / "templates" / name).read_text(encoding="utf-8")


def _verdict(history: RunHistory) -> str:
    done = f"{history.phase} after {duration_text(history.seconds)}: {history.phase_reason}."
    return done[0].upper() + done[1:]


def _cards(history: RunHistory) -> list[tuple[str, str, str]]:
    sent = history.bytes_pushed + history.bytes_pulled
    fewer = f"{history.data_parallel_bytes / sent:.0f} times less than" if sent else "against"
    return [
        ("evaluation loss", f"{loss_text(history.loss_start)} → {loss_text(history.loss_end)}", "first and last"),
        (
            "tokens merged",
            count_text(history.merged_tokens),
            f"of {count_text(history.budget_tokens)}, in {history.syncer_steps} merges",
        ),
        ("goodput", percent_text(history.goodput), "learner-seconds whose tokens were merged"),
        ("bytes sent", bytes_text(sent), f"{fewer} {bytes_text(history.data_parallel_bytes)} of data-parallel"),
        ("model", count_text(history.parameters), "parameters"),
        ("learners", str(len(history.learners)), f"{sum(one.restarts for one in history.learners)} restarts"),
    ]


def _card(name: str, value: str, told: str) -> str:
    return f"<div class='card'><b>{escape(value)}</b><span>{escape(name)}</span><small>{escape(told)}</small></div>"


def _time(history: RunHistory) -> Axis:
    unit = 60.0 if history.seconds > 180 else 1.0
    return Axis("time", duration_text, from_zero=True, unit=unit, to=max(history.seconds, 1.0))


def _loss_by_tokens(history: RunHistory) -> str:
    return _losses(history, _TOKENS, by_time=False)


def _loss_by_time(history: RunHistory) -> str:
    return _losses(history, _time(history), by_time=True)


def _losses(history: RunHistory, x: Axis, *, by_time: bool) -> str:
    series = [
        Series(
            one.id,
            [(point.seconds if by_time else point.tokens, point.loss) for point in one.losses],
            color=index + 1,
            faint=True,
        )
        for index, one in enumerate(history.learners[:7])
    ]

    def of(*, doubted: bool) -> list[tuple[float, float]]:
        return [(e.seconds if by_time else e.tokens, e.loss) for e in history.evaluations if e.doubted == doubted]

    evaluated = Series("global model, held-out data", of(doubted=False), color=0, marks=True)
    in_doubt = Series("the same, in doubt", of(doubted=True), color=0, marks=True, line=False, faint=True)
    return line_chart([one for one in (*series, in_doubt) if one.points] + [evaluated], x, _LOSS)


def _life(history: RunHistory) -> str:
    lanes = [Lane("syncer", [_span_bar("syncer", span) for span in history.syncer_life])]
    lanes += [Lane(one.id, _learner_bars(history, one)) for one in history.learners]
    return timeline(lanes, _time(history), _LEGEND)


def _learner_bars(history: RunHistory, one: LearnerHistory) -> list[Bar]:
    bars = [_span_bar(one.id, span) for span in one.life]
    longest = sorted(one.blocked, key=lambda stretch: stretch.start - stretch.end)[:_MOST_BLOCKS]
    bars += [
        Bar(stretch.start, stretch.end, "blocked", f"{one.id} blocked {stretch.end - stretch.start:.2f} s")
        for stretch in sorted(longest, key=lambda stretch: stretch.start)
    ]
    bars += [
        Bar(cut.start, cut.end, "cut", f"link of {region} cut {cut.end - cut.start:.0f} s", thin=True)
        for region, cut in history.cuts
        if region == region_of(one.id)
    ]
    return bars


def _span_bar(process: str, span: Span) -> Bar:
    serves = "serves" if process == "syncer" and span.life is Life.TRAINING else span.life
    title = f"{process} {serves}, {duration_text(span.start)} to {duration_text(span.end)}"
    return Bar(span.start, span.end, _STYLES[span.life], title)


def _members(history: RunHistory) -> str:
    asked = thinned([(merge.seconds, float(merge.asked)) for merge in history.merges])
    members = thinned([(merge.seconds, float(merge.members)) for merge in history.merges])
    axis = Axis("learners", lambda value: f"{value:g}", from_zero=True)
    return line_chart(
        [Series("asked", asked, color=3, faint=True), Series("merged", members, color=0)], _time(history), axis
    )


def _waits(history: RunHistory) -> str:
    merges = history.merges[:: 1 + len(history.merges) // _MOST_MERGES]
    points = [(merge.seconds, merge.waited_seconds) for merge in merges]
    axis = Axis("seconds", lambda value: f"{value:g}", from_zero=True)
    return line_chart([Series("round", points, marks=True, line=False)], _time(history), axis)


def _lags(history: RunHistory) -> str:
    points = [(merge.seconds, float(merge.versions_behind)) for merge in history.merges]
    axis = Axis("versions behind", lambda value: f"{value:g}", from_zero=True)
    return line_chart([Series("oldest member", thinned(points))], _time(history), axis)


def _bytes(history: RunHistory) -> str:
    axis = Axis("bytes since the start", bytes_text, from_zero=True)
    pushed = [(sample.seconds, float(sample.bytes_pushed)) for sample in history.samples]
    pulled = [(sample.seconds, float(sample.bytes_pulled)) for sample in history.samples]
    return line_chart(
        [Series("outer gradients, up", pushed, color=0), Series("merged fragments, down", pulled, color=1)],
        _time(history),
        axis,
    )


def _goodput(history: RunHistory) -> str:
    points = [(sample.seconds, sample.goodput) for sample in history.samples if sample.goodput is not None]
    axis = Axis("since the start", lambda value: f"{value:.0%}", from_zero=True)
    return line_chart([Series("goodput", points)], _time(history), axis)


def _learner_rows(history: RunHistory) -> tuple[list[str], list[list[str]]]:
    head = [
        "learner",
        "steps",
        "tokens",
        "merged",
        "tokens/s",
        "blocked",
        "other work",
        "goodput",
        "restarts",
        "left out of merges",
    ]
    return head, [
        [
            one.id,
            str(one.steps),
            count_text(one.tokens),
            count_text(one.merged_tokens),
            count_text(one.tokens_per_second),
            percent_text(one.blocked_fraction),
            percent_text(one.other_work_fraction),
            percent_text(one.goodput),
            str(one.restarts),
            f"{one.left_out}, most recently: {one.left_out_reason}" if one.left_out else "0",
        ]
        for one in history.learners
    ]


def _evaluation_rows(history: RunHistory) -> tuple[list[str], list[list[str]]]:
    return ["evaluation at", "tokens", "loss"], [
        [
            duration_text(e.seconds),
            count_text(e.tokens),
            f"{e.loss:.4f}{' (final)' if e.final else ''}{' (in doubt)' if e.doubted else ''}",
        ]
        for e in history.evaluations
    ]


def _incident_rows(history: RunHistory) -> tuple[list[str], list[list[str]]]:
    return ["at", "who", "what"], [[duration_text(i.seconds), i.process, i.text] for i in history.incidents]


def _table(head: list[str], rows: list[list[str]]) -> str:
    if not rows:
        return "<p class='note'>None.</p>"
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
