"""``diloco run`` over thin, far and uneven links, with real processes: the work of every learner is merged.

The share depends on what else the machine does, so the bounds leave room; `benchmarks/links_real.py` measures it.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from testbed import fork_server
from tests.support import local_run

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

TRAINED = ("merged", "overwritten", "late", "outdated", "missed", "unusable", "lost")
JOB = """
apiVersion: diloco.dev/v1alpha1
kind: DiLoCoJob
metadata: {name: links}
spec:
  model: {builtin: {preset: pico}}
  data: {text: {path: TEXT}}
  training: {tokens: TOKENS, sequenceLength: 64, batchSize: 8, evaluation: {everyTokens: TOKENS, sequences: 4}}
  sync: {outerOptimizer: {learningRate: 1.0, momentum: 0.0}, compression: Int4}
  regions:
  - {name: near, pools: [{name: p, learners: 1}]}
  - {name: other, pools: [{name: p, learners: 1}]}
"""


def run(folder: Path, tokens: int, *flags: str) -> dict[str, dict[str, Any]]:
    """The learners of a successful run, by id, from its summary; ``job`` is the job itself."""
    job = local_run.write_job(folder, tokens, JOB)
    done = local_run.run(job, folder / "out", *flags)
    assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "out" / "summary.json").read_text())
    assert summary["complete"]
    return {"job": summary} | {learner["id"]: learner for learner in summary["learners"]}


def merged_share(told: dict[str, Any]) -> float:
    """The share of the settled training time that was merged."""
    classes = told["time_shares"]
    settled = sum(float(classes.get(name, 0.0)) for name in TRAINED)
    return float(classes["merged"]) / settled


def test_two_learners_behind_a_link_that_the_syncer_shares_are_both_merged(tmp_path: Path) -> None:
    # At a fifth of the machine's speed both together use most of the syncer's link.
    flags = ("--slow", "*=0.2", "--emulate-link", "*=2Mbit/s", "--emulate-link", "syncer=3Mbit/s")
    told = run(tmp_path, 120_000, *flags)
    assert merged_share(told["near/p/0"]) > 0.5
    assert merged_share(told["other/p/0"]) > 0.5


def test_a_learner_far_away_is_merged(tmp_path: Path) -> None:
    told = run(tmp_path, 120_000, "--slow", "*=0.2", "--emulate-link", "other=1Gbit/s,160ms")
    assert merged_share(told["other/p/0"]) > 0.5


def test_a_learner_five_times_slower_is_merged(tmp_path: Path) -> None:
    told = run(tmp_path, 120_000, "--slow", "near=0.5", "--slow", "other=0.1")
    assert merged_share(told["other/p/0"]) > 0.4


def test_a_link_cut_during_an_awaited_transfer_delays_only_its_learner(tmp_path: Path) -> None:
    flags = ("--slow", "*=0.2", "--emulate-link", "other=1Mbit/s,160ms", "--chaos", "cut:other@step=60,seconds=6")
    told = run(tmp_path, 220_000, *flags)
    assert merged_share(told["near/p/0"]) > 0.6
    assert told["other/p/0"]["time_shares"]["merged"] > 0
    explained = fork_server.run([*local_run.PROGRAM, "replay", str(tmp_path / "out"), "--explain"]).stdout
    assert "waits for other/p/0 at most" in explained
    assert "other/p/0 (has not answered since it was last waited for)" in explained
