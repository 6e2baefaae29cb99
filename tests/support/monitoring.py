"""The chart's rules and dashboards, and what they ask Prometheus."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.rendered_chart import CHART

RULES = CHART / "files/rules.yaml"
DASHBOARDS = sorted((CHART / "files/dashboards").glob("*.json"))
REPOSITORY = CHART.parents[1]
RUNBOOK = "docs/how-to/operations.md"
_METRIC = re.compile(r"\bdiloco_\w+")
_SERVED = re.compile(r"^- `(diloco_\w+)", re.MULTILINE)


def rules() -> list[dict[str, Any]]:
    """Every rule of every group."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    """The alerts, by name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def queries(dashboard: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """A dashboard's queries, by panel and letter, with values for Grafana's variables."""
    panels = json.loads(dashboard.read_text(encoding="utf-8"))["panels"]
    found = {f"{panel['title']} {one['refId']}": one["expr"] for panel in panels for one in panel.get("targets", ())}
    return {place: _with(variables, query) for place, query in found.items()}


def _with(variables: Mapping[str, str], query: str) -> str:
    for name, value in variables.items():
        query = query.replace(f"${name}", value)
    return query


def metrics_in(expression: str) -> Iterator[str]:
    """The names of the metrics that an expression reads, without those that rules record."""
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for name in recorded:
        expression = expression.replace(name, "")
    yield from (name.removesuffix("_bucket") for name in _METRIC.findall(expression))


def served_metrics() -> set[str]:
    """The names of all metrics that processes serve, as the reference lists them."""
    return set(_SERVED.findall((REPOSITORY / "docs/reference/measurements.md").read_text(encoding="utf-8")))
