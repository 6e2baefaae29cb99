"""Prints a plan for people: a verdict, tables of links and learners, and remedies. Pure."""

import math
from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from diloco.local.view.units import bytes_text, count_text, duration_text, percent_text, short_duration_text
from diloco.plan.links import LinkUse
from diloco.plan.needs import Needs, RegionNeeds
from diloco.plan.outcome import PoolOutcome
from diloco.plan.plan import Plan
from diloco.plan.situation import Link, rate_text
from diloco.plan.syncer_load import WIRE_BYTES_PER_SECOND
from diloco.plan.verdict import LATE, LOST, PAUSE, Fit, FitKind
from diloco.simulate.planning.advice import Advice
from diloco.simulate.planning.forecast import Forecast
from diloco.simulate.planning.remedies import SHORTEST_STEP_SECONDS, Remedy
from diloco.simulate.planning.tried import Tried
from diloco.spec.base import bytes_in
from diloco.spec.outer_choice import OuterChoice
from diloco.spec.words import listed

_NONE: Final = "-"
_HEADINGS: Final = {
    FitKind.FITS: ("fits", "bold green"),
    FitKind.STEP_TIME_UNKNOWN: ("needs step times (--step)", "bold yellow"),
    FitKind.NOT_SIMULATED: ("fits by bytes alone: NotSimulated", "bold yellow"),
}


def plan_view(plan: Plan, tried: Tried) -> RenderableType:
    """The plan in full."""
    return Group(*_parts(plan, tried))


def _parts(plan: Plan, tried: Tried) -> Iterator[RenderableType]:
    fit = tried.fit
    verdict, style = _HEADINGS.get(fit.kind, (f"does not fit: {fit.kind.value}", "bold red"))
    if fit.fits and plan.device_too_small:
        verdict, style = "does not fit: DeviceTooSmall", "bold red"
    yield Text.assemble((plan.job.metadata.name, "bold"), "  ", (verdict, style))
    yield from _indented([fit.reason, _exchange(plan, fit), f"Outer optimizer: {OuterChoice.of(plan.job.spec)}"])
    yield Text()
    yield _links(plan, fit)
    yield Text()
    yield _learners(plan, fit)
    yield from _whole_job(tried)
    yield Text(f"\n{_compute(plan)}{_memory(plan)}")
    if (needed := plan.memory.disk_bytes) > bytes_in(size := plan.job.spec.syncer.storage.size):
        yield Text(f"syncer.storage.size: {size} is too small; use at least {bytes_text(needed)}", style="yellow")
    if plan.device_too_small:
        yield Text(f"{_too_small(plan)}", style="bold red")
    yield Text(f"\n{_syncer(plan)}", style="" if plan.syncer.enough else "bold red")
    if tried.remedies:
        yield Text("\nRemedies, each enough alone:")
        yield _remedies(tried.remedies)
    if fit.kind is FitKind.STEP_TIME_UNKNOWN:
        yield from _step_times(tried)
    if tried.advice is not None:
        yield Text(f"\n{_advice(tried.advice)}")
    if tried.not_measured:
        yield Text(f"\nWhich settings train best was not measured for {tried.not_measured}.")
    if plan.data_parallel is not None:
        yield Text(f"\n{_data_parallel(plan)}")
    if plan.assumed:
        yield Text(f"\nAssumed: {'; '.join(plan.assumed)}.", style="dim")


def _whole_job(tried: Tried) -> Iterator[RenderableType]:
    if tried.forecast is not None:
        yield Text(f"\n{_forecast(tried.forecast)}")
    if tried.short:
        yield Text(f"\nNo forecast: {tried.short}. The verdict holds from the second interval on.")
    yield Text(f"\nThe whole job, {'at least ' if tried.needs.at_least else ''}{tried.needs.merges} merges:")
    yield needs_table(tried.needs)


def _exchange(plan: Plan, fit: Fit) -> str:
    exchange = plan.situation.exchange
    up, down = (sum(sizes) / len(sizes) for sizes in (exchange.up_bytes, exchange.down_bytes))
    every = exchange.interval / len(exchange.numels)
    overlap = "Auto" if exchange.overlap is None else str(exchange.overlap)
    if exchange.overlap is None and fit.overlap is not None:
        overlap += f" ({fit.overlap})"
    return (
        f"{count_text(plan.model.parameters)} parameters in {len(exchange.numels)} fragments, the largest "
        f"{plan.model.unevenness:.3g} times the mean, one every "
        f"{every:.3g} step(s): {bytes_text(up)} up ({exchange.compression}), {bytes_text(down)} down "
        f"({exchange.downlink}) on average; overlap {overlap}"
    )


