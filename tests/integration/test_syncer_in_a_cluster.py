"""A real syncer process as in a cluster: pools are scaled, SIGTERM stops it, and learners join late or lie."""

import contextlib
import resource
from pathlib import Path

import pytest

from diloco.model import load_model
from diloco.runtime.exits import EXIT_OK, EXIT_UNEXPECTED
from diloco.syncer.replay import replay
from diloco.wire.errors import RefusedError, WireError
from diloco.wire.messages import Finished, Refused, StepReport, Welcome
from tests.support.scripted_learner import TOKENS_PER_STEP, WAIT_SECONDS, ScriptedLearner
from tests.support.syncer_process import Serve, SmallJob, SyncerProcess

pytestmark = pytest.mark.processes


def learner(job: SmallJob, syncer: SyncerProcess, index: int = 0) -> ScriptedLearner:
    return ScriptedLearner(syncer.address, job, f"here/cpu/{index}")


def ids(syncer: SyncerProcess) -> list[str]:
    return [one.id for one in syncer.status().learners]


def test_a_pool_is_scaled_while_the_job_runs(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, tokens=10_000_000)
    with SyncerProcess(job, tmp_path / "s") as syncer:
        syncer.serving()
        with learner(job, syncer) as one, learner(job, syncer, 2) as early:
            one.begin().train(lambda this: len(this.merged) >= 2)
            # Its process started before the file changed.
            early.begin().train(lambda this: len(this.merged) >= 1)
            SmallJob(tmp_path, tokens=10_000_000, learners=4)
            syncer.wait_for("LearnersPlanned")
            assert ids(syncer) == [f"here/cpu/{index}" for index in range(4)]
            SmallJob(tmp_path, tokens=10_000_000, learners=1)
            syncer.wait_for("LearnersPlanned", times=2)
            assert ids(syncer) == ["here/cpu/0", "here/cpu/2"]
            steps = syncer.status().inner_steps
            early.leave()
            assert early.over.wait(WAIT_SECONDS)
            one.train(lambda _: ids(syncer) == ["here/cpu/0"])
            assert syncer.status().inner_steps >= steps
            SmallJob(tmp_path, tokens=20_000_000, learners=2)
            syncer.wait_for(
                "has changed in spec.training.tokens; only learners, minimumLearners and excludedIndices of "
                "regions[].pools[]"
            )
            assert syncer.status().budget_tokens == 10_000_000
            assert syncer.terminate() == EXIT_OK
    report = replay(tmp_path / "s")
    assert report.ok, report.problems


@pytest.mark.parametrize("learners", [1, 4])
def test_it_restarts_with_another_number_of_learners(tmp_path: Path, learners: int) -> None:
    job = SmallJob(tmp_path, tokens=10_000_000)
    with SyncerProcess(job, tmp_path / "s") as syncer:
        syncer.serving()
        with learner(job, syncer) as one, learner(job, syncer, 1) as two:
            one.begin().train(lambda this: len(this.merged) >= 2)
            two.begin().train(lambda this: len(this.merged) >= 2)
            before = syncer.status()
            assert syncer.terminate() == EXIT_OK, syncer.log
    job = SmallJob(tmp_path, tokens=10_000_000, learners=learners)
    with SyncerProcess(job, tmp_path / "s") as syncer:
        after = syncer.serving().status()
        assert after.syncer_step >= before.syncer_step
        assert after.inner_steps >= before.inner_steps
        assert len(after.learners) == learners
        with learner(job, syncer, 1) as two:
            assert two.join() is not None
            assert isinstance(two.welcome, Welcome)
            assert two.steps >= before.learners[1].steps
    report = replay(tmp_path / "s")
    assert report.ok, report.problems


def test_the_status_says_exported_once_the_model_exists_and_after_restart(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, tokens=5_000)
    path = tmp_path / "s" / "model.safetensors"
    with SyncerProcess(job, tmp_path / "s") as syncer:
        syncer.serving()
        # Left by an end of the job that a crash has undone.
        path.write_bytes(b"of another end")
        with learner(job, syncer) as one:
            one.begin().train(lambda _: syncer.status().model_exported)
            assert load_model(path).info.tokens >= 5_000
            while one.finished is None:
                message = one.next()
                assert message is not None
                one.obey(message)
            assert isinstance(one.finished, Finished)
        assert syncer.terminate() == EXIT_OK
    exported = path.read_bytes()
    with SyncerProcess(job, tmp_path / "s") as syncer:
        syncer.serving().wait_for("the model is at")
        status = syncer.status()
        assert (status.phase, status.model_exported) == ("Complete", True)
        assert path.read_bytes() == exported
        with learner(job, syncer, 3) as late:
            answer = late.join()
            assert isinstance(answer, Refused)
            assert answer.refusal == "Finished"


