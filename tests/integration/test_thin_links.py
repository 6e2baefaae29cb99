"""``diloco run`` over thin and uneven links, with real processes: the work of every learner is merged.

The share depends on what else the machine does, so the bounds leave room; `benchmarks/links_real.py` measures it.
"""

from pathlib import Path
from typing import Any

import pytest

from testbed import fork_server
from tests.support.local_run import OUTER, PROGRAM, LocalRun, write_job

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

TRAINED = ("merged", "overwritten", "late", "lost")


def run(folder: Path, tokens: int, *flags: str) -> dict[str, dict[str, Any]]:
    """The learners of a successful run, by id, from its summary."""
    job = write_job(
        folder,
        tokens,
        pools={"near/p": 1, "other/p": 1},
        training={"sequenceLength": 64, "batchSize": 8, "evaluation": {"everyTokens": tokens, "sequences": 4}},
        sync={"outerOptimizer": OUTER, "compression": "Int4"},
    )
    with LocalRun(job, *flags) as made:
        done = made.ended()
    assert done.returncode == 0, done.stderr
    return {learner["id"]: learner for learner in made.summary()["learners"]}


def merged_share(told: dict[str, Any]) -> float:
    """The share of the settled training time that was merged."""
    classes = told["time_shares"]
    settled = sum(float(classes.get(name, 0.0)) for name in TRAINED)
    return float(classes["merged"]) / settled


def test_two_learners_behind_a_link_that_the_syncer_shares_are_both_merged(tmp_path: Path) -> None:
    # At a fifth of the machine's speed both together use most of the syncer's link.
    flags = ("--slow", "*=0.2", "--emulate-link", "*=2Mbit/s", "--emulate-link", "syncer=3Mbit/s")
    told = run(tmp_path, 80_000, *flags)
    assert merged_share(told["near/p/0"]) > 0.5
    assert merged_share(told["other/p/0"]) > 0.5


def test_a_learner_five_times_slower_is_merged(tmp_path: Path) -> None:
    told = run(tmp_path, 80_000, "--slow", "near=0.5", "--slow", "other=0.1")
    assert merged_share(told["other/p/0"]) > 0.4


def test_a_link_cut_during_an_awaited_transfer_delays_only_its_learner(tmp_path: Path) -> None:
    flags = ("--slow", "*=0.2", "--emulate-link", "other=1Mbit/s,160ms", "--chaos", "cut:other@step=60,seconds=6")
    told = run(tmp_path, 150_000, *flags)
    assert merged_share(told["near/p/0"]) > 0.6
    assert told["other/p/0"]["time_shares"]["merged"] > 0
    explained = fork_server.run([*PROGRAM, "replay", str(tmp_path / "out"), "--explain"]).stdout
    assert "waits for other/p/0 at most" in explained
    assert "other/p/0 (has not answered since it was last waited for)" in explained