def _links(plan: Plan, fit: Fit) -> Table:
    table = _table("link", "learners", "rate", "round trip", "up", "down", "up/h", "down/h", "loads the model in")
    uses = {use.name: use for use in fit.links}
    for link, learners in plan.situation.links:
        rate = "unlimited" if math.isinf(link.up_bytes_per_second) else rate_text(link.up_bytes_per_second)
        if link.limited:
            rate += f" of {rate_text(link.link_bytes_per_second)}"
        table.add_row(link.name, str(learners), rate, _round_trip(link), *_use(uses.get(link.name)))
    return table


def _round_trip(link: Link) -> str:
    return short_duration_text(link.round_trip_seconds) if link.round_trip_seconds else _NONE


def _use(use: LinkUse | None) -> tuple[Text | str, ...]:
    if use is None:
        return (_NONE,) * 5
    load = _NONE if use.load_seconds == 0 else duration_text(use.load_seconds)
    style = "bold red" if use.too_thin else ""
    return (
        Text(_percent(use.up_share), style=style if use.up_share >= use.down_share else ""),
        Text(_percent(use.down_share), style=style if use.down_share >= use.up_share else ""),
        bytes_text(use.up_bytes_per_hour),
        bytes_text(use.down_bytes_per_hour),
        load,
    )


def _learners(plan: Plan, fit: Fit) -> Table:
    pools = plan.job.spec.pools
    units = any(pools[group.name].ranks > 1 for group in plan.situation.groups)
    columns = ("step", "asked ahead", "answers in", "overwritten", "too late", "stands still", "work merged")
    table = _table("learners", "number", *["processes"] * units, *columns)
    found = {} if fit.outcome is None else {pool.name: pool for pool in fit.outcome.pools}
    for group in plan.situation.groups:
        step = _NONE if group.step_seconds is None else short_duration_text(group.step_seconds)
        processes = [str(pools[group.name].ranks)] * units
        table.add_row(group.name, str(group.learners), *processes, step, *_taking_part(found.get(group.name), fit))
    return table


def _taking_part(pool: PoolOutcome | None, fit: Fit) -> tuple[Text | str, ...]:
    if pool is None:
        return (*[_NONE] * 5, Text("not carried", style="bold red") if fit.outcome else _NONE)
    shares = ((pool.overwritten, LOST), (pool.late, LATE), (pool.waiting, PAUSE))
    return (
        f"{pool.lead_steps} step(s)",
        _NONE if pool.answer_seconds is None else short_duration_text(pool.answer_seconds),
        *(Text(percent_text(share), style="bold red" if share > most else "") for share, most in shares),
        percent_text(pool.merged),
    )


def _forecast(forecast: Forecast) -> str:
    """What a short simulation says."""
    early, middle, late = map(duration_text, forecast.seconds)
    chances = f" (5 %: {early}, 95 %: {late})" if early != late else ""
    cost = f", for {forecast.cost:,.2f}" if forecast.cost else ""
    failing = f" Failures leave {percent_text(forecast.computing_share)} of it." if forecast.computing_share < 1 else ""
    return (
        f"Simulated for {duration_text(forecast.simulated_seconds)}: {forecast.members_per_merge:.3g} learners a merge."
        f" The job is complete after {middle}{chances}{cost}, with {percent_text(forecast.merged_share)} of the"
        f" learners' time merged.{failing}"
    )


def needs_table(needs: Needs) -> Table:
    """A row for each region."""
    table = _table("region", "up", "down", "rate needed", "connections")
    for one in needs.regions:
        table.add_row(one.region, bytes_text(one.up_bytes), bytes_text(one.down_bytes), *_of_the_schedule(one))
    return table


def _of_the_schedule(one: RegionNeeds) -> tuple[str, ...]:
    if one.bytes_per_second_needed is None or one.connections_needed is None:
        return (_NONE,) * 2
    return rate_text(one.bytes_per_second_needed), _connections(one.connections_needed, one.connections)


def _connections(needed: int, given: int | None) -> str:
    more = f" (it has {given})" if given is not None and needed > given else ""
    return f"{needed} a learner{more}"


def _compute(plan: Plan) -> str:
    if not plan.flops_of_token:
        return ""
    rates = [f"{count_text(rate)} a second on {name}" for name, rate in plan.device_flops_per_second.items()]
    told = f"; a device computes {listed(rates, 'and')}" if rates else ""
    return (
        f"A token takes {count_text(plan.flops_of_token)} operations of matrix products, forward and backward{told}.\n"
    )


