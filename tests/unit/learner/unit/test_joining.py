"""The processes of a learner meet, and see that they are of one job and one version."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from diloco.learner.data.source import DataStoppedError
from diloco.learner.unit.joining import UnitError, await_others, facts_of, joined, store_at
from diloco.model.build import build_model, layout_of_job
from diloco.model.fragments import layout_of
from tests.support.small_job import small_job

CPU = torch.device("cpu")


def test_the_process_that_differs_says_in_what(tmp_path: Path) -> None:
    store = store_at(str(tmp_path / "store"), 2)
    for name, value in {"job": "a", "layout": "x", "number of processes": "2"}.items():
        store.set(f"first/{name}", value)
    line = "rank 1 differs from rank 0 in layout (y, there x); give all processes of a learner the same"
    with pytest.raises(UnitError, match=f"^{re.escape(line)}$"):
        joined(store, 1, 2, CPU, {"job": "a", "layout": "y"})


def test_the_first_stops_while_another_process_is_not_there_yet(tmp_path: Path) -> None:
    with pytest.raises(DataStoppedError):
        await_others(store_at(str(tmp_path / "store"), 2), 2, lambda: True)


def test_waiting_has_no_limit_that_a_region_could_be_cut_off_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = store_at(str(tmp_path / "store"), 1)
    world = joined(store, 0, 1, CPU, {"job": "a"})
    try:
        groups = [dist.group.WORLD, world._control, world.mesh.get_group()]
        limits = {group._get_backend(CPU).options._timeout for group in groups if group is not None}
        limits.add(store.timeout)  # type: ignore[attr-defined]  # torch does not declare it
        assert min(limits) > timedelta(days=300)
    finally:
        world.leave()


def test_what_must_be_alike_is_so_whether_the_model_has_values() -> None:
    job = small_job()
    first = facts_of(job, layout_of(build_model(job), job.sync.fragments))
    assert first == facts_of(job, layout_of_job(job))
    assert first == facts_of(small_job(learners=3), layout_of_job(job))  # may change while a job runs
    other = small_job(data={"text": {}})
    assert {name for name, value in facts_of(other, layout_of_job(other)).items() if value != first[name]} == {"job"}


def test_another_loop_is_another_job() -> None:
    spec: dict[str, Any] = {"data": {}, "training": {"tokens": 100_000, "sequenceLength": 16, "batchSize": 4}}
    spec["model"] = {"builtin": {"preset": "pico", "vocabularySize": 257}}
    jobs = [small_job(**spec, loop={"entrypoint": "a.b:c", "arguments": {"rate": rate}}) for rate in (1, 2)]
    one, other = (facts_of(job, layout_of_job(job)) for job in jobs)
    assert {name for name, value in one.items() if value != other[name]} == {"job"}
