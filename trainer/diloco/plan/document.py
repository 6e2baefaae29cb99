"""A plan as plain values, for programs: the body of ``diloco plan --json``."""

import math
from dataclasses import asdict
from typing import Any

from diloco.core.link_fit import Fit, GroupFit, LinkUse
from diloco.core.links import LearnerGroup, Link
from diloco.core.remedies import LinkRate, Remedy, Setting, StepTime
from diloco.plan.advice import Advice
from diloco.plan.needs import Needs
from diloco.plan.plan import Plan
from diloco.spec.outer_choice import OuterChoice


def document(plan: Plan) -> dict[str, Any]:
    """JSON values. What is unlimited or not known is null; shares are fractions of 1, rates bytes per second."""
    exchange, found, outer = plan.situation.exchange, plan.fit, OuterChoice.of(plan.job.spec)
    return {
        "job": plan.job.metadata.name,
        "fits": found.fits,
        "kind": found.kind.value,
        "reason": found.reason,
        "model": {
            "parameters": plan.model.parameters,
            "fragments": len(exchange.numels),
            "largest_fragment": max(exchange.numels),
        },
        "schedule": {
            "interval": exchange.interval,
            "overlap": "Auto" if exchange.overlap is None else exchange.overlap,
            "quorum": exchange.quorum,
            "compression": exchange.compression,
            "downlink": exchange.downlink,
            "outer_optimizer": {**outer.optimizer.model_dump(), "reason": outer.reason or None},
            **_schedule(found),
        },
        "links": [_link(link, learners, found.links) for link, learners in plan.situation.links],
        "learners": [_group(group, found.groups) for group in plan.situation.groups],
        "needs": _needs(plan.needs),
        "remedies": [_remedy(remedy) for remedy in plan.remedies],
        "smallest_step_seconds": plan.smallest_step_seconds,
        "step_times": [
            {"step_seconds": one.seconds, "fits": one.fit.fits, "kind": one.fit.kind.value, **_schedule(one.fit)}
            for one in plan.step_times
        ],
        "data_parallel": None if plan.data_parallel is None else _data_parallel(plan),
        "recommendation": None if plan.advice is None else _advice(plan.advice),
        "assumed": list(plan.assumed),
        "caution": plan.caution or None,
    }


def _schedule(found: Fit) -> dict[str, Any]:
    return {
        "step_seconds": found.step_seconds,
        "round_seconds": found.round_seconds,
        "overlap_steps": found.overlap,
        "overlap_needed": found.overlap_needed,
        "merged_share": found.merged_share,
    }


def _link(link: Link, learners: int, uses: tuple[LinkUse, ...]) -> dict[str, Any]:
    use = next((use for use in uses if use.name == link.name), None)
    return {
        "name": link.name,
        "learners": learners,
        "bytes_per_second": _finite(link.up_bytes_per_second),
        "round_trip_seconds": link.round_trip_seconds,
        "up_share": None if use is None else use.up,
        "down_share": None if use is None else use.down,
        "up_bytes_per_hour": None if use is None else use.up_bytes_per_hour,
        "down_bytes_per_hour": None if use is None else use.down_bytes_per_hour,
        "load_seconds": None if use is None else use.load_seconds,
    }


def _group(group: LearnerGroup, fits: tuple[GroupFit, ...]) -> dict[str, Any]:
    found = next((one for one in fits if one.name == group.name), None)
    return {
        "pool": group.name,
        "learners": group.learners,
        "step_seconds": group.step_seconds,
        "carried": None if found is None else found.carried,
        "lead_steps": None if found is None else found.lead_steps,
        "in_flight_seconds": None if found is None else found.in_flight_seconds,
        "merged_share": None if found is None else found.merged_share,
    }


def _needs(found: Needs) -> dict[str, Any]:
    return {
        "rounds": found.rounds,
        "at_least": found.at_least,
        "seconds": found.seconds,
        "regions": [
            {
                "region": one.region,
                "learners": one.learners,
                "up_bytes": one.up_bytes,
                "down_bytes": one.down_bytes,
                "bytes_per_second_needed": one.bytes_per_second,
                "connections_needed": one.connections,
                "connections": one.connections_given,
                "fragments_hidden": one.hidden if one.fragments else None,
                "fragments": [asdict(fragment) for fragment in one.fragments],
            }
            for one in found.regions
        ],
    }


def _remedy(remedy: Remedy) -> dict[str, Any]:
    return {
        "kind": remedy.kind.value,
        "text": str(remedy),
        "changes": [_change(change) for change in remedy.changes],
        "merged_share": remedy.fit.merged_share,
    }


def _change(change: Setting | LinkRate | StepTime) -> dict[str, Any]:
    match change:
        case Setting():
            return {"field": change.field, "value": change.value}
        case LinkRate():
            return {"link": change.link, "bytes_per_second": change.bytes_per_second}
        case StepTime():
            return {"step_time_factor": change.factor}


def _data_parallel(plan: Plan) -> dict[str, Any]:
    beside = plan.data_parallel
    assert beside is not None
    return {
        "step_bytes": beside.step_bytes,
        "decoupled_step_bytes": beside.decoupled_step_bytes,
        "all_reduce_seconds": beside.all_reduce_seconds,
        "slowdown": beside.slowdown,
    }


def _advice(advice: Advice) -> dict[str, Any]:
    return {
        "steps": advice.steps,
        "changes": [_change(change) for change in advice.changes],
        "merged_share": advice.fit.merged_share,
        "measured": asdict(advice.row),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