def _memory(plan: Plan) -> str:
    memory, training = plan.memory, plan.job.spec.training
    besides = " without activations"
    if memory.passes is not None:
        kind = "F32" if training.precision == "F32" else "BF16"
        gathered = memory.passes.gathered_bytes
        besides = (
            f", {bytes_text(gathered)} there for layers that FSDP gathers"
            * bool(gathered)
            + f", {bytes_text(memory.passes.activation_bytes)} there for activations of {memory.passes.sequences} "
            f"sequence(s) in {kind} (activationCheckpointing: {training.activation_checkpointing})"
        )
    return (
        f"Memory, at least: {bytes_text(memory.device_bytes)} of a learner's device{besides}, "
        f"{bytes_text(memory.host_bytes)} of its host, {bytes_text(memory.syncer_bytes)} of the syncer; "
        f"{bytes_text(memory.disk_bytes)} on its disk, {bytes_text(memory.checkpoint_bytes)} for each checkpoint."
        + (f" At most {plan.sequences_that_fit} sequence(s) of a process fit at once." * bool(plan.sequences_that_fit))
    )


def _syncer(plan: Plan) -> str:
    load, does = plan.syncer, ""
    limits = [
        f"{short_duration_text(one.step_seconds)} ({one.compression} up, {one.downlink} down)" for one in load.limits
    ]
    if load.received_bytes_per_second is not None and load.sent_bytes_per_second is not None:
        moved = f"{bytes_text(load.received_bytes_per_second)}/s and sends {bytes_text(load.sent_bytes_per_second)}/s"
        does = f"The syncer receives {moved}, which keeps {load.cores:.2g} core(s) busy. "
    return (
        f"{does}A syncer that moves {bytes_text(WIRE_BYTES_PER_SECOND)}/s, both ways together, carries these learners "
        f"if steps take at least {listed(limits, 'or')}."
    )


def _too_small(plan: Plan) -> str:
    needed, given = bytes_text(plan.memory.step_bytes), bytes_text(plan.device_bytes or 0)
    fitting = plan.sequences_that_fit
    smaller = f"microBatchSize {fitting}, " if fitting else "" if fitting == 0 else "a smaller microBatchSize, "
    return (
        f"a learner needs at least {needed} of its device, which has {given}: use {smaller}activationCheckpointing, "
        "more processes a learner (FSDP), larger devices or a smaller model"
    )


def _remedies(remedies: tuple[Remedy, ...]) -> Table:
    table = _table("change", "work merged then")
    for remedy in remedies:
        table.add_row(Text(str(remedy)), percent_text(remedy.fit.merged_share))
    return table


def _step_times(tried: Tried) -> Iterator[RenderableType]:
    smallest = tried.smallest_step_seconds
    if smallest is None:
        yield Text("\nIt does not fit at any step time.")
    elif smallest <= SHORTEST_STEP_SECONDS:
        yield Text("\nIt fits at any step time.")
    else:
        yield Text(
            f"\nIt fits with inner steps of {short_duration_text(smallest)} or longer. Use --step to give step times."
        )
    if not tried.step_times:
        return
    table = _table("step", "busiest link", "round", "overlap", "work merged", "verdict")
    for one in tried.step_times:
        fullest = max(use.share for use in one.fit.links)
        table.add_row(short_duration_text(one.seconds), _percent(fullest), *_round(one.fit), Text(one.fit.kind.value))
    yield table


def _round(fit: Fit) -> tuple[str, ...]:
    seconds = None if fit.outcome is None else fit.outcome.round_seconds
    overlap = _NONE if fit.overlap is None else str(fit.overlap)
    return (_NONE if seconds is None else short_duration_text(seconds), overlap, percent_text(fit.merged_share))


def _advice(advice: Advice) -> str:
    row = advice.row
    changes = (
        f"is best trained with {listed(advice.changes, 'and')}"
        if advice.changes
        else "already has the settings that train best"
    )
    merged = percent_text(advice.fit.merged_share)
    return (
        f"A run of about {advice.steps} steps a learner {changes}: these links carry it, {merged} of the work merged. "
        f"Measured at {row.steps} steps: loss {row.loss_percent:g} % above data-parallel with Muon ({row.seeds} seeds, "
        "a small model; docs/explanation/quality.md)."
    )


def _data_parallel(plan: Plan) -> str:
    beside = plan.data_parallel
    assert beside is not None
    times = beside.step_bytes / beside.decoupled_step_bytes
    slower = ""
    if beside.slowdown is not None and beside.slowdown > 1:
        slower = f": a step takes at least {beside.slowdown:.3g} times as long"
    seconds = (
        f", {short_duration_text(beside.all_reduce_seconds)} over the slowest link" if beside.all_reduce_seconds else ""
    )
    return (
        f"Data-parallel would move {bytes_text(beside.step_bytes)} a step each way (f32 gradients, a ring){seconds}"
        f"{slower}. Decoupled, a learner pushes {bytes_text(beside.decoupled_step_bytes)} a step, 1/{times:.0f} of it."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _indented(lines: list[str]) -> Iterator[Text]:
    for line in lines:
        yield Text(f"  {line}")
