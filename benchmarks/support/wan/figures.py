"""What the cells of the benchmark `wan` say together: speeds, bytes, losses at equal tokens and at equal time. Pure."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from diloco.core.sizes import ENCODINGS, F32, all_reduce_share, downlink_encoding
from support.report import Ratio, Ratios
from support.wan.cells import INTERVAL, METHODS, REGIONS, Cell

Results = Mapping[Cell, Mapping[str, Any]]


def byte_ratio(method: str) -> float:
    """Bytes of data-parallel training over a decoupled method's, a parameter and ``INTERVAL`` steps: arithmetic.

    With gradients in f32: 16 (M - 1) / M H / (up + down).
    """
    sync = METHODS[method]
    assert sync is not None
    up, down = ENCODINGS[sync["compression"]], downlink_encoding(sync["downlink"], None)
    both_ways = 2 * all_reduce_share(len(REGIONS)) * F32.parameter_bytes
    return both_ways * INTERVAL / (up.parameter_bytes + down.parameter_bytes)


def bytes_an_interval(cell: Cell, result: Mapping[str, Any]) -> float:
    """Bytes that a learner sends and receives by its interface for each time that the whole model is synchronized.

    For data-parallel training these are ``INTERVAL`` steps, of a decoupled run the merges in its middle. Not a number
    if that is too short.
    """
    sync = METHODS[cell.method]
    if sync is None:
        moved = sum(result["up_bytes"]) + sum(result["down_bytes"])
        return float(moved / len(REGIONS) / result["steps"] * INTERVAL)
    rounds = result["steady_rounds"]
    return result["steady_bytes"] / len(REGIONS) / rounds * sync["fragments"] if rounds else math.nan


def loss_at(evaluations: Sequence[Mapping[str, float]], axis: str, place: float) -> float | None:
    """Loss at a number of tokens or seconds, between two evaluations on the straight line; None: outside of them."""
    points = sorted((one[axis], one["loss"]) for one in evaluations)
    for (before, loss), (after, next_loss) in pairwise(points):
        if before <= place <= after:
            share = (place - before) / (after - before) if after > before else 1.0
            return loss + share * (next_loss - loss)
    return None


def ratios(results: Results) -> Ratios:
    """Dimensionless results by name."""
    return dict(_ratios(results))


def _ratios(results: Results) -> Iterator[tuple[str, Ratio]]:
    links = [link for link in dict.fromkeys(cell.link for cell in results) if link != "unlinked"]
    for method in (name for name, sync in METHODS.items() if sync is not None):
        yield f"bytes_data_parallel_over_{method}", Ratio(byte_ratio(method), "arithmetic: bytes of that method")
        free = _mean(results, "unlinked", method)
        for link in links:
            mine, beside = (_mean(results, link, each) for each in (method, "data_parallel"))
            if mine is not None and free is not None:
                speed = mine["tokens_per_second"] / free["tokens_per_second"]
                text = "tokens per second of the same method without links"
                yield f"speed_{link}_{method}", Ratio(speed, text)
            if mine is not None and beside is not None:
                name = f"{link}_data_parallel_over_{method}"
                measured = beside["bytes_an_interval"] / mine["bytes_an_interval"]
                if math.isfinite(measured):
                    yield f"bytes_{name}", Ratio(measured, "bytes of that method, by the interfaces' counters")
                    yield f"bytes_{name}_measured", Ratio(measured / byte_ratio(method), "the same by arithmetic")
                speed = mine["tokens_per_second"] / beside["tokens_per_second"]
                yield f"time_{name}", Ratio(speed, "time of that method for as many tokens")


def figures(results: Results) -> dict[str, Any]:
    """A row for each cell, and losses of a link's methods at equal time."""
    rows = [
        {
            "link": cell.link,
            "method": cell.method,
            "seed": cell.seed,
            "steps": result["steps"],
            "rounds": result.get("rounds"),
            "tokens_per_second": result["tokens"] / result["seconds"],
            "seconds": result["seconds"],
            "blocked_share": result["blocked_share"],
            "up_bytes": sum(result["up_bytes"]),
            "down_bytes": sum(result["down_bytes"]),
            "loss": result["evaluations"][-1]["loss"] if result["evaluations"] else None,
            "loss_at_equal_tokens": loss_at(result["evaluations"], "tokens", _shortest(results, cell, "tokens")),
            "loss_at_equal_time": loss_at(result["evaluations"], "seconds", _shortest(results, cell, "seconds")),
            "commit": result["commit"],
        }
        for cell, result in results.items()
    ]
    return {"cells": rows, "regions": len(REGIONS), "interval": INTERVAL}


def _shortest(results: Results, cell: Cell, axis: str) -> float:
    """The last place on an axis that every method on the cell's link has reached with its seed."""
    ends = [
        result["evaluations"][-1][axis]
        for other, result in results.items()
        if (other.link, other.seed) == (cell.link, cell.seed) and result["evaluations"]
    ]
    return float(min(ends, default=0.0))


def _mean(results: Results, link: str, method: str) -> dict[str, float] | None:
    mine = [(cell, result) for cell, result in results.items() if (cell.link, cell.method) == (link, method)]
    if not mine:
        return None
    return {
        "tokens_per_second": statistics.mean(one["tokens"] / one["seconds"] for _, one in mine),
        "bytes_an_interval": statistics.mean(bytes_an_interval(cell, one) for cell, one in mine),
    }
