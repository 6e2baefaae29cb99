import shutil
from pathlib import Path

import pytest

from diloco.local.child import Child
from diloco.local.fleet import Fleet, Managed, ProcessState
from diloco.runtime.journal import Journal
from tests.support.hand_clock import HandClock
from tests.support.machine_limits import no_file_left

pytestmark = pytest.mark.processes


def fleet(folder: Path, told: list[str], clock: HandClock) -> Fleet:
    def managed(name: str) -> Managed:
        return Managed(name, Child(["--version"], folder / "logs" / f"{name}.log", {}))

    journal = Journal(folder / "supervisor.jsonl")
    return Fleet(managed("syncer"), {"a": managed("a")}, journal, told.append, _clock=clock)


def ended(fleet: Fleet) -> None:
    for process in fleet.everyone:
        process.child.wait()
    fleet.reap()


def test_a_log_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    clock = HandClock()
    few = fleet(tmp_path, [], clock)
    few.start_due()
    ended(few)
    shutil.rmtree(tmp_path / "logs")
    few.learners["a"].state = ProcessState.WAITING
    few.start_due()
    ended(few)
    assert "diloco" in (tmp_path / "logs" / "a.log").read_text()


def test_a_log_that_cannot_be_had_costs_its_lines_only(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    few = fleet(tmp_path, [], HandClock())
    few.start_due()
    ended(few)
    assert few.learners["a"].child.poll() is not None


def test_a_process_that_cannot_be_restarted_is_retried_and_reported_once(tmp_path: Path) -> None:
    clock, told = HandClock(), list[str]()
    few = fleet(tmp_path, told, clock)
    few.start_due()
    ended(few)
    learner = few.learners["a"]
    learner.state = ProcessState.WAITING
    with no_file_left():
        for _ in range(7):
            few.start_due()
            clock.now += 30.0
    assert (learner.state, learner.restarts, learner.early_exits) == (ProcessState.WAITING, 0, 1)
    assert told == ["a cannot be started (Too many open files); retrying"]
    few.start_due()
    assert (learner.state, learner.restarts) == (ProcessState.RUNNING, 1)
    ended(few)


def test_a_process_that_cannot_be_started_at_all_is_an_error(tmp_path: Path) -> None:
    few = fleet(tmp_path, [], HandClock())
    with no_file_left(), pytest.raises(OSError, match="Too many open files"):
        few.start_due()
