"""A real syncer process gives a learner up, and lets it back in by the files beside its manifest."""

from pathlib import Path

import pytest

from diloco.runtime.process.exits import EXIT_OK
from diloco.spec.names.learner_orders import FAILED_FILE, READMITTED_FILE, LearnerOrder, orders_text
from diloco.spec.status.engine import LearnerStatus
from diloco.wire.messages import Refused, Welcome
from tests.support.scripted_learner import ScriptedLearner
from tests.support.syncer_process import SmallJob, SyncerProcess, replayed, serving

pytestmark = pytest.mark.processes

VICTIM = "here/cpu/1"


def made(folder: Path, *, allowed_restarts: int) -> SmallJob:
    job = SmallJob(folder, tokens=10_000_000)
    # What the small job cannot change.
    policy = f"  failurePolicy: {{maxRestartsPerLearner: {allowed_restarts}}}\n"
    job.path.write_text(f"{job.path.read_text().rstrip()}\n{policy}")
    return job


def life(job: SmallJob, syncer: SyncerProcess, instance: str) -> ScriptedLearner:
    return ScriptedLearner(syncer.address, job, VICTIM, instance)


def victim(syncer: SyncerProcess) -> LearnerStatus:
    return next(one for one in syncer.status().learners if one.id == VICTIM)


def order(job: SmallJob, epoch: int, incarnation: int, file: str = READMITTED_FILE) -> None:
    text = orders_text([LearnerOrder(VICTIM, epoch, incarnation)])
    (job.path.parent / file).write_text(text)


def test_a_given_up_learner_is_let_back_in_and_stays_in(tmp_path: Path) -> None:
    job = made(tmp_path, allowed_restarts=0)
    with serving(job, tmp_path / "s") as syncer:
        with ScriptedLearner(syncer.address, job, "here/cpu/0") as other:
            other.begin().train(lambda this: len(this.merged) >= 1)
            with life(job, syncer, "first") as first:
                first.begin()
            with life(job, syncer, "second") as second:
                answer = second.join()
            assert isinstance(answer, Refused)
            status = victim(syncer)
            assert status.state == "GivenUp"
            epoch = syncer.status().epoch
            order(job, epoch, status.incarnation)
            syncer.wait_for("LearnerReadmitted")
            assert (victim(syncer).state, victim(syncer).restarts) == ("Absent", 0)
            with life(job, syncer, "third") as third:
                assert isinstance(third.join(), Welcome)
        assert syncer.terminate() == EXIT_OK
    replayed(tmp_path / "s")


def test_a_learner_that_cannot_join_is_given_up_and_stays_out(tmp_path: Path) -> None:
    job = made(tmp_path, allowed_restarts=2)
    with serving(job, tmp_path / "s") as syncer, ScriptedLearner(syncer.address, job, "here/cpu/0") as other:
        other.begin().train(lambda this: len(this.merged) >= 1)
        assert (victim(syncer).state, victim(syncer).incarnation) == ("Absent", 0)
        order(job, syncer.status().epoch, 0, FAILED_FILE)
        syncer.wait_for("LearnerGivenUp")
        assert (victim(syncer).state, victim(syncer).restarts) == ("GivenUp", 3)
        syncer.wait_for(f"s: {VICTIM} is given up")
        syncer.kill()
    with serving(job, tmp_path / "s") as again:
        assert victim(again).state == "GivenUp"
        assert again.terminate() == EXIT_OK
    replayed(tmp_path / "s")
