"""A loop of the user's own in learners of several processes trains as in one, resumes, or is refused."""

import json
import subprocess
import sys
from typing import Any, Final

import numpy as np
import pytest

from diloco.runtime.process.exits import EXIT_BAD_INPUT, EXIT_OK, EXIT_REFUSED, EXIT_UNEXPECTED
from tests.support.local_run import WAIT_SECONDS
from tests.support.session_ranks import CASES, STEPS

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

Ends = dict[str, list[list[dict[str, Any]]]]
LOOP: Final = "loop.entrypoint: tests.support.loops_of_several:train: "


@pytest.fixture(scope="module")
def ends() -> Ends:
    command = [sys.executable, "-m", "tests.support.session_ranks"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=True).stdout
    found: Ends = dict(map(json.loads, told.splitlines()))
    assert found.keys() == CASES.keys()
    return found


@pytest.mark.parametrize("how", ["DDP", "sharded", "in copies", "recomputed"])
def test_several_processes_train_as_one(ends: Ends, how: str) -> None:
    (one,), *_ = ends["alone"]
    (first, *others), *_ = ends[how]
    assert {each["code"] for each in (first, *others)} == {EXIT_OK}
    assert first["evaluations"] == pytest.approx(one["evaluations"], rel=1e-6)
    assert np.abs(np.subtract(first["values"], one["values"])).max() < 1e-6


@pytest.mark.parametrize("how", ["alone", "DDP", "sharded", "in copies"])
def test_a_learner_resumes_to_the_bit(ends: Ends, how: str) -> None:
    whole, resumed = ends[how][-1][0], ends[f"resumed {how}"][-1][0]
    assert resumed["resumes after"] == STEPS // 2
    assert resumed["values"] == whole["values"]


def test_a_learner_that_ends_before_it_has_gone_on_loses_nothing(ends: Ends) -> None:
    first, _, last = ends["stopped before it went on"]
    assert {one["code"] for one in (*first, *last)} == {EXIT_OK}
    assert last[0]["resumes after"] == STEPS // 2
    assert last[0]["values"] == ends["sharded"][-1][0]["values"]


def test_all_restore_what_the_loop_saved_though_optimizers_start_over(ends: Ends) -> None:
    assert {one["code"] for life in ends["starts over"] for one in life} == {EXIT_OK}


def test_other_processes_start_without_what_was_saved(ends: Ends) -> None:
    before, after = ends["other processes"]
    assert {one["code"] for one in (*before, *after)} == {EXIT_OK}
    assert after[0]["resumes after"] is None


def test_a_framework_that_ends_by_itself_leaves_no_process_waiting(ends: Ends) -> None:
    assert ends["stops by itself"][0][0]["code"] == EXIT_OK


def test_a_process_that_waits_for_others_to_enter_stops_when_asked_to(ends: Ends) -> None:
    (first, _), *_ = ends["stopped before others enter"]
    assert (first["code"], first["error"], first["losses"]) == (EXIT_OK, "", [])


@pytest.mark.parametrize(
    ("case", "rank", "code", "told"),
    [
        ("no session", 0, EXIT_BAD_INPUT, f"{LOOP}rank 1 of its processes called no diloco.session in 1 s; call"),
        ("not entered", 0, EXIT_BAD_INPUT, f"{LOOP}rank 1 of its processes did not enter its session for 1 s after"),
        ("no step", 0, EXIT_UNEXPECTED, f"{LOOP}rank 1 of its processes did not call step() for 1 s after the"),
        (
            "other steps",
            1,
            EXIT_BAD_INPUT,
            f"{LOOP}step() was called in rank 1 after 2 steps of the optimizer, in rank",
        ),
        (
            "not averaged",
            1,
            EXIT_BAD_INPUT,
            f"{LOOP}after a step rank 1 has other values than rank 0; average gradients",
        ),
        (
            "small mesh",
            0,
            EXIT_BAD_INPUT,
            f"{LOOP}embedding.weight is on a mesh of 1 of its 2 processes; use one of all",
        ),
        (
            "sharded in the first",
            1,
            EXIT_REFUSED,
            "rank 1 differs from rank 0 in how the model is sharded (whole, there",
        ),
        ("other models", 1, EXIT_REFUSED, "rank 1 differs from rank 0 in layout ("),
    ],
)
def test_processes_that_do_not_train_together_end_with_one_line(
    ends: Ends, case: str, rank: int, code: int, told: str
) -> None:
    end = ends[case][0][rank]
    assert end["code"] == code
    assert end["error"].startswith(told)
    assert "\n" not in end["error"]
