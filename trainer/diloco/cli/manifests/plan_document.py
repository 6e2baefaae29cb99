"""A plan as plain values, for programs: the body of ``diloco plan --json``."""

import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from diloco.plan.changes import Change, StepTime
from diloco.plan.links import LinkUse
from diloco.plan.plan import Plan
from diloco.plan.verdict import Fit
from diloco.simulate.planning.tried import Tried
from diloco.spec.outer_choice import OuterChoice


def document(plan: Plan, tried: Tried) -> dict[str, Any]:
    """JSON values. What is unlimited or not known is null; shares are fractions of 1, rates bytes per second."""
    exchange, fit, outer = plan.situation.exchange, tried.fit, OuterChoice.of(plan.job.spec)
    advice, beside = tried.advice, plan.data_parallel
    return {
        "job": plan.job.metadata.name,
        "fits": fit.fits and not plan.device_too_small,
        "kind": "DeviceTooSmall" if fit.fits and plan.device_too_small else fit.kind.value,
        "reason": fit.reason,
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
            **_schedule(fit),
        },
        "links": _links(plan, fit),
        "learners": _learners(plan, fit),
        "needs": asdict(tried.needs),
        "forecast": None if tried.forecast is None else asdict(tried.forecast),
        "no_forecast": tried.short or None,
        "syncer": asdict(plan.syncer),
        "compute": {
            "flops_of_token": plan.flops_of_token or None,
            "device_flops_per_second": dict(plan.device_flops_per_second),
        },
        "memory": {
            **asdict(plan.memory),
            "device_bytes_given": plan.device_bytes,
            "sequences_that_fit": plan.sequences_that_fit,
        },
        "remedies": [
            {
                "kind": remedy.kind.value,
                "text": str(remedy),
                "changes": _changes(remedy.changes),
                "merged_share": remedy.fit.merged_share,
            }
            for remedy in tried.remedies
        ],
        "smallest_step_seconds": tried.smallest_step_seconds,
        "step_times": [
            {"step_seconds": one.seconds, "fits": one.fit.fits, "kind": one.fit.kind.value, **_schedule(one.fit)}
            for one in tried.step_times
        ],
        "data_parallel": None if beside is None else asdict(beside),
        "recommendation": None
        if advice is None
        else {
            "steps": advice.steps,
            "changes": _changes(advice.changes),
            "merged_share": advice.fit.merged_share,
            "measured": asdict(advice.row),
        },
        "not_measured": tried.not_measured or None,
        "assumed": list(plan.assumed),
    }


def _schedule(fit: Fit) -> dict[str, Any]:
    return {
        "step_seconds": fit.step_seconds,
        "round_seconds": None if fit.outcome is None else fit.outcome.round_seconds,
        "overlap_steps": fit.overlap,
        "overlap_needed": fit.overlap_needed,
        "merged_share": fit.merged_share,
    }


def _links(plan: Plan, fit: Fit) -> list[dict[str, Any]]:
    uses = {use.name: asdict(use) for use in fit.links}
    unknown = dict.fromkeys(field.name for field in fields(LinkUse))
    return [
        {
            **uses.get(link.name, unknown),
            "name": link.name,
            "learners": learners,
            "bytes_per_second": _finite(link.up_bytes_per_second),
            "link_bytes_per_second": _finite(link.link_bytes_per_second),
            "round_trip_seconds": link.round_trip_seconds,
        }
        for link, learners in plan.situation.links
    ]


def _finite(rate: float) -> float | None:
    return rate if math.isfinite(rate) else None


def _learners(plan: Plan, fit: Fit) -> list[dict[str, Any]]:
    pools = {} if fit.outcome is None else {pool.name: pool for pool in fit.outcome.pools}
    return [
        {
            "pool": group.name,
            "learners": group.learners,
            "processes": plan.job.spec.pools[group.name].ranks,
            "step_seconds": group.step_seconds,
            "lead_steps": None if pool is None else pool.lead_steps,
            "answer_seconds": None if pool is None else pool.answer_seconds,
            "late_share": None if pool is None else pool.late,
            "overwritten_share": None if pool is None else pool.overwritten,
            "waiting_share": None if pool is None else pool.waiting,
            "merged_share": None if pool is None else pool.merged,
        }
        for group in plan.situation.groups
        for pool in (pools.get(group.name),)
    ]


def _changes(changes: Sequence[Change]) -> list[dict[str, Any]]:
    return [{"step_time_factor": one.factor} if isinstance(one, StepTime) else asdict(one) for one in changes]
