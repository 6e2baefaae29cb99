"""Each alert fires on its fault and not without it, and what processes serve is as promtool wants it."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import generate_metrics
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from tests.support.monitoring import DASHBOARDS, REPOSITORY, RULES, RUNBOOK, alerts, queries
from tests.unit.chart.test_monitoring import VARIABLES

JOB = 'namespace="team",job_name="demo"'
TRAINING = {f'diloco_job_phase{{{JOB},phase="Training"}}': "1x200"}
_DAY = 24 * 60 * 60


def condition(kind: str, reason: str) -> str:
    return f'diloco_job_condition{{{JOB},condition="{kind}",reason="{reason}"}}'


@dataclass(frozen=True)
class Case:
    """The series with an alert's fault and without it, one value a minute from 1970 on; the rest is there in both."""

    fault: dict[str, str]
    otherwise: dict[str, str]
    minutes: int
    rest: dict[str, str]


def case(fault: dict[str, str], otherwise: dict[str, str], minutes: int = 90, **rest: dict[str, str]) -> Case:
    return Case(fault, otherwise, minutes, {name: values for group in rest.values() for name, values in group.items()})


def of_job(name: str, region: str = "") -> str:
    where = f',region="{region}"' if region else ""
    return f"diloco_job_{name}{{{JOB}{where}}}"


MERGING = {of_job("tokens"): "0+9x200"}

CASES = {
    "DiLoCoNoProgress": case({of_job("tokens"): "0+9x40 360x99"}, {of_job("tokens"): "0+9x99"}, also=TRAINING),
    "DiLoCoQuorumMissing": case(
        {condition("Ready", "QuorumMissing"): "0x30"}, {condition("Ready", "WaitingForLearners"): "0x30"}, 20
    ),
    "DiLoCoLearnersRestartOften": case(
        # Restarts are counted from 0 again once a learner is let back in.
        {of_job("learner_restarts", "a"): "9x60 12x9", of_job("learner_restarts", "b"): "0x60 3x9"},
        {of_job("learner_restarts", "a"): "9x60 0x9", of_job("learner_restarts", "b"): "0x60 3x9"},
        65,
    ),
    "DiLoCoRegionUnreachable": case(
        {of_job("cluster_ready", "a"): "1x9 0x30"}, {of_job("cluster_ready", "a"): "1x9 0x5 1x30"}, 35
    ),
    "DiLoCoCredentialExpires": case(
        {of_job("credential_expiry_timestamp_seconds", "a"): f"{3 * _DAY}x9"},
        {of_job("credential_expiry_timestamp_seconds", "a"): f"{4 * _DAY}x9"},
        5,
    ),
    "DiLoCoCheckpointOld": case(
        {of_job("checkpoint_timestamp_seconds"): "0x90"},
        {of_job("checkpoint_timestamp_seconds"): "0+60x90"},
        also={of_job("checkpoint_interval_seconds"): "600x90", **MERGING},
    ),
    "DiLoCoBackupOld": case(
        {of_job("backup_timestamp_seconds"): "0x200"},
        {of_job("backup_timestamp_seconds"): "0+60x200"},
        150,
        also={of_job("backup_interval_seconds"): "600x200", **MERGING},
    ),
    "DiLoCoDiskNearlyFull": case(
        {f"diloco_disk_free_bytes{{{JOB}}}": "9x20"},
        {f"diloco_disk_free_bytes{{{JOB}}}": "11x20"},
        15,
        also={f"diloco_disk_size_bytes{{{JOB}}}": "100x20"},
    ),
    "DiLoCoGoodputLow": case({of_job("goodput_ratio"): "0.4x90"}, {of_job("goodput_ratio"): "0.6x90"}, also=TRAINING),
    "DiLoCoLossNotFinite": case({of_job("loss_finite"): "1x5 0x5"}, {of_job("loss_finite"): "0x5 1x5"}, 8),
    "DiLoCoJobDegraded": case(
        {condition("Degraded", "NodeLost"): "1x20", condition("Degraded", "Evicted"): "_x20 1x30"},
        {condition("Degraded", "NodeLost"): "1x20", condition("Degraded", "AsExpected"): "_x20 0x30"},
        40,
    ),
    "DiLoCoJobFailed": case(
        {condition("Failed", "TrainingFailed"): "_x60 1x60"}, {condition("Failed", "TrainingFailed"): "1x120"}, 90
    ),
    "DiLoCoOperatorNotWorking": case(
        {"diloco_operator_lease_held": "0x20"}, {"diloco_operator_lease_held": "1x20"}, 15
    ),
    "DiLoCoOperatorErrors": case(
        {'diloco_operator_reconcile_errors_total{reason="Internal"}': "0+1x60"},
        {'diloco_operator_reconcile_errors_total{reason="Internal"}': "0x20 9x60"},
        50,
    ),
}
ALSO: dict[str, tuple[str, dict[str, str], int, int]] = {
    "a backup that was never made": (
        "DiLoCoBackupOld",
        {of_job("backup_interval_seconds"): "600x200", **MERGING},
        150,
        1,
    ),
    "an old backup of a job whose learners wait": (
        "DiLoCoBackupOld",
        {of_job("backup_timestamp_seconds"): "0x200", of_job("backup_interval_seconds"): "600x200"},
        150,
        0,
    ),
    "an old checkpoint of a job whose learners wait": (
        "DiLoCoCheckpointOld",
        {
            of_job("checkpoint_timestamp_seconds"): "0x90",
            of_job("checkpoint_interval_seconds"): "600x90",
            of_job("tokens"): "9x90",
        },
        90,
        0,
    ),
    "a syncer that does not answer, of a job that is said to wait": (
        "DiLoCoNoProgress",
        {condition("Ready", "SyncerUnreachable"): "0x30"},
        20,
        1,
    ),
    "a final evaluation": (
        "DiLoCoNoProgress",
        {of_job("tokens"): "9x99", condition("Progressing", "Finishing"): "1x99", **TRAINING},
        90,
        0,
    ),
    "a job that is suspended": ("DiLoCoNoProgress", {of_job("tokens"): "9x99"}, 90, 0),
    "an operator that hears nothing of jobs": (
        "DiLoCoOperatorNotWorking",
        {"diloco_operator_lease_held": "1x20", 'diloco_operator_watch_age_seconds{watch="jobs"}': "0x2 200x20"},
        15,
        1,
    ),
    "an operator whose metrics are gone": ("DiLoCoOperatorNotWorking", {}, 15, 1),
    "two processes of an operator, one after the other": (
        "DiLoCoNoProgress",
        {
            f'diloco_job_tokens{{{JOB},pod="a"}}': "9x40 stale",
            f'diloco_job_tokens{{{JOB},pod="b"}}': "_x40 9+9x60",
            **TRAINING,
        },
        60,
        0,
    ),
}


