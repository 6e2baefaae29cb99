"""Bytes by region for the report: a table and a chart of both directions over time. Pure.

The supervisor notes the syncer's counts in its journal now and then; the last ones are those of the newest checkpoint,
which is written when the job is over.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from diloco.local.journal import Entry
from diloco.local.report.history import RegionSample, RunHistory
from diloco.local.report.run_clock import RunClock
from diloco.local.report.svg import Axis, Series, line_chart
from diloco.local.view.units import bytes_text
from diloco.spec.syncer_status import BytesByKind, RegionBytes

_DETAIL = "bytes_by_region"
"""Key of the counts in an entry of the journal."""
_MOST_DRAWN = 4
"""Regions in the chart, those with most bytes: the page has eight colors, and each region needs two."""
_COUNTS = TypeAdapter(tuple[RegionBytes, ...])


def details(counts: Sequence[RegionBytes]) -> dict[str, Any]:
    """The counts as details of an entry of the journal; nothing while there are none."""
    return {_DETAIL: [one.model_dump() for one in counts]} if counts else {}


def region_samples(journal: Sequence[Entry], clock: RunClock) -> tuple[RegionSample, ...]:
    """The counts in a journal, in its order. Entries of another form are passed over."""
    found = []
    for entry in journal:
        if _DETAIL not in entry.details:
            continue
        try:
            counts = _COUNTS.validate_python(entry.details[_DETAIL])
        except ValidationError:
            continue
        found.append(RegionSample(clock.seconds(entry.time), counts))
    return tuple(found)


def region_rows(history: RunHistory) -> tuple[list[str], list[list[str]]]:
    """A row for each region and direction."""
    head = ["region", "way", "fragments", "control messages", "broken off", "together"]
    rows = []
    for one in history.bytes_by_region:
        rows += [[one.region, way, *_cells(kinds)] for way, kinds in (("up", one.up), ("down", one.down))]
    return head, rows


def region_chart(history: RunHistory, time: Axis) -> str:
    """Bytes over time, a line for each region and direction; empty if nothing was counted."""
    most = sorted(history.bytes_by_region, key=lambda one: -(one.up.total + one.down.total))[:_MOST_DRAWN]
    drawn = [one.region for one in history.bytes_by_region if one in most]
    end = RegionSample(history.seconds, history.bytes_by_region)
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for sample in (*history.region_samples, end):
        for one in sample.counts:
            if one.region in drawn:
                points.setdefault((one.region, "up"), [(0.0, 0.0)]).append((sample.seconds, float(one.up.total)))
                points.setdefault((one.region, "down"), [(0.0, 0.0)]).append((sample.seconds, float(one.down.total)))
    series = [
        Series(f"{region}, {way}", line, color=index) for index, ((region, way), line) in enumerate(points.items())
    ]
    return line_chart(series, time, Axis("bytes since the start", bytes_text, from_zero=True)) if series else ""


def _cells(kinds: BytesByKind) -> list[str]:
    return [bytes_text(count) for count in (kinds.bulk, kinds.control, kinds.again, kinds.total)]
