"""The engine of a small job whose two learners train, with steps of half a second."""

from diloco.core.account.time_spent import TimeSpent
from diloco.core.engine.actions import Admit
from diloco.core.engine.engine import Engine, EngineOptions
from diloco.core.engine.events import LearnerJoined, LearnerReady, StepReported
from tests.support.syncer_process import SmallJob


def engine_of(job: SmallJob, losses: tuple[float, float] = (2.0, 2.0), spent: TimeSpent | None = None) -> Engine:
    """They join at 0 s, and have made a step at 1 s."""
    engine = Engine(EngineOptions.from_job(job.job, job.layout), 4)
    for index, loss in enumerate(losses):
        name = f"here/cpu/{index}"
        (admitted,) = [a for a in engine.step(LearnerJoined(name, "x", (), 0, 0), 0.0) if isinstance(a, Admit)]
        engine.step(LearnerReady(name, admitted.incarnation), 0.0)
        engine.step(StepReported(name, admitted.incarnation, 1, 64, 0.5, loss, 4, spent or TimeSpent()), 1.0)
    return engine
