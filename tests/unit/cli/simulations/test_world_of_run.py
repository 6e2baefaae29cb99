"""The world of a run is what its record says, and can be read as a world file."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from diloco.cli.main import execute
from diloco.cli.simulations.of_run import RecordError, world_of_run
from diloco.core.engine.actions import Action, AskFragment
from diloco.core.engine.engine import Engine
from diloco.core.engine.events import Event, FragmentArrived
from diloco.core.engine.options import RULES
from diloco.core.fragments import Layout, TensorSpec, partition
from diloco.runtime.journal import Entry
from diloco.simulate.of_world import scenario_of
from diloco.simulate.training.counted import counted_work, layout_of_sizes
from diloco.simulate.world import Simulation
from diloco.spec import DiLoCoJob, parse_job
from diloco.spec.errors import SpecError
from diloco.tape.reader import TapeEntry, TapeHeader
from diloco.world.reading import world_from
from tests.support.one_learner_run import JOB, LEARNER, START, OneLearner
from tests.support.small_job import named_job, small_job

LINKS = [{"region": "east", "up_bytes_per_second": 1.2345e6}]


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
    journal = [
        Entry("run", "", START, {}),
        Entry("alive", "", START + 20, {"links": [{**LINKS[0], "up_bytes_per_second": 5.0}]}),
        Entry("end", "", START + 60, {"ending": "finished", "links": LINKS}),
    ]
    made = world_of_run(job, layout, journal, [(run.tape.header, run.tape.entries)])
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
    journal = [Entry("alive", "", START + 60, {"links": [{**LINKS[0], "up_bytes_per_second": rate}]})]
    made = world_of_run(parse_job(JOB), layout, journal, [(run.tape.header, run.tape.entries)])
    assert made["regions"]["east"].get("roundTripSeconds") == found


def test_small_fragments_tell_of_a_link_by_how_long_large_ones_take(layout: Layout) -> None:
    run = Uneven(parse_job(JOB.replace("tokens: 60,", "tokens: 6000,")), layout)
    run.train(60)
    # The syncer saw each as one part, and so at once.
    journal = [Entry("alive", "", START + 60, {"links": [{**LINKS[0], "up_bytes_per_second": 1e9}]})]
    alone = parse_job(JOB.replace("learners: 2", "learners: 1"))
    made = world_of_run(alone, layout, journal, [(run.tape.header, run.tape.entries)])["regions"]["east"]
    assert (made["link"], made["roundTripSeconds"]) == ("0.8Mbit/s", 0.1)
    assert made["jitterSeconds"] == pytest.approx(0.3 / 1.48, rel=0.01)


def test_without_a_measured_link_there_is_none(job: DiLoCoJob, layout: Layout) -> None:
    run = OneLearner(job, layout)
    run.train(3)
    made = world_of_run(job, layout, [Entry("run", "", START)], [(run.tape.header, run.tape.entries)])
    assert made == {"regions": {"east": {"pools": {"a": {"stepSeconds": 1.0, "betweenSteps": 0.1}}}}}


def test_what_the_job_no_longer_has_is_not_in_the_world(job: DiLoCoJob, layout: Layout) -> None:
    run = OneLearner(job, layout)
    run.train(3)
    east = job.spec.regions[0]
    other = east.model_copy(update={"name": "new"})
    resumed = job.model_copy(update={"spec": job.spec.model_copy(update={"regions": (east, other)})})
    links = [*LINKS, {"region": "gone", "up_bytes_per_second": 1e6}]
    entry = Entry("alive", "", START + 60, {"links": links})
    made = world_of_run(resumed, layout, [Entry("run", "", START), entry], [(run.tape.header, run.tape.entries)])
    assert [*made["regions"]] == ["east"]
    only_new = job.model_copy(update={"spec": job.spec.model_copy(update={"regions": (other,)})})
    with pytest.raises(RecordError, match="no learner has made a step"):
        world_of_run(only_new, layout, [Entry("run", "", START), entry], [(run.tape.header, run.tape.entries)])


def test_a_damaged_journal_is_named(job: DiLoCoJob, layout: Layout) -> None:
    run = OneLearner(job, layout)
    run.train(3)
    journal = [Entry("run", "", START), Entry("alive", "", START + 60, {"links": [{"up_bytes_per_second": 1}]})]
    with pytest.raises(
        RecordError, match=r"supervisor\.jsonl is damaged \(0\.region: Field required\); use another run"
    ):
        world_of_run(job, layout, journal, [(run.tape.header, run.tape.entries)])


def test_a_measured_value_that_no_world_has_is_refused(job: DiLoCoJob, layout: Layout) -> None:
    run = OneLearner(job, layout)
    run.train(3)
    links = [{"region": "east", "up_bytes_per_second": -1.0}]
    journal = [Entry("run", "", START), Entry("alive", "", START + 60, {"links": links})]
    with pytest.raises(SpecError, match=r"regions\.east\.link"):
        world_of_run(job, layout, journal, [(run.tape.header, run.tape.entries)])


class Taped:
    """Keeps what happens in a simulation as the tape of a run."""

    def __init__(self, job: DiLoCoJob, layout: Layout) -> None:
        manifest = job.model_dump(mode="json", by_alias=True)
        self.header = TapeHeader(manifest, layout.digest, 1, "", False, {}, START, RULES, layout.table)  # noqa: FBT003
        self.entries: list[TapeEntry] = []

    def begins(self, engine: Engine) -> None:
        """Nothing to keep."""

    def passed(self, event: Event, actions: Sequence[Action], now: float) -> None:
        self.entries.append(TapeEntry(Path("000001.jsonl"), len(self.entries), now, event, tuple(actions)))

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
    taped = Taped(job, layout)
    scenario = scenario_of(job.spec, world, layout.numel, seed=0)
    Simulation(job, scenario, layout, counted_work(job.spec, layout), taped).advance(20_000.0)
    made = world_of_run(job, layout, [Entry("run", "", START)], [(taped.header, taped.entries)])
    found = made["regions"]["here"]["pools"]["cpu"]
    assert found["stepSeconds"] == pytest.approx(10, rel=0.1)
    assert found["betweenSteps"] == pytest.approx(0.3, rel=0.05)
    assert found["startSeconds"] == pytest.approx(20, rel=0.05)
    assert found["preemptionsPerHour"] == pytest.approx(12, rel=0.3)  # by the whole time it is 6
    assert found["recovery"]["meanSeconds"] == pytest.approx(300, rel=0.3)


def test_a_run_without_a_step_is_refused(job: DiLoCoJob, layout: Layout) -> None:
    with pytest.raises(RecordError, match="no learner has made a step in this run; use one that has trained"):
        world_of_run(job, layout, [], [])


def test_a_directory_without_a_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["world", str(tmp_path)]) == 2
    assert "job.yaml: cannot be read: no such file or directory" in capsys.readouterr().err
