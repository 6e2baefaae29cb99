"""A learner whose directory outlives its process and its machine, as a claim does: real processes, over real gRPC."""

import shutil
from pathlib import Path

import pytest
import torch

from diloco.learner.checkpoint import CheckpointIdentity, CheckpointStore, LearnerCheckpoint
from diloco.learner.data.opening import open_data
from diloco.learner.training.devices.torch_threads import set_torch_threads
from diloco.learner.training.trainer import InnerTrainer
from diloco.model.build import build_model
from diloco.model.fragments import layout_of
from diloco.spec import DiLoCoJob
from diloco.wire.messages import Join, StepReport
from tests.support.learner_process import LearnerProcess, make_job
from tests.support.scripted_syncer import ScriptedSyncer
from tests.support.wire_syncer import RunningServer

pytestmark = pytest.mark.processes

LEARNER = "here/cpu/0"
TRAINING = {
    "tokens": 100_000,
    "sequenceLength": 16,
    "batchSize": 4,
    "checkpointEverySteps": 3,
    "optimizer": {"warmupSteps": 50},
}


def new_trainer(job: DiLoCoJob) -> InnerTrainer:
    """As a learner process makes it, with the initial model."""
    module = build_model(job.spec)
    layout = layout_of(module, job.spec.sync.fragments)
    return InnerTrainer(job.spec, module, layout, open_data(job.spec, LEARNER), torch.device("cpu"))


def newest(job: DiLoCoJob, directory: Path) -> LearnerCheckpoint:
    """The checkpoint in a learner's directory."""
    digest = layout_of(build_model(job.spec), job.spec.sync.fragments).digest
    identity = CheckpointIdentity("small", LEARNER, digest, new_trainer(job).optimizer_identity)
    found = CheckpointStore(directory / "checkpoints", identity).load()
    assert found is not None
    return found


def train(folder: Path, syncer: ScriptedSyncer, address: str, steps: int) -> LearnerProcess:
    """A process makes some steps, is asked to stop, and ends."""
    mark = syncer.mark()
    with LearnerProcess(folder, address) as learner:
        first = syncer.wait_for(StepReport, after=mark).step
        syncer.wait_for(StepReport, lambda report: report.step >= first + steps, after=mark)
        learner.terminate()
        assert learner.wait() == 0
    return learner


def test_in_a_new_pod_the_optimizer_goes_on_bit_for_bit(tmp_path: Path) -> None:
    job = make_job(tmp_path, training=TRAINING)
    syncer = ScriptedSyncer(job)
    syncer.training = "0011223344556677"
    with RunningServer(syncer) as server:
        learner = train(tmp_path, syncer, server.address, 5)
        before = newest(job, learner.directory)
        assert before.training == syncer.training
        assert before.state.optimizer_steps == before.state.steps >= 5
        # Of the old pod nothing is left but the volume.
        volume = shutil.copytree(learner.directory, tmp_path / "elsewhere")
        shutil.rmtree(learner.directory)
        volume.rename(learner.directory)
        mark = syncer.mark()
        train(tmp_path, syncer, server.address, 5)
    join = syncer.wait_for(Join, after=mark)
    assert (join.steps, join.data_position) == (before.state.steps, before.state.data_position)
    assert f"continues from its own checkpoint of step {before.state.steps}" in learner.log
    after = newest(job, learner.directory)
    assert after.state.optimizer_steps == after.state.steps > before.state.steps
    # The same steps, here: from the syncer's model and those moments, at learning rates past theirs.
    set_torch_threads(1)
    same = new_trainer(job)
    same.load_state(before.state)
    while same.steps < after.state.steps:
        same.step(0.0)
    expected = same.state()
    assert expected.data_position == after.state.data_position
    assert expected.tensors.keys() == after.state.tensors.keys()
    assert all(torch.equal(after.state.tensors[name], value) for name, value in expected.tensors.items())


def test_a_directory_of_another_training_is_ignored_with_one_line(tmp_path: Path) -> None:
    job = make_job(tmp_path, training=TRAINING)
    syncer = ScriptedSyncer(job)
    syncer.training = "0011223344556677"
    with RunningServer(syncer) as server:
        learner = train(tmp_path, syncer, server.address, 5)
        step = newest(job, learner.directory).state.steps
        # The job was made anew: all that is left of the one before is the volume.
        syncer.training = "8899aabbccddeeff"
        mark = syncer.mark()
        train(tmp_path, syncer, server.address, 3)
    join, first = syncer.wait_for(Join, after=mark), syncer.wait_for(StepReport, after=mark)
    assert (join.steps, join.training) == (step, "0011223344556677")
    assert first.data_position == 4 * first.step < 4 * step
    told = [line for line in learner.log.splitlines() if "ignoring" in line]
    assert len(told) == 1
    assert told[0].endswith(
        f"ignoring its own checkpoint of step {step}: it is of training 0011223344556677, this is training "
        "8899aabbccddeeff; the inner optimizer starts anew"
    )
    again = newest(job, learner.directory)
    assert again.training == "8899aabbccddeeff"
    assert again.state.optimizer_steps == again.state.steps
