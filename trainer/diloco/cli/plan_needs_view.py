"""Prints what a job needs of its links, region by region: a part of the plan. Pure."""

from rich.table import Table

from diloco.core.remedies import rate_text
from diloco.local.view.units import bytes_text, duration_text, short_duration_text
from diloco.plan.needs import FragmentTimes, Needs, RegionNeeds

_NONE = "-"


def needs_words(needs: Needs) -> str:
    """How long the job is."""
    rounds = f"{'at least ' if needs.at_least else ''}{needs.rounds} merges"
    seconds = "" if needs.seconds is None else f", about {duration_text(needs.seconds)}"
    return f"The whole job, {rounds}{seconds}; times of a fragment are mean and longest:"


def needs_table(needs: Needs) -> Table:
    """A row for each region."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("region")
    for name in ("up", "down", "rate needed", "connections", "fragment up", "fragment down", "hidden by computing"):
        table.add_column(name, justify="right")
    for one in needs.regions:
        table.add_row(one.region, bytes_text(one.up_bytes), bytes_text(one.down_bytes), *_of_the_schedule(one))
    return table


def _of_the_schedule(one: RegionNeeds) -> tuple[str, ...]:
    if one.bytes_per_second is None or one.connections is None or not one.fragments:
        return (_NONE,) * 5
    return (
        rate_text(one.bytes_per_second),
        _connections(one.connections, one.connections_given),
        _times(one.fragments, [fragment.up_seconds for fragment in one.fragments]),
        _times(one.fragments, [fragment.down_seconds for fragment in one.fragments]),
        f"{one.hidden} of {len(one.fragments)}",
    )


def _connections(needed: int, given: int | None) -> str:
    more = f" (it has {given})" if given is not None and needed > given else ""
    return f"{needed} a learner{more}"


def _times(fragments: tuple[FragmentTimes, ...], seconds: list[float]) -> str:
    return f"{short_duration_text(sum(seconds) / len(fragments))}, {short_duration_text(max(seconds))}"
