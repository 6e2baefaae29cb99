"""The world of a run is what its record says, and can be read as a world file."""

from pathlib import Path

import pytest

from diloco.cli.main import execute
from diloco.cli.simulations.of_run import RecordError, world_of_run
from diloco.core.engine.actions import Action, AskFragment
from diloco.core.fragments import Layout, TensorSpec, partition
from diloco.local.journal import Entry
from diloco.spec import DiLoCoJob, parse_job
from diloco.world.reading import world_from
from tests.support.one_learner_run import JOB, START, OneLearner

LINKS = [{"region": "east", "up_bytes_per_second": 1.2345e6, "round_trip_seconds": 1.08}]


class Queue(OneLearner):
    """Each answer is 100 bytes and takes 0.18 s, and all but every fifth waits in a queue for longer."""

    answers = 0

    def answer(self, action: Action) -> None:
        if isinstance(action, AskFragment):
            self.answers += 1
            self.now += 0.18 if self.answers % 5 == 0 else 0.93
        super().answer(action)


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
    pool = {"stepSeconds": 0.9, "stepDeviation": 0.0}
    assert made == {
        "regions": {"east": {"link": "9.88Mbit/s", "pools": {"a": pool}}},
    }
    world = world_from(made, "made")
    assert [*world.problems(job.spec)] == []
    assert world.step_seconds(job.spec, "east/a", 1) == 0.9
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


def test_without_a_measured_link_there_is_none(job: DiLoCoJob, layout: Layout) -> None:
    run = OneLearner(job, layout)
    run.train(3)
    made = world_of_run(job, layout, [Entry("run", "", START)], [(run.tape.header, run.tape.entries)])
    assert made == {"regions": {"east": {"pools": {"a": {"stepSeconds": 0.9}}}}}


def test_a_run_without_a_step_is_refused(job: DiLoCoJob, layout: Layout) -> None:
    with pytest.raises(RecordError, match="no learner has made a step in this run; use one that has trained"):
        world_of_run(job, layout, [], [])


def test_a_directory_without_a_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["world", str(tmp_path)]) == 2
    assert "job.yaml: cannot be read: no such file or directory" in capsys.readouterr().err
