"""One job of real processes, and every way in which one of them can fail: the others never stop.

The job runs under ``diloco run``, as a user runs it; faults are signals from outside, without intervention afterwards.
The tests share the job.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from diloco.local.certificates import learner_flags
from diloco.local.directory import RunDirectory
from diloco.wire.convert import pack_learner
from diloco.wire.messages import Join
from tests.support.learner_process import LearnerProcess
from tests.support.local_run import GENTLE, SYNC, WAIT_SECONDS, LocalRun, of, untouched, write_job
from tests.support.raw_wire import RawClient, ending

pytestmark = [pytest.mark.core, pytest.mark.processes, pytest.mark.timeout(600)]

VICTIM, WITNESS, THIRD = "east/fast/0", "west/old/0", "west/old/1"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRun]:
    made = write_job(
        tmp_path_factory.mktemp("faults"),
        pools={"east/fast": 1, "west/old": 2},
        training={"batchSize": 8},
        sync=SYNC | {"downlink": "Int8", "leaseSeconds": 4, "maxStalenessSteps": 100_000},
        syncer={"checkpointEverySeconds": 1},
    )
    with LocalRun(made, *GENTLE) as running:
        yield running


def test_a_killed_learner_costs_only_itself_and_comes_back(job: LocalRun) -> None:
    before = job.all_train()
    job.learner(VICTIM).kill()
    gone = job.wait_for(lambda status: of(status, VICTIM).state != "Training")
    job.trains_on(WITNESS, of(gone, WITNESS).steps)
    job.trains_on(THIRD, of(gone, THIRD).steps)
    after = job.all_train()
    untouched(before, after, WITNESS, THIRD)
    assert of(after, VICTIM).restarts == of(before, VICTIM).restarts + 1
    assert of(after, VICTIM).steps >= of(before, VICTIM).steps
    assert after.merged_tokens > before.merged_tokens


def test_a_learner_frozen_beyond_its_lease_is_fenced_and_rejoins(job: LocalRun) -> None:
    before = job.all_train()
    # Before its first step a learner may be silent for sync.startupSeconds.
    job.trains_on(VICTIM, of(before, VICTIM).steps)
    frozen = job.learner(VICTIM)
    frozen.suspend()
    gone = job.wait_for(lambda status: of(status, VICTIM).state == "Absent")
    job.trains_on(WITNESS, of(gone, WITNESS).steps)
    frozen.resume()
    after = job.all_train()
    untouched(before, after, WITNESS, THIRD)
    assert of(after, VICTIM).incarnation > of(before, VICTIM).incarnation
    assert of(after, VICTIM).restarts == of(before, VICTIM).restarts
    assert frozen.is_running()
    job.trains_on(VICTIM, of(after, VICTIM).steps)


def test_a_killed_syncer_goes_on_from_its_checkpoint_while_learners_train(job: LocalRun) -> None:
    before = job.all_train()
    learners = {name: job.learner(name).pid for name in (VICTIM, WITNESS, THIRD)}
    # A checkpoint that was begun after `before` was seen, and not only the one under way just then.
    for _ in range(2):
        newest = job.all_train().checkpoint.newest
        job.wait_for(lambda status: status.checkpoint.newest != newest)  # noqa: B023 - called before the next turn
    job.syncer().kill()
    after = job.wait_for(lambda status: status.epoch > before.epoch and status.merged_tokens > before.merged_tokens)
    job.all_train()
    assert {name: job.learner(name).pid for name in learners} == learners
    assert merges_at_start(job, after.epoch) >= before.syncer_step
    for name in learners:
        job.trains_on(name, of(before, name).steps)


def merges_at_start(job: LocalRun, epoch: int) -> int:
    """Number of merges in the checkpoint that an epoch of the syncer resumed from."""
    tape = min((job.output / "syncer" / "tape").glob(f"{epoch:06d}.*"))
    with tape.open() as lines:
        return sum(json.loads(next(lines))["header"]["engine"]["versions"])


def test_syncer_and_learner_killed_at_once_both_come_back(job: LocalRun) -> None:
    before = job.all_train()
    witness = job.learner(WITNESS).pid
    syncer, victim = job.syncer(), job.learner(VICTIM)
    syncer.kill()
    victim.kill()
    job.wait_for(lambda status: status.epoch != before.epoch)
    after = job.all_train()
    assert after.merged_tokens > 0
    assert job.learner(WITNESS).pid == witness
    for name in (VICTIM, WITNESS, THIRD):
        job.trains_on(name, of(after, name).steps)


def test_nobody_without_a_certificate_of_the_run_gets_a_word_in(job: LocalRun) -> None:
    before = job.all_train()
    with RawClient(job.endpoint["sync"]) as stranger:
        joins = pack_learner(Join("small", WITNESS, "stranger", "layout"))
        assert ending(stranger.session([joins]))[0] is grpc.StatusCode.UNAVAILABLE
    after = job.trains_on(WITNESS, of(before, WITNESS).steps)
    untouched(before, after, WITNESS, THIRD)
    assert "stranger" not in job.log("syncer")


def test_of_two_processes_with_one_identity_the_later_counts(job: LocalRun, tmp_path: Path) -> None:
    before = job.all_train()
    first = job.learner(VICTIM)
    flags = learner_flags(RunDirectory(job.output), VICTIM)
    with LearnerProcess(tmp_path, job.endpoint["sync"], *flags, learner=VICTIM, job=job.manifest) as second:
        after = job.wait_for(lambda status: of(status, VICTIM).restarts > of(before, VICTIM).restarts)
        assert first.wait(WAIT_SECONDS) in (3, None)
        taken = job.all_train()
        job.trains_on(VICTIM, of(taken, VICTIM).steps)
        job.trains_on(WITNESS, of(taken, WITNESS).steps)
        untouched(before, after, WITNESS, THIRD)
        assert second.runs
