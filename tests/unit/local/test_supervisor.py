"""How long the supervisor of a run waits for its processes to end: in the time of a clock that the test moves."""

import io
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from diloco.local import supervisor
from diloco.local.directory import RunDirectory
from diloco.local.fleet import Fleet, ProcessState
from diloco.local.run_plan import RunPlan, RunRequest
from diloco.local.status_poll import Seen, StatusWatch
from diloco.local.supervisor import Ending, Supervisor
from diloco.local.view.screen import PlainRunView
from diloco.runtime.process.exits import STOP_SIGNALS
from diloco.spec.status.engine import Phase
from diloco.spec.status.syncer import SyncerStatus
from diloco.world.model import World
from tests.support.hand_clock import HandClock
from tests.support.seen_jobs import syncer_account
from tests.support.small_job import named_job, small_job
from tests.support.status_of_a_job import STATUS


class Process:
    """A process that ends so long after SIGTERM, or never."""

    def __init__(self, clock: HandClock, takes: float, state: ProcessState) -> None:
        self.clock, self.takes, self.state = clock, takes, state
        self.started_at, self.proven, self.joined, self.restarts = 0.0, False, False, 0
        self.child, self.ends_at, self.killed_at = self, float("inf"), float("inf")

    @property
    def running(self) -> bool:
        return self.clock.now < min(self.ends_at, self.killed_at)

    def signal(self, number: int) -> None:
        if number == signal.SIGTERM:
            self.ends_at = self.clock.now + self.takes
        else:
            self.killed_at = self.clock.now


class Scene:
    """A run of two learners and their syncer."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = HandClock()
        monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=self.clock))
        self.directory = RunDirectory(folder)
        request = RunRequest(Path("job.yaml"), folder)
        plan = RunPlan(request, named_job("small", small_job()), self.directory, 1, 2, {}, World(), (), {})
        supervised: Any = Supervisor(plan, PlainRunView(Console(file=io.StringIO())))
        self.supervisor = supervised
        self.supervisor._await_signal = self._tick
        self.watch = cast("StatusWatch", SimpleNamespace(seen=None))

    def _tick(self) -> None:
        self.clock.now += 0.1

    def fleet(self, takes: float = 0.0, state: ProcessState = ProcessState.RUNNING) -> Any:
        learners = {name: Process(self.clock, takes, state) for name in ("a", "b")}
        syncer = Process(self.clock, takes, ProcessState.RUNNING)
        return SimpleNamespace(
            syncer=syncer,
            learners=learners,
            failure=None,
            job_over=False,
            running=lambda processes: [one for one in processes if one.running],
            reap=lambda: None,
            stop_restarting=lambda: None,
        )


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def sparse(path: Path, size_bytes: int) -> None:
    """A file of that size, which takes no room."""
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(size_bytes)


@pytest.mark.parametrize(
    ("gigabytes", "learners", "syncer"), [(0, 60, 60), (1, 60, 60), (5, 200, 100)], ids=["new", "small", "large"]
)
def test_they_may_take_as_long_to_end_as_their_checkpoints_need(
    scene: Scene, gigabytes: int, learners: int, syncer: int
) -> None:
    if gigabytes:
        checkpoints = scene.directory.syncer / "checkpoints"
        sparse(checkpoints / "000009" / "old.safetensors", 100 * 10**9)
        sparse(checkpoints / "000010" / "new.safetensors", gigabytes * 10**9)
    began, fleet = scene.clock.now, scene.fleet(takes=float("inf"))
    scene.supervisor._stop(cast("Fleet", fleet), None, scene.watch, Ending.FAILED)
    killed = [one.killed_at - began for one in (*fleet.learners.values(), fleet.syncer)]
    assert killed == pytest.approx([learners, learners, learners + syncer], abs=0.5)


def minutes(scene: Scene, fleet: Any, phase: Phase) -> Any:
    """The outcome after five minutes without a learner, while the syncer reports this phase."""
    for _ in range(10):
        scene.clock.now += 30.0
        seen = Seen(STATUS.model_copy(update={"phase": phase, "learners": ()}), scene.clock.now)
        scene.supervisor._note_progress(fleet, SimpleNamespace(seen=seen))
        if (outcome := scene.supervisor._outcome(fleet)) is not None:
            return outcome
    return None


def test_a_syncer_whose_job_is_over_may_write_the_model_for_long(scene: Scene) -> None:
    assert minutes(scene, scene.fleet(state=ProcessState.DONE), Phase.COMPLETE) is None


def test_a_syncer_that_sees_no_end_without_learners_fails_the_run(scene: Scene) -> None:
    outcome = minutes(scene, scene.fleet(state=ProcessState.DONE), Phase.TRAINING)
    assert (outcome.ending, "every learner has ended" in outcome.reason) == (Ending.FAILED, True)


@pytest.mark.parametrize("number", [*STOP_SIGNALS, signal.SIGHUP])
def test_a_signal_interrupts_the_run_and_its_processes_end_in_order(scene: Scene, number: int) -> None:
    with scene.supervisor._signals():
        signal.raise_signal(number)
    assert scene.supervisor._interrupts == 1


def test_a_learner_has_joined_once_it_has_a_session_of_its_own(scene: Scene) -> None:
    fleet = scene.fleet()
    learner, (known,) = fleet.learners["a"], syncer_account()["learners"]

    def joined(state: str, incarnation: int) -> bool:
        scene.clock.now += 1.0
        one = known | {"id": "a", "state": state, "incarnation": incarnation}
        seen = Seen(SyncerStatus.model_validate(syncer_account(learners=[one])), scene.clock.now)
        scene.supervisor._note_progress(fleet, SimpleNamespace(seen=seen))
        return bool(learner.joined)

    assert [joined("Absent", 0), joined("Loading", 7)] == [False, True]
    learner.joined, learner.restarts, learner.started_at = False, 1, scene.clock.now + 0.5
    assert [joined("Training", 7), joined("Absent", 7), joined("Training", 8)] == [False, False, True]
    resumed = scene.fleet()
    fleet.learners, learner = resumed.learners, resumed.learners["a"]
    scene.supervisor._incarnations_at_start.clear()
    assert joined("Training", 9), "the syncer began with this process, so no session is of an earlier one"


def test_the_end_of_a_child_ends_its_wait_and_interrupts_nothing(scene: Scene) -> None:
    with scene.supervisor._signals():
        subprocess.run(["true"], check=True)
        assert scene.supervisor._signalled.get(timeout=60.0) == signal.SIGCHLD
    assert not scene.supervisor._interrupts
