"""A real syncer process as in a cluster: pools are scaled, SIGTERM stops it, and learners join late or lie."""

import resource
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from diloco.model import load_model
from diloco.runtime.files import write_atomically
from diloco.runtime.process.exits import EXIT_OK, EXIT_UNEXPECTED
from diloco.spec.status.engine import LearnerState
from diloco.wire.errors import RefusedError, UnavailableError
from diloco.wire.messages import Finished, Refused, StepReport, Welcome
from testbed.kind.waiting import wait_until
from tests.support.learner_process import LearnerProcess, make_job
from tests.support.scripted_learner import WAIT_SECONDS, ScriptedLearner
from tests.support.syncer_process import Serve, SmallJob, SyncerProcess, replayed, serving

pytestmark = pytest.mark.processes


def learner(job: SmallJob, syncer: SyncerProcess, index: int = 0) -> ScriptedLearner:
    return ScriptedLearner(syncer.address, job, f"here/cpu/{index}")


def ids(syncer: SyncerProcess) -> list[str]:
    return [one.id for one in syncer.status().learners]


def test_a_pool_is_scaled_while_the_job_runs(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, tokens=10_000_000)
    with serving(job, tmp_path / "s") as syncer, learner(job, syncer) as one, learner(job, syncer, 2) as early:
        one.begin().train(lambda this: len(this.merged) >= 2)
        # Its process started before the file changed.
        early.begin().train(lambda this: this.steps >= 4, one)
        assert syncer.status().learners[2].state == LearnerState.UNPLANNED
        assert not early.merged
        SmallJob(tmp_path, tokens=10_000_000, learners=4)
        syncer.wait_for("LearnersPlanned")
        assert ids(syncer) == [f"here/cpu/{index}" for index in range(4)]
        early.train(lambda this: len(this.merged) >= 1, one)
        SmallJob(tmp_path, tokens=10_000_000, learners=1)
        syncer.wait_for("LearnersPlanned", times=2)
        assert ids(syncer) == ["here/cpu/0", "here/cpu/2"]
        steps = syncer.status().inner_steps
        early.leave()
        assert early.over.wait(WAIT_SECONDS)
        one.train(lambda _: ids(syncer) == ["here/cpu/0"])
        assert syncer.status().inner_steps >= steps
        SmallJob(tmp_path, tokens=10_000_000, learners=2, lease_seconds=31)
        syncer.wait_for("has changed in spec.sync.leaseSeconds; only training.tokens, regions and pools, and their")
        assert ids(syncer) == ["here/cpu/0"]
        assert syncer.terminate() == EXIT_OK
    replayed(tmp_path / "s")


def test_a_budget_is_raised_while_the_job_trains_and_after_its_end(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, tokens=10_000_000, learners=1)
    with serving(job, tmp_path / "s") as syncer, learner(job, syncer) as one:
        one.begin().train(lambda this: len(this.merged) >= 2)
        job = SmallJob(tmp_path, tokens=20_000_000, learners=1)
        syncer.wait_for("BudgetChanged")
        assert syncer.status().budget_tokens == 20_000_000
        one.train(lambda this: this.budget == 20_000_000)
        SmallJob(tmp_path, tokens=1_000, learners=1)
        one.train(lambda this: this.finished is not None)
        job = SmallJob(tmp_path, tokens=5_000, learners=1)
        assert syncer.exit_code() == EXIT_OK
    with serving(job, tmp_path / "s") as syncer, learner(job, syncer) as one:
        assert (syncer.status().phase, syncer.status().budget_tokens) == ("Waiting", 5_000)
        one.begin().train(lambda this: this.finished is not None)
        assert syncer.status().complete
        assert syncer.status().merged_tokens >= 5_000
        assert [evaluation.final for evaluation in syncer.status().evaluations].count(True) == 2
        assert syncer.terminate() == EXIT_OK
    report = replayed(tmp_path / "s")
    assert len(report.epochs) == 2


def test_a_learner_that_stays_trains_again_once_the_budget_is_raised(tmp_path: Path) -> None:
    training = {"tokens": 3_000, "sequenceLength": 16, "batchSize": 4, "evaluation": {"sequences": 6}}
    make_job(tmp_path, learners=1, training=training)
    manifest, address = tmp_path / "job.json", tmp_path / "address"

    def syncer() -> SyncerProcess:
        started = SyncerProcess(cast("SmallJob", SimpleNamespace(path=manifest)), tmp_path / "s").serving()
        write_atomically(address, started.address)
        return started

    with syncer() as first, LearnerProcess(tmp_path, address, "--stay") as staying:
        staying.wait_for("the job is over; waiting for SIGTERM")
        merged = first.status().merged_tokens
        manifest.write_text(manifest.read_text().replace('"tokens": 3000', '"tokens": 9000'))
        assert first.exit_code() == EXIT_OK
        with syncer() as second:
            assert staying.wait() == EXIT_OK
            assert "the job goes on" in staying.log
            with LearnerProcess(tmp_path, address, "--stay") as again:
                wait_until(lambda: second.status().complete, "it trains to the new budget")
                assert second.status().merged_tokens >= 9_000 > merged
                assert second.status().learners[0].restarts == 0
                assert again.runs


