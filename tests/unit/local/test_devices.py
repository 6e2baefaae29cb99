from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from diloco.local.devices import DevicesError, assign_devices, devices_text
from diloco.local.directory import RunDirectory
from diloco.local.launch import continuation
from diloco.local.run_plan import RunPlan, RunRequest, learner_arguments
from diloco.local.supervisor import Supervisor
from diloco.local.view.screen import PlainRunView
from diloco.plan.world import World
from tests.support.small_job import named_job, small_job

EAST, WEST = ("east/a/0", "east/a/1"), ("west/b/0", "west/b/1", "west/b/2")
ALL = (*EAST, *WEST)


def assigned(*texts: str, count: int = 2) -> list[str]:
    devices = assign_devices(texts, ALL, lambda: count)
    return [devices.get(learner, "-") for learner in ALL]


def test_every_accelerator_is_dealt_out_in_turn() -> None:
    assert assigned(count=2) == ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"]
    assert assigned(count=8) == [f"cuda:{index}" for index in range(5)]


def test_without_any_there_is_nothing_to_choose() -> None:
    assert assigned(count=0) == ["-"] * 5
    assert devices_text({}) == ""


def test_what_is_asked_for_is_dealt_to_those_who_are_meant() -> None:
    assert assigned("cpu") == ["cpu"] * 5
    assert assigned("east=cpu", "west/b=cuda:1,cuda:0") == ["cpu", "cpu", "cuda:1", "cuda:0", "cuda:1"]
    assert assigned("cpu", "west/b/2=cuda") == ["cpu", "cpu", "cpu", "cpu", "cuda:0"]
    assert assigned("west=cpu") == ["cuda:0", "cuda:1", "cpu", "cpu", "cpu"]


def test_a_machine_is_not_asked_where_it_does_not_matter() -> None:
    def never() -> int:
        raise AssertionError

    assert set(assign_devices(("cpu",), ALL, never).values()) == {"cpu"}


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
        assign_devices((text,), ALL, lambda: 2)
    assert message in str(raised.value)


def test_learners_are_told_their_device_and_people_see_it(tmp_path: Path) -> None:
    job, request = named_job("small", small_job()), RunRequest(Path("job.yaml"), tmp_path)
    devices = assign_devices((), job.spec.learner_ids, lambda: 8)
    plan = RunPlan(request, job, RunDirectory(tmp_path), 1, 2, {}, World(), (), devices)
    assert learner_arguments(plan, "here/cpu/1", {})[-2:] == ["--device", "cuda:1"]
    assert "--device" not in learner_arguments(replace(plan, devices={}), "here/cpu/1", {})
    console = Console(record=True, width=100)
    Supervisor(plan, PlainRunView(console))
    assert "cuda:0: 1 learner, cuda:1: 1 learner" in console.export_text()


def test_a_continuation_trains_on_the_same_devices(tmp_path: Path) -> None:
    request = RunRequest(Path("job.yaml"), tmp_path, device=("east=cpu", "cuda:1"))
    assert continuation(request).endswith("--device east=cpu --device cuda:1")
