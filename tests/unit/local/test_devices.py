"""Which processes of a local run train on which devices."""

import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from diloco.local.devices import DevicesError, assign_devices, devices_text
from diloco.local.directory import RunDirectory
from diloco.local.launch import continuation
from diloco.local.run_plan import RunPlan, RunRequest, learner_arguments
from diloco.local.supervisor import Supervisor
from diloco.local.view.screen import PlainRunView
from diloco.spec.placement import Pool
from diloco.world.model import World
from tests.support.small_job import named_job, small_job

EAST, WEST = ("east/a/0", "east/a/1"), ("west/b/0", "west/b/1", "west/b/2")
ALL = (*EAST, *WEST)


ONE_PROCESS = dict.fromkeys(ALL, Pool(name="a"))
LIMITS = {"resources": {"limits": {"nvidia.com/gpu": "4"}}}


def assigned(*texts: str, count: int = 2) -> list[str]:
    devices = assign_devices(texts, ONE_PROCESS, lambda: count)
    return [",".join(devices[learner]) for learner in ALL]


def unit(*texts: str, count: int, **pool: Any) -> list[tuple[str, ...]]:
    """Of two learners."""
    made = Pool.model_validate({"name": "a", **pool})
    return list(assign_devices(texts, dict.fromkeys(EAST, made), lambda: count).values())


def test_every_accelerator_is_dealt_out_in_turn() -> None:
    assert assigned(count=2) == ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"]
    assert assigned(count=8) == [f"cuda:{index}" for index in range(5)]


def test_without_any_there_is_nothing_to_choose() -> None:
    assert assigned(count=0) == ["auto"] * 5
    assert devices_text(assign_devices((), ONE_PROCESS, lambda: 0)) == ""


def test_what_is_asked_for_is_dealt_to_those_who_are_meant() -> None:
    assert assigned("cpu") == ["cpu"] * 5
    assert assigned("east=cpu", "west/b=cuda:1,cuda:0") == ["cpu", "cpu", "cuda:1", "cuda:0", "cuda:1"]
    assert assigned("cpu", "west/b/2=cuda") == ["cpu", "cpu", "cpu", "cpu", "cuda:0"]
    assert assigned("west=cpu") == ["cuda:0", "cuda:1", "cpu", "cpu", "cpu"]


def test_a_machine_is_not_asked_where_it_does_not_matter() -> None:
    def never() -> int:
        raise AssertionError

    assert set(assign_devices(("cpu",), ONE_PROCESS, never).values()) == {("cpu",)}


def test_each_process_of_a_learner_gets_an_accelerator() -> None:
    assert unit(count=4, processesPerNode=2) == [("cuda:0", "cuda:1"), ("cuda:2", "cuda:3")]
    assert unit(count=3, nodesPerLearner=2) == [("cuda:0", "cuda:1"), ("cuda:2", "cuda:0")]
    assert unit("cuda:1,cuda:0", count=2, processesPerNode=2) == [("cuda:1", "cuda:0")] * 2
    assert unit("cpu", count=2, processesPerNode=3) == [("cpu",) * 3] * 2


def test_accelerators_in_the_limits_count_only_where_they_are() -> None:
    assert unit(count=4, **LIMITS) == [("cuda:0", "cuda:1", "cuda:2", "cuda:3")] * 2
    assert unit(count=3, **LIMITS) == [("cuda:0",), ("cuda:1",)]
    assert unit(count=0, **LIMITS) == [("auto",)] * 2
    assert unit("cpu", count=4, nodesPerLearner=2, **LIMITS) == [("cpu", "cpu")] * 2
    assert unit(count=0, processesPerNode=4, **LIMITS) == [("auto",) * 4] * 2


def test_processes_of_a_learner_share_no_accelerator() -> None:
    with pytest.raises(DevicesError, match=r"^--device: east/a/0 has 4 processes, and more than one .* cuda:0; use"):
        unit(count=2, processesPerNode=4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu", "--device 'gpu': 'gpu' is not a device; use cpu, cuda or cuda:N"),
        ("", "--device '': '' is not a device"),
        ("east=", "--device 'east=': '' is not a device"),
        ("cuda:2", "--device 'cuda:2': cuda:2 is not available; this machine has 2 CUDA devices"),
        ("cuda:-1", "'cuda:-1' is not a device"),
        ("cpu,,cpu", "'' is not a device"),
        ("north=cpu", "--device 'north=cpu': 'north' matches no learner of this job; use"),
    ],
)
def test_what_cannot_be_is_one_line_that_names_it(text: str, message: str) -> None:
    with pytest.raises(DevicesError, match=r"^--device") as raised:
        assign_devices((text,), ONE_PROCESS, lambda: 2)
    assert message in str(raised.value)


def planned(folder: Path, count: int, **pool: Any) -> RunPlan:
    regions = [{"name": "here", "pools": [{"name": "cpu", "learners": 2, **pool}]}]
    job, request = named_job("small", small_job(regions=regions)), RunRequest(Path("job.yaml"), folder)
    pools = {learner: job.spec.pool_of(learner) for learner in job.spec.learner_ids}
    devices = assign_devices((), pools, lambda: count)
    return RunPlan(request, job, RunDirectory(folder), 1, 2, {}, World(), (), devices)


@pytest.mark.parametrize(
    ("count", "pool", "told", "shown"),
    [
        (0, {}, ["--processes", "1", "--device", "auto"], ""),
        (8, {}, ["--processes", "1", "--device", "cuda:1"], "cuda:0: 1 learner, cuda:1: 1 learner"),
        (
            3,
            {"processesPerNode": 2},
            ["--processes", "2", "--device", "cuda:2,cuda:0"],
            "cuda:0: 2 processes, cuda:1: 1 process, cuda:2: 1 process",
        ),
        (0, {"processesPerNode": 2}, ["--processes", "2", "--device", "auto"], ""),
    ],
)
def test_learners_are_told_their_devices_and_people_see_them(
    tmp_path: Path, count: int, pool: dict[str, Any], told: list[str], *, shown: str
) -> None:
    plan = planned(tmp_path, count, **pool)
    assert learner_arguments(plan, "here/cpu/1", {})[-4:] == told
    console = Console(record=True, width=100)
    Supervisor(plan, PlainRunView(console))
    assert console.export_text().split() == (["0s", *shown.split()] if shown else [])


def test_all_processes_share_out_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert planned(tmp_path, 0).learner_threads == 8
    assert planned(tmp_path, 0, processesPerNode=4).learner_threads == 2
    assert planned(tmp_path, 0, processesPerNode=4, nodesPerLearner=4, batchSize=16).learner_threads == 1


def test_a_continuation_trains_on_the_same_devices(tmp_path: Path) -> None:
    request = RunRequest(Path("job.yaml"), tmp_path, device=("east=cpu", "cuda:1"))
    assert continuation(request).endswith("--device east=cpu --device cuda:1")