def fires(alert: str, series: dict[str, str], minutes: int, times: int) -> dict[str, Any]:
    """A test of promtool's."""
    expected = [{"labels": "{}", "value": times}] if times else []
    query = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": f"{minutes}m", "exp_samples": expected}],
    }


def run(promtool: Path, *arguments: str | Path, text: str = "") -> str:
    """The output; empty if it has nothing to say."""
    done = subprocess.run([promtool, *arguments], input=text, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else done.stderr


def test_every_alert_fires_on_its_fault_and_not_without(promtool: Path, tmp_path: Path) -> None:
    assert CASES.keys() == alerts().keys()
    tests = []
    for name, one in CASES.items():
        tests.append(fires(name, one.rest | one.fault, one.minutes, 1))
        tests.append(fires(name, one.rest | one.otherwise, one.minutes, 0))
    tests += [fires(*one) for one in ALSO.values()]
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    assert run(promtool, "test", "rules", file) == ""


def test_the_alert_of_a_degraded_job_names_the_reason(promtool: Path, tmp_path: Path) -> None:
    runbook = f"{RUNBOOK}#dilocojobdegraded"
    told = {
        "summary": "Job team/demo is degraded",
        "description": "The most serious reason is NodeLost.",
        "runbook_url": runbook,
    }
    labels = {"namespace": "team", "job_name": "demo", "severity": "warning"}
    series = [
        {"series": condition("Degraded", "NodeLost"), "values": "1x40"},
        {
            "series": 'diloco_job_condition{namespace="team",job_name="other",condition="Degraded",reason="Evicted"}',
            "values": "1x9 0x40",
        },
    ]
    expected = {"exp_labels": labels, "exp_annotations": told}
    alert = {"eval_time": "40m", "alertname": "DiLoCoJobDegraded", "exp_alerts": [expected]}
    tests = [{"interval": "1m", "input_series": series, "alert_rule_test": [alert]}]
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    assert run(promtool, "test", "rules", file) == ""


def test_the_collectors_scrape_configuration_in_the_docs_is_valid(promtool: Path, tmp_path: Path) -> None:
    page = (REPOSITORY / "docs/how-to/tasks.md").read_text(encoding="utf-8")
    (block,) = (one for one in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "receivers:" in one)
    collector = yaml.safe_load(block)
    assert collector["service"]["pipelines"]["metrics"] == {"receivers": ["prometheus"], "exporters": ["otlp"]}
    config = collector["receivers"]["prometheus"]["config"]
    # Debian's promtool knows no Kubernetes.
    assert config["scrape_configs"][0].pop("kubernetes_sd_configs") == [{"role": "pod"}]
    file = tmp_path / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    assert run(promtool, "check", "config", "--lint-fatal", file) == ""


def test_promtool_finds_nothing_wrong_with_rules_and_queries(promtool: Path, tmp_path: Path) -> None:
    assert run(promtool, "check", "rules", "--lint-fatal", RULES) == ""
    asked = [query for board in DASHBOARDS for query in queries(board, VARIABLES).values()]
    recorded = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(asked)]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": recorded}]}))
    assert run(promtool, "check", "rules", file) == ""


@pytest.mark.parametrize("process", ["syncer", "learner", "operator"])
def test_metrics_have_names_and_units_as_promtool_wants_them(promtool: Path, process: str) -> None:
    registry: CollectorRegistry = getattr(generate_metrics, f"_{process}")()
    assert run(promtool, "check", "metrics", text=generate_latest(registry).decode()) == ""