def test_a_region_is_added_and_another_one_removed_while_the_job_runs(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, tokens=10_000_000)
    text, _, here = job.path.read_text().partition("regions: [")
    there = "{name: there, connections: 3, pools: [{name: gpu, batchSize: 4}]}"
    with (
        serving(job, tmp_path / "s") as syncer,
        learner(job, syncer) as one,
        ScriptedLearner(syncer.address, job, "there/gpu/0") as early,
        ScriptedLearner(syncer.address, job, "there/gpu/0") as added,
    ):
        one.begin().train(lambda this: len(this.merged) >= 2)
        with pytest.raises(UnavailableError, match="cannot admit 'there/gpu/0': it is not in the manifest"):
            early.join()
        job.path.write_text(f"{text}regions: [{there}, {here}")
        syncer.wait_for("LearnersPlanned")
        added.begin()
        assert added.welcome is not None
        assert added.welcome.connections == 3
        added.train(lambda this: len(this.merged) >= 2, one)

        def brought() -> int:
            """What the added region has sent; a transfer counts once its call has ended, after the merge it led to."""
            return sum(region.up.bulk for region in syncer.status().bytes_by_region if region.region == "there")

        wait_until(lambda: brought() > 0, "the added region's bytes are counted")
        job.path.write_text(f"{text}regions: [{there}]")
        syncer.wait_for("LearnersPlanned", times=2)
        assert one.over.wait(WAIT_SECONDS), "it is put out"
        added.train(lambda _: ids(syncer) == ["there/gpu/0"])
        with learner(job, syncer) as again, pytest.raises(UnavailableError, match="not in the manifest"):
            again.join()
        assert syncer.terminate() == EXIT_OK
    replayed(tmp_path / "s")


def test_it_restarts_with_another_number_of_learners(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, tokens=10_000_000)
    with serving(job, tmp_path / "s") as syncer, learner(job, syncer) as one, learner(job, syncer, 1) as two:
        one.begin().train(lambda this: len(this.merged) >= 2)
        two.begin().train(lambda this: len(this.merged) >= 2, one)
        before = syncer.status()
        assert syncer.terminate() == EXIT_OK, syncer.log
    for learners in (4, 1):
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
            assert syncer.terminate() == EXIT_OK
    replayed(tmp_path / "s")


def test_the_status_says_exported_once_the_model_exists_and_after_restart(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, tokens=5_000, learners=1)
    path = tmp_path / "s" / "model.safetensors"
    path.parent.mkdir()
    # Left by an end of the job that a crash has undone.
    path.write_bytes(b"of another end")
    with SyncerProcess(job, tmp_path / "s") as syncer:
        assert not syncer.serving().status().model_exported
        with learner(job, syncer) as one:
            one.begin().train(lambda _: syncer.status().model_exported)
            while one.finished is None:
                message = one.next()
                assert message is not None
                one.obey(message)
            assert isinstance(one.finished, Finished)
        before = syncer.status()
        assert before.evaluations[-1].final
        assert syncer.terminate() == EXIT_OK
    exported = load_model(path).info
    assert exported.tokens >= 5_000
    path.unlink()
    with SyncerProcess(job, tmp_path / "s") as syncer:
        syncer.serving().wait_for("the model is at")
        status = syncer.status()
        assert (status.phase, status.model_exported) == ("Complete", True)
        assert (status.merged_tokens, status.merged) == (before.merged_tokens, before.merged)
        assert load_model(path).info == exported
        with learner(job, syncer, 3) as late:
            answer = late.join()
            assert isinstance(answer, Refused)
            assert answer.refusal == "Finished"


def test_if_its_last_checkpoint_fails_the_syncer_exits_with_an_error(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, tokens=10_000_000, checkpoint_every=3600)
    with serving(job, tmp_path / "s") as syncer, learner(job, syncer) as one:
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
            one._session.send(StepReport(one.incarnation, one.steps + ahead, tokens, 0.01, 1.0, 0))
            assert told in ended_with(one)
            one.begin()
        one.train(lambda this: len(this.merged) >= 2)
        assert "diloco_claims_refused_total 3.0" in syncer.page("/metrics")
    assert syncer.status().merged_tokens < 1_000_000
    assert "Traceback" not in syncer.log
