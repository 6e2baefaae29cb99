"""The world of a run is what its record says, and can be read as a world file."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from diloco.cli.main import execute
from diloco.cli.simulations.of_run import RecordError, read_world, world_of_run
from diloco.core.engine.actions import Action, AskFragment
from diloco.core.engine.engine import Engine
from diloco.core.engine.events import Event, FragmentArrived
from diloco.core.fragments import Layout, TensorSpec, partition
from diloco.local.directory import RunDirectory
from diloco.local.report.timeline import RunClock, recoveries
from diloco.local.status_poll import StatusError
from diloco.simulate.of_world import scenario_of
from diloco.simulate.training.counted import counted_work, layout_of_sizes
from diloco.simulate.world import Simulation
from diloco.spec import DiLoCoJob, parse_job
from diloco.spec.errors import SpecError
from diloco.spec.status.syncer import MeasuredLinkStatus, StoredStatus
from diloco.syncer.reporting.decisions import Decisions
from diloco.syncer.reporting.status_builder import Reporter
from diloco.tape.reader import TapeEntry
from diloco.world.reading import world_from
from tests.support.one_learner_run import JOB, LEARNER, OneLearner, status_of
from tests.support.small_job import named_job, small_job
from tests.support.status_of_a_job import STATUS, changed

if TYPE_CHECKING:
    from diloco.runtime.journal import Entry


def linked(region: str, rate: float) -> MeasuredLinkStatus:
    return MeasuredLinkStatus(region=region, up_bytes_per_second=rate)


EAST = linked("east", 1.2345e6)


def of(run: OneLearner, job: DiLoCoJob, layout: Layout, *links: MeasuredLinkStatus) -> dict[str, Any]:
    status = changed(status_of(job, layout, run), measured_links=links or (EAST,))
    return world_of_run(job, status, (), [run.tape.entries])


class Queue(OneLearner):
    """Each answer is 100 bytes and takes 0.18 s, and all but every fifth waits in a queue for longer."""

    answers = 0

    def answer(self, action: Action) -> None:
        if isinstance(action, AskFragment):
            self.answers += 1
            self.now += 0.18 if self.answers % 5 == 0 else 0.93
        super().answer(action)


class Uneven(OneLearner):
    """Answers of 100 bytes and of 60,100 in turn: 0.1 s for each, and 0.6 s for 60,000 bytes.

    Every fifth of a size comes at once; all others take 0.3 s longer.
    """

    answers = 0

    def answer(self, action: Action) -> None:
        if not isinstance(action, AskFragment):
            super().answer(action)
            return
        self.answers += 1
        size = (100, 60_100)[self.answers % 2]
        self.now += 0.1 + size / 1e5 + (0.0 if self.answers % 10 < 2 else 0.3)
        asked = (action.fragment, action.version, action.attempt)
        self.tell(FragmentArrived(LEARNER, self.incarnation, *asked, action.version - 1, 1, 10, size, "d"))


@pytest.fixture
def layout() -> Layout:
    return partition([TensorSpec("a", (6,), False), TensorSpec("b", (4,), False)], 2)  # noqa: FBT003


@pytest.fixture
def job() -> DiLoCoJob:
    return parse_job(JOB)


def test_steps_and_links_are_those_of_the_record(job: DiLoCoJob, layout: Layout) -> None:
    run = OneLearner(job, layout)
    run.train(30)
    made = of(run, job, layout)
    pool = {"stepSeconds": 1.0, "stepDeviation": 0.0, "betweenSteps": 0.1}
    assert made == {
        "regions": {"east": {"link": "9.88Mbit/s", "pools": {"a": pool}}},
    }
    world = world_from(made, "made")
    assert [*world.problems(job.spec)] == []
    assert world.step_seconds(job.spec, "east/a", 1) == 1.0
    assert world.region("east").bytes_per_second == pytest.approx(1.235e6)


@pytest.mark.parametrize(("steps", "rate", "found"), [(60, 1000.0, 0.08), (60, 100.0, None), (15, 1000.0, None)])
def test_the_round_trip_is_that_of_the_soonest_answer(
    layout: Layout, steps: int, rate: float, found: float | None
) -> None:
    run = Queue(parse_job(JOB.replace("tokens: 60,", "tokens: 6000,")), layout)
    run.train(steps)
    made = of(run, parse_job(JOB), layout, linked("east", rate))
    assert made["regions"]["east"].get("roundTripSeconds") == found


def test_small_fragments_tell_of_a_link_by_how_long_large_ones_take(layout: Layout) -> None:
    run = Uneven(parse_job(JOB.replace("tokens: 60,", "tokens: 6000,")), layout)
    run.train(60)
    # The syncer saw each as one part, and so at once.
    alone = parse_job(JOB.replace("learners: 2", "learners: 1"))
    made = of(run, alone, layout, linked("east", 1e9))["regions"]["east"]
    assert (made["link"], made["roundTripSeconds"]) == ("0.8Mbit/s", 0.1)
    assert made["jitterSeconds"] == pytest.approx(0.3 / 1.48, rel=0.01)


def test_without_a_measured_link_there_is_none(job: DiLoCoJob, layout: Layout) -> None:
    run = OneLearner(job, layout)
    run.train(3)
    made = world_of_run(job, status_of(job, layout, run), (), [run.tape.entries])
    assert made == {"regions": {"east": {"pools": {"a": {"stepSeconds": 1.0, "betweenSteps": 0.1}}}}}


def test_what_the_job_no_longer_has_is_not_in_the_world(job: DiLoCoJob, layout: Layout) -> None:
    run = OneLearner(job, layout)
    run.train(3)
    east = job.spec.regions[0]
    other = east.model_copy(update={"name": "new"})
    resumed = job.model_copy(update={"spec": job.spec.model_copy(update={"regions": (east, other)})})
    links = (EAST, linked("gone", 1e6))
    made = of(run, resumed, layout, *links)
    assert [*made["regions"]] == ["east"]
    only_new = job.model_copy(update={"spec": job.spec.model_copy(update={"regions": (other,)})})
    with pytest.raises(RecordError, match="no learner has made a step"):
        of(run, only_new, layout, *links)


def test_a_run_that_left_no_status_is_named(tmp_path: Path) -> None:
    with pytest.raises(StatusError, match=r"syncer/status\.json: No such file"):
        read_world(parse_job(JOB), RunDirectory(tmp_path))
    (tmp_path / "syncer").mkdir()
    (tmp_path / "syncer" / "status.json").write_text("{}")
    with pytest.raises(StatusError, match=r"status\.json: is not a status of a syncer of this version"):
        read_world(parse_job(JOB), RunDirectory(tmp_path))


def test_a_measured_value_that_no_world_has_is_refused(job: DiLoCoJob, layout: Layout) -> None:
    run = OneLearner(job, layout)
    run.train(3)
    with pytest.raises(SpecError, match=r"regions\.east\.link"):
        of(run, job, layout, linked("east", -1.0))


class Taped:
    """Keeps what happens in a simulation as a run does."""

    def __init__(self) -> None:
        self.entries: list[TapeEntry] = []
        self.journal: list[Entry] = []
        self._now = 0.0
        self._decisions = Decisions(lambda: self._now)
        self._engine: Engine

    def begins(self, engine: Engine) -> None:
        self._engine = engine

    def passed(self, event: Event, actions: Sequence[Action], now: float) -> None:
        self.entries.append(TapeEntry(Path("000001.jsonl"), len(self.entries), now, event, tuple(actions)))
        if now - self._now > 100:
            self._now = now
            self._decisions.look(self._engine.view(now))
            self.journal += self._decisions.take()

    def process(self, learner: str, now: float, change: str) -> None:
        """Nothing to keep."""


def test_the_world_of_a_simulated_run_is_that_which_it_was_simulated_in() -> None:
    training = {"tokens": 10**9, "sequenceLength": 16, "batchSize": 4, "evaluation": {"sequences": 2}}
    job = named_job("back", small_job(training=training))
    pool = {
        "stepSeconds": 10,
        "betweenSteps": 0.3,
        "startSeconds": 20,
        "preemptionsPerHour": 12,
        "preemptionNoticeSeconds": 0,
        "recovery": {"meanSeconds": 300},
    }
    world = world_from({"regions": {"here": {"pools": {"cpu": pool}}}}, "made")
    layout = layout_of_sizes([1000] * 6)
    taped = Taped()
    scenario = scenario_of(job.spec, world, layout.numel, seed=0)
    simulation = Simulation(job, scenario, layout, counted_work(job.spec, layout), taped)
    simulation.advance(20_000.0)
    stored = StoredStatus(parameters=layout.numel)
    status = Reporter("back", 1).status(simulation.course().view, stored)
    found_again = [one.recovery for one in recoveries(taped.journal, RunClock(taped.journal))]
    made = world_of_run(job, status, found_again, [taped.entries])
    found = made["regions"]["here"]["pools"]["cpu"]
    assert found["stepSeconds"] == pytest.approx(10, rel=0.1)
    assert found["betweenSteps"] == pytest.approx(0.3, rel=0.05)
    assert found["startSeconds"] == pytest.approx(20, rel=0.05)
    assert found["preemptionsPerHour"] == pytest.approx(12, rel=0.3)  # by the whole time it is 6
    assert found["recovery"]["meanSeconds"] == pytest.approx(300, rel=0.3)
    # The journal of a long run has lost the first ones.
    late = world_of_run(job, status, found_again[-6:], [taped.entries])["regions"]["here"]["pools"]["cpu"]
    assert late["preemptionsPerHour"] == pytest.approx(found["preemptionsPerHour"], rel=0.05)


def test_a_run_without_a_step_is_refused(job: DiLoCoJob) -> None:
    with pytest.raises(RecordError, match="no learner has made a step in this run; use one that has trained"):
        world_of_run(job, STATUS, (), [])


def test_a_directory_without_a_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["world", str(tmp_path)]) == 2
    assert "job.yaml: cannot be read: no such file or directory" in capsys.readouterr().err