def test_before_the_end_no_model_is_said_to_be_there(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "model.safetensors").write_bytes(b"of another end")
    with SyncerProcess(job, tmp_path / "s") as syncer:
        assert not syncer.serving().status().model_exported


def test_if_its_last_checkpoint_fails_the_syncer_exits_with_an_error(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, tokens=10_000_000, checkpoint_every=3600)
    with SyncerProcess(job, tmp_path / "s") as syncer:
        syncer.serving()
        with learner(job, syncer) as one:
            one.begin().train(lambda this: len(this.merged) >= 2)
            # Every file over 100 kB fails from here on, as on a disk that is full.
            resource.prlimit(syncer.pid, resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
            assert syncer.terminate() == EXIT_UNEXPECTED
    (line,) = [line for line in syncer.log.splitlines() if "error: " in line]
    assert "no last checkpoint: " in line
    assert line.endswith("a restart continues from checkpoint 000001")


def ended_with(one: ScriptedLearner) -> str:
    """How the syncer ended the session."""
    assert one.over.wait(WAIT_SECONDS)
    assert one.broken is not None
    return str(one.broken)


def test_a_learner_that_claims_what_it_cannot_have_done_is_put_out(serve: Serve) -> None:
    job, syncer = serve(tokens=10_000_000)
    with learner(job, syncer) as one:
        wanted = one.begin().wanted()
        with pytest.raises(RefusedError, match="steps; a step of its pool has 64"):
            one.push(wanted, tokens=1_000_000)
        assert "a step of its pool has 64" in ended_with(one)
        one.begin()
        for ahead, tokens, told in ((-1, 0, "neither may go back"), (1, 10**9, "tokens in 1 steps; a step")):
            one.step()
            one._session.send(StepReport(one.incarnation, one.steps + ahead, tokens, 0.01, 0.0, 1.0, 0))
            assert told in ended_with(one)
            one.begin()
        one.train(lambda this: len(this.merged) >= 2)
        assert "diloco_claims_refused_total 3.0" in syncer.page("/metrics")
    assert syncer.status().merged_tokens < 1_000_000
    assert "Traceback" not in syncer.log


def test_false_claims_do_not_complete_a_job(serve: Serve) -> None:
    job, syncer = serve(tokens=20_000)
    with learner(job, syncer) as one:
        one.begin().wanted()
        claimed = 50_000_000
        one._session.send(StepReport(one.incarnation, claimed, 64 * claimed, 0.01, 0.0, 1.0, 4 * claimed))
        assert "there was time for" in ended_with(one)
        before = one.steps
        for claimed in (5_000_000, 2**63 - 1):
            one.steps = claimed
            with pytest.raises(RefusedError, match="there was time for"):
                one.join()
        one.steps = before
        wanted = one.begin().wanted()
        with pytest.raises(RefusedError, match="a learner pauses until it receives it"):
            one.push(wanted, steps=10**9, tokens=64 * 10**9)
    status = syncer.status()
    assert (status.phase, status.merged_tokens) == ("Training", 0.0)
    assert status.learners[0].tokens < 20_000 * 100
    assert "Traceback" not in syncer.log


def test_steps_that_were_never_reported_do_not_count(serve: Serve) -> None:
    job, syncer = serve(tokens=10_000_000, lease_seconds=1)
    with learner(job, syncer) as one:
        wanted = one.begin().wanted()
        with contextlib.suppress(WireError):  # its session may be over before the receipt is here
            receipt = one.push(wanted, steps=1_000, tokens=1_000 * TOKENS_PER_STEP)
            assert not receipt.accepted
        assert f"{one.learner} pushes 1000 steps of fragment {wanted.fragment}" in ended_with(one)
    assert syncer.status().merged_tokens == 0
