"""Monitors, rules and dashboards: what they ask for is served, and each alert says what to do."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.monitoring import (
    DASHBOARDS,
    REPOSITORY,
    RULES,
    RUNBOOK,
    alerts,
    metrics_in,
    queries,
    rules,
    served_metrics,
)
from tests.support.rendered_chart import NAMESPACE, Render, Rendered

VARIABLES = {"__rate_interval": "2m", "namespace": "team", "job_name": "demo"}


def test_rules_and_dashboards_are_there_only_on_request(plain: Rendered, render: Render) -> None:
    assert not [one for one in plain.objects if one["kind"] in ("PrometheusRule", "ConfigMap")]
    url = "https://docs.example/operations.html"
    on = {"enabled": True, "labels": {"release": "prometheus"}, "runbookUrl": url}
    rendered = render(monitoring={"rules": on, "dashboards": {"enabled": True}})
    rule = rendered.only("PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    # Of several releases, each misses its own operator.
    held = f'diloco_operator_lease_held{{namespace="{NAMESPACE}"}}'
    made = RULES.read_text(encoding="utf-8").replace(RUNBOOK, url).replace("diloco_operator_lease_held", held)
    assert rule["spec"] == yaml.safe_load(made)
    boards = rendered.only("ConfigMap")
    assert boards["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {name: json.loads(text) for name, text in boards["data"].items()} == {
        path.name: json.loads(path.read_text(encoding="utf-8")) for path in DASHBOARDS
    }


def test_figures_of_jobs_have_the_same_labels_from_operator_and_syncer(render: Render) -> None:
    on = {"enabled": True}
    rendered = render(monitoring={"serviceMonitor": on, "podMonitor": on})
    assert rendered.only("ServiceMonitor")["spec"]["endpoints"][0]["honorLabels"] is True
    assert rendered.only("PodMonitor")["spec"]["podMetricsEndpoints"][0]["relabelings"] == [
        {"sourceLabels": ["__meta_kubernetes_pod_label_diloco_dev_job"], "targetLabel": "job_name"}
    ]


def test_each_alert_says_what_is_wrong_and_links_to_what_to_do() -> None:
    headings = re.findall(r"^### (\w+)$", (REPOSITORY / RUNBOOK).read_text(encoding="utf-8"), re.MULTILINE)
    found = alerts()
    assert [one for one in headings if one.startswith("DiLoCo")] == list(found)
    for name, alert in found.items():
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert alert["annotations"]["runbook_url"] == f"{RUNBOOK}#{name.lower()}"


def test_rules_and_dashboards_read_only_metrics_that_are_served() -> None:
    asked = [rule["expr"] for rule in rules()]
    asked += [query for board in DASHBOARDS for query in queries(board, VARIABLES).values()]
    assert {name for expression in asked for name in metrics_in(expression)} <= served_metrics()


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_the_panels_of_a_dashboard_have_places_and_ids_of_their_own(path: Path) -> None:
    board = json.loads(path.read_text(encoding="utf-8"))
    assert path.stem == board["uid"]
    panels: list[dict[str, Any]] = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    sources = {panel["datasource"]["uid"] for panel in panels if panel["type"] != "row"}
    assert sources == {"${datasource}"}
    (source,) = (one for one in board["templating"]["list"] if one["type"] == "datasource")
    assert source["name"] == "datasource"
