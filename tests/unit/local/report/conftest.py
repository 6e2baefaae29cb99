import pytest

from diloco.core.fragments import Layout, TensorSpec, partition
from diloco.local.report.history import RunHistory
from diloco.runtime.journal import Entry
from diloco.spec import parse_job
from tests.support.one_learner_run import JOB, LEARNER, START, OneLearner, history_of


@pytest.fixture
def layout() -> Layout:
    return partition([TensorSpec("a", (6,), False), TensorSpec("b", (4,), False)], 2)  # noqa: FBT003


@pytest.fixture
def journal() -> list[Entry]:
    return [
        Entry("run", "", START, {"resumed": False}),
        Entry("start", "syncer", START, {"restarts": 0}),
        Entry("start", LEARNER, START + 1, {"restarts": 0}),
        Entry("kill", "east/a/1", START + 11, {"seconds": 0.0}),
        Entry("exit", "east/a/1", START + 11, {"code": -9, "verdict": "restart", "by_chaos": True}),
        Entry("cut", "east", START + 12, {"seconds": 2.0}),
        Entry("heal", "east", START + 14),
        Entry("end", "", START + 30, {"ending": "finished"}),
    ]


@pytest.fixture
def history(layout: Layout, journal: list[Entry]) -> RunHistory:
    job = parse_job(JOB)
    world = OneLearner(job, layout)
    world.train(12)
    return history_of(job, layout, world, journal)
