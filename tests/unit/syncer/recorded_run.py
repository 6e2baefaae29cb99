"""A run made in this process and in virtual time: what a syncer leaves on its disk, without the syncer."""

from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from diloco.core.engine.actions import Action, Admit, AskFragment, Broadcast, Evaluate, Merge
from diloco.core.engine.engine import Engine, EngineOptions
from diloco.core.engine.events import (
    Evaluated,
    Event,
    FragmentApplied,
    FragmentArrived,
    LearnerJoined,
    LearnerReady,
    StepReported,
)
from diloco.core.merge.codecs import uplink_codec
from diloco.spec import DiLoCoJob
from diloco.spec.outer_choice import OuterChoice
from diloco.syncer.disk.checkpoint import CheckpointContent, write_checkpoint
from diloco.syncer.disk.exporter import export
from diloco.syncer.disk.payload_files import keep_payload
from diloco.syncer.merging import Merging
from diloco.syncer.prepare import prepare
from diloco.syncer.replay import ReplayReport
from diloco.syncer.store import digest_of
from diloco.tape.keeper import TapeLimits
from diloco.tape.writer import TapeWriter
from diloco.wire.messages import PushKey
from tests.support.small_job import named_job, small_job
from tests.support.tape_headers import tape_header

TOKENS_PER_STEP = 64


def recorded_job(**sync: Any) -> DiLoCoJob:
    training = {"tokens": 6_000, "sequenceLength": 16, "batchSize": 4}
    return named_job(
        "small", small_job(training=training, sync={"fragments": 4, "interval": 4, "compression": "Int8"} | sync)
    )


def only_problem(report: ReplayReport) -> str:
    (problem,) = report.problems
    assert not report.ok
    return str(problem)


class RecordedRun:
    """One epoch of a syncer whose learners push noise."""

    def __init__(
        self,
        directory: Path,
        job: DiLoCoJob,
        *,
        epoch: int = 1,
        limits: TapeLimits | None = None,
        record: bool = True,
    ) -> None:
        self.directory = directory
        beginning = prepare(job, directory / "checkpoints")
        self.layout, self.store = beginning.layout, beginning.store
        self.job, self.epoch, self._record = job, epoch, record
        self.engine = Engine(EngineOptions.from_job(job, self.layout), epoch, beginning.engine)
        self.now = 0.0
        self._saved = beginning.saved
        base = beginning.checkpoint or self.checkpoint()
        header = tape_header(
            job=job.model_dump(mode="json", by_alias=True),
            layout=self.layout.digest,
            epoch=epoch,
            base_checkpoint=base,
            record=record,
            engine=beginning.engine or {},
            tensors=self.layout.table,
        )
        self.tape = TapeWriter(directory / "tape", header, limits or TapeLimits(), self.engine.image)
        self._codec = uplink_codec(job.spec.sync)
        self._merging = Merging(self.layout, job.spec.sync, OuterChoice.of(job.spec).optimizer)
        self._payloads: dict[PushKey, torch.Tensor] = {}
        self._random = torch.Generator().manual_seed(epoch)
        self.spoilt: frozenset[int] = frozenset()
        """Versions for which the last learner pushes too much."""
        self.spoilt_by = 1e6
        """How many times too much."""
        self.spoilt_fragments = len(self.layout.fragments)
        """Of which the first are spoilt."""
        self._events: deque[Event] = deque()
        self.incarnations: dict[str, int] = {}

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The global model, fragment by fragment."""
        return [self.store.current(fragment.index).parameters for fragment in self.layout.fragments]

    def train(self, steps: int, after: int = 0) -> None:
        """Every learner joins if it is the first time, and makes ``steps`` inner steps ``after`` those before."""
        for learner in () if after else self.job.spec.learner_ids:
            self.tell(LearnerJoined(learner, f"{learner} of {self.epoch}", (), 0, 0))
            self.tell(LearnerReady(learner, self.incarnations[learner]))
        for step in range(after + 1, after + steps + 1):
            for learner in self.job.spec.learner_ids:
                loss = float("nan") if step == 2 else 5.0 / step
                tokens = step * TOKENS_PER_STEP
                incarnation = self.incarnations[learner]
                self.tell(StepReported(learner, incarnation, step, tokens, 0.1, loss, step * 4))

    def tell(self, event: Event) -> None:
        """Tell the engine, and carry out what follows until nothing does."""
        self._events.append(event)
        while self._events:
            event = self._events.popleft()
            self.now += 0.01
            actions = self.engine.step(event, self.now)
            self.tape.append(self.now, event, actions)
            self.tape.flush()
            for action in actions:
                self._carry_out(action)

    def checkpoint(self) -> str:
        """Write a checkpoint."""
        image = self.store.hold()
        self.store.release()
        snapshot = self.engine.snapshot(self.now)
        name = self.job.metadata.name
        outer, reason = OuterChoice.of(self.job.spec), "the test asks for it"
        content = CheckpointContent(name, self.layout, self.epoch, image, snapshot, outer, reason, base=self._saved)
        self._saved = write_checkpoint(self.directory / "checkpoints", content)
        return self._saved.name

    def end(self) -> None:
        """The job is over: the model is exported, and the tape ends."""
        tokens = round(self.engine.view(self.now).merged_tokens)
        self.tape.end(export(self.job, self.layout, self.parameters, tokens, self.directory / "model.safetensors"))

    def _carry_out(self, action: Action) -> None:
        match action:
            case Admit(learner, _, incarnation):
                self.incarnations[learner] = incarnation
            case AskFragment(learner, incarnation, fragment, version, attempt):
                values = 0.01 * torch.randn(self.layout.fragments[fragment].numel, generator=self._random)
                if (
                    version in self.spoilt
                    and fragment < self.spoilt_fragments
                    and learner == self.job.spec.learner_ids[-1]
                ):
                    values *= self.spoilt_by
                payload = self._codec.encode(values)
                self._payloads[PushKey(learner, incarnation, fragment, version, attempt)] = payload
                digest = digest_of(payload).hex()
                if self._record:
                    keep_payload(self.directory / "payloads", digest, payload)
                # Now and then from a version that is one behind.
                base = max(0, version - 1 - (self.tape.seq % 3 == 0))
                self._events.append(
                    FragmentArrived(
                        learner, incarnation, fragment, version, attempt, base, 4, 256, payload.nbytes, digest
                    )
                )
            case Merge():
                prepared = self._merging.prepare(action, self.store, self._payloads.__getitem__)
                result = self._merging.run(prepared)
                self.store.commit(action.fragment, action.version, result.made, result.digest, result.update)
                self._events.append(replace(result.event, seconds=0.01))
            case Broadcast(fragment, version, learners):
                self._events += [
                    FragmentApplied(learner, incarnation, fragment, version) for learner, incarnation, _ in learners
                ]
            case Evaluate(learner, incarnation, evaluation):
                self._events.append(Evaluated(learner, incarnation, evaluation, 4.0, exact=True))
