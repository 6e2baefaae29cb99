"""Bytes of a real run over given links: the syncer, the learners, the summary and `diloco plan` tell the same ones."""

import json
from pathlib import Path

import pytest

from diloco.model.build import layout_of_job
from diloco.plan.needs import job_bytes
from diloco.plan.situation import Exchange
from diloco.spec import load_job
from tests.support.local_run import OUTER, LocalRun, write_job

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

WITHIN = 0.02
HEADERS = 0.001
"""Headers of parts, of the whole."""
TOKENS = 48_000
PACE = {"interval": 24, "overlap": 2, "quorum": 2, "outerOptimizer": OUTER, "leaseSeconds": 60}
SYNC = PACE | {"compression": "Int4", "downlink": "Int8"}


def test_bytes_of_a_run_are_those_of_the_plan(tmp_path: Path) -> None:
    path = write_job(
        tmp_path,
        TOKENS,
        pools={"near/p": 1, "far/p": 1},
        model={"builtin": {"preset": "nano"}},
        training={"batchSize": 8, "evaluation": {"everyTokens": TOKENS, "sequences": 4}},
        sync=SYNC,
    )
    flags = ("--emulate-link", "near=400Mbit/s,2ms", "--emulate-link", "far=200Mbit/s,8ms")
    with LocalRun(path, *flags) as run:
        done = run.ended()
    assert done.returncode == 0, done.stderr
    summary = run.summary()
    job = load_job(path)
    layout = layout_of_job(job.spec)
    exchange = Exchange.of(job.spec.sync, tuple(fragment.numel for fragment in layout.fragments))
    up, down = job_bytes(exchange, summary["syncer_steps"])
    moved = {one["region"]: one for one in summary["bytes_by_region"]}
    assert list(moved) == ["near", "far"]
    for region in moved.values():
        assert region["up"]["bulk"] == pytest.approx(up, rel=WITHIN)
        assert region["down"]["bulk"] == pytest.approx(down, rel=WITHIN)
        assert 0 < region["up"]["control"] < up
        told = json.loads((run.output / "learners" / f"{region['region']}.p.0" / "activity.json").read_text())
        assert told["bytes_pushed"] == pytest.approx(region["up"]["bulk"], rel=HEADERS)
        assert told["bytes_pulled"] == pytest.approx(region["down"]["bulk"], rel=HEADERS)
    for way, sent in (("up", summary["bytes_pushed"]), ("down", summary["bytes_pulled"])):
        assert sent == sum(sum(region[way].values()) for region in moved.values())
    gradients = 4 * layout.numel * sum(learner["steps"] for learner in summary["learners"])  # M = 2: 2 (M - 1) / M = 1
    assert summary["data_parallel_bytes"] == gradients
    assert summary["data_parallel_ratio"] == gradients / (summary["bytes_pushed"] + summary["bytes_pulled"])
