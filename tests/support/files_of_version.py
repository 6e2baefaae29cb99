"""A small run's files as this version writes them, which every later version must read: `golden/VERSION`.

A syncer's directory with a tape of several segments and a checkpoint before its end, and a learner's checkpoints. The
payloads of merges are not among them, since another processor may add floats in another order.
"""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch

from diloco.core.engine.events import (
    BudgetChanged,
    Event,
    FragmentDeclined,
    FragmentLate,
    LearnerAlive,
    LearnerFailed,
    LearnerLeft,
    LearnerReadmitted,
    LearnersPlanned,
    PoolMinimum,
    SnapshotAsked,
    StepReported,
    TimerFired,
)
from diloco.learner.checkpoint import CheckpointIdentity, CheckpointStore, LearnerCheckpoint
from diloco.learner.data.opening import open_data
from diloco.learner.exchange.residuals import Residual
from diloco.learner.training.trainer import InnerTrainer
from diloco.model.build import build_model
from diloco.model.fragments import layout_of
from diloco.spec import DiLoCoJob
from diloco.syncer.disk.directory import SyncerDirectory
from diloco.syncer.store import digest_of
from diloco.tape.keeper import TapeKeeper, TapeLimits
from tests.support.small_job import write_text
from tests.unit.syncer.recorded_run import RecordedRun

TRAINING = "0123456789abcdef"
STEPS = 2
"""Inner steps of the learner's checkpoint."""
_LIMITS = TapeLimits(segment_bytes=12_000, kept_bytes=None)


def job_of(text: Path | None = None) -> DiLoCoJob:
    """The job, with a model of some 500 parameters; ``text`` is only needed to train."""
    return DiLoCoJob.model_validate(
        {
            "apiVersion": "diloco.dev/v1alpha1",
            "kind": "DiLoCoJob",
            "metadata": {"name": "kept"},
            "spec": {
                "model": {"entrypoint": "tests.support.entrypoints:tiny_model", "arguments": {"width": 2}},
                "data": {"text": {"path": str(text)} if text else {}},
                "training": {"tokens": 6_000, "sequenceLength": 16, "batchSize": 4},
                "sync": {"fragments": 3, "interval": 3, "quorum": 2, "compression": "Int8", "downlink": "Int8"},
                "regions": [{"name": "here", "pools": [{"name": "cpu", "learners": 3, "minimumLearners": 1}]}],
            },
        }
    )


def trainer_in(scratch: Path) -> InnerTrainer:
    """A learner's inner loop, before its first step; its text is written to ``scratch``."""
    spec = job_of(write_text(scratch, 40)).spec
    module = build_model(spec)
    data = open_data(spec, spec.learner_ids[0])
    return InnerTrainer(spec, module, layout_of(module, spec.sync.fragments), data, torch.device("cpu"))


def learners_store(folder: Path, trainer: InnerTrainer) -> CheckpointStore:
    """The checkpoints of the first learner."""
    job = job_of()
    layout = layout_of(build_model(job.spec), job.spec.sync.fragments)
    identity = CheckpointIdentity(job.metadata.name, job.spec.learner_ids[0], layout.digest, trainer.optimizer_identity)
    return CheckpointStore(folder / "learner" / "checkpoints", identity)


def write_files(folder: Path, scratch: Path) -> None:
    """Write all files anew, and to ``expected.json`` what a reader must find in them."""
    shutil.rmtree(folder, ignore_errors=True)
    with SyncerDirectory(folder / "syncer") as directory:
        directory.training(TRAINING)
        epoch = directory.begin_epoch()
    (folder / "syncer" / "lock").unlink()
    run = RecordedRun(folder / "syncer", job_of(), epoch=epoch, limits=_LIMITS, record=False)
    run.spoilt = frozenset({2})
    run.train(9)
    for event in _rare_events(run):
        run.tell(event)
    run.checkpoint()
    shutil.rmtree(folder / "syncer" / "checkpoints" / "000001")  # that of the beginning
    expected: dict[str, Any] = {
        "versions": run.engine.versions,
        "fragment_tokens": run.engine.fragment_tokens,
        "parameters": [digest_of(values).hex() for values in run.parameters],
        "learners": {one.id: [one.steps, one.restarts, repr(one.loss)] for one in run.engine.view(run.now).learners},
    }
    run.train(9, after=10)
    expected |= {"versions_at_the_end": run.engine.versions, "lines": run.tape.seq}
    run.tape.close()
    TapeKeeper(folder / "syncer" / "tape", _LIMITS).tidy(run.tape.current, 0)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    trainer = trainer_in(scratch)
    for _ in range(STEPS):
        trainer.step(0.0)
    residuals = {0: Residual(1, torch.arange(3.0))}
    learners_store(folder, trainer).save(LearnerCheckpoint(trainer.state(), residuals, TRAINING))


def _rare_events(run: RecordedRun) -> list[Event]:
    """One of each kind that a run without faults has none of. The last learner is given up, and let back in."""
    first, second, last = run.job.spec.learner_ids
    one, other, lost = (run.incarnations[learner] for learner in (first, second, last))
    return [
        LearnerAlive(first, one),
        FragmentLate(first, one, 0, 1, 1),
        FragmentDeclined(second, other, 1, 99, 1, broken=True),
        LearnerLeft(last, lost, clean=False),
        LearnerFailed(last, lost),
        LearnerReadmitted(last, lost),
        LearnersPlanned(run.job.spec.learner_ids, tuple(run.job.spec.pools), (PoolMinimum("here/cpu", 1),)),
        BudgetChanged(100_000, 10_000),
        TimerFired("lease"),
        StepReported(second, other, 10, 640, 0.1, -math.inf, 40),
        SnapshotAsked("a test asks for it"),
    ]
