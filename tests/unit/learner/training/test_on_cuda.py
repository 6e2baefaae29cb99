"""What only a CUDA device shows: copies that run beside the next steps, and memory that is used again."""

from pathlib import Path

import pytest
import torch

from diloco.learner.training.capture import Reader
from diloco.learner.training.devices.host_copies import whole_copies
from diloco.learner.training.trainer import InnerTrainer
from diloco.model import ModelError
from diloco.model.build import build_model
from diloco.model.fragments import layout_of, write_fragment
from tests.support.small_job import small_job, write_text
from tests.support.small_learner import trainer_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
CPU = torch.device("cpu")


def trainer_on(device: str, folder: Path) -> InnerTrainer:
    folder.mkdir(exist_ok=True)
    return trainer_of(small_job(write_text(folder)), device=device)


def test_a_capture_has_the_values_from_before_the_next_step(tmp_path: Path) -> None:
    trainer = trainer_on("cuda", tmp_path)
    for _ in range(3):
        trainer.step(0.0)
    count = len(trainer.versions)
    expected = [trainer.capture(fragment).delta.clone() for fragment in range(count)]
    for _ in range(20):
        captures = [trainer.capture(fragment) for fragment in range(count)]
        trainer.step(0.0)  # queued behind the copies, which nothing has waited for yet
        for capture, values in zip(captures, expected, strict=True):
            assert torch.equal(capture.delta, values)
        expected = [trainer.capture(fragment).delta.clone() for fragment in range(count)]


def test_fragments_come_back_bit_by_bit_while_the_device_is_busy(tmp_path: Path) -> None:
    job = small_job(write_text(tmp_path))
    module = build_model(job).to("cuda")
    reader, layout = Reader(module, torch.device("cuda")), layout_of(module, job.sync.fragments)
    busy = torch.randn(2048, 2048, device="cuda")
    for attempt in range(30):
        for fragment in layout.fragments:
            busy = (busy @ busy).clamp(-1, 1)
            sent = reader.host_buffer(fragment).uniform_(-1, 1, generator=torch.Generator().manual_seed(attempt))
            write_fragment(module, fragment, sent)
            got, copied = reader.read(fragment)
            assert copied is not None
            copied.synchronize()
            assert torch.equal(got, sent)


def test_a_device_trains_as_a_cpu_does(tmp_path: Path) -> None:
    there, here = trainer_on("cuda", tmp_path / "a"), trainer_on("cpu", tmp_path / "b")
    losses = [(there.step(0.0).loss, here.step(0.0).loss) for _ in range(10)]
    assert [pytest.approx(loss, rel=1e-3) for _, loss in losses] == [loss for loss, _ in losses]
    assert there.evaluate() == pytest.approx(here.evaluate(), rel=2e-2)


def test_an_evaluation_leaves_training_as_it_is(tmp_path: Path) -> None:
    plain, evaluated = trainer_on("cuda", tmp_path / "a"), trainer_on("cuda", tmp_path / "b")
    for _ in range(5):
        evaluated.evaluate()
        first, second = plain.step(0.0), evaluated.step(0.0)
        assert first.loss == pytest.approx(second.loss, rel=1e-5)


def test_the_state_of_a_device_starts_another_process(tmp_path: Path) -> None:
    first, second = trainer_on("cuda", tmp_path / "a"), trainer_on("cuda", tmp_path / "b")
    for _ in range(3):
        first.step(0.0)
    for fragment in range(len(first.versions)):
        whole = first._reader.read(first.layout.fragments[fragment])[0]
        torch.cuda.synchronize()
        second.apply(fragment, 1, whole)
    second.load_state(first.state())
    assert second.step(0.0).loss == pytest.approx(first.step(0.0).loss, rel=1e-5)


def test_a_snapshot_has_the_moments_from_before_the_next_step(tmp_path: Path) -> None:
    trainer = trainer_on("cuda", tmp_path)
    trainer.step(0.0)
    for _ in range(20):
        moments = trainer._inner.optimizer._parts["AdamW"].optimizer.state  # type: ignore[union-attr]
        wanted = [kept["exp_avg"].cpu() for kept in moments.values()]
        taken = trainer.state().tensors
        trainer.step(0.0)  # queued behind the copies, which nothing has waited for yet
        found = [one for name, one in whole_copies(taken).items() if name.startswith("exp_avg.")]
        assert all(map(torch.equal, found, wanted))


def test_a_device_skips_as_the_host_would(tmp_path: Path) -> None:
    there, here = trainer_on("cuda", tmp_path / "a"), trainer_on("cuda", tmp_path / "b")
    here._inner._late = False
    assert (there._inner.late, there._inner.reads_ahead) == (True, True)
    seen = []
    for trainer in (there, here):
        made = [trainer.step(0.0)]
        for value in (torch.nan, 0.01):
            trainer.apply(0, 1, trainer.buffer(0).fill_(value))
            made += [trainer.step(0.0), trainer.step(0.0)]
        state = trainer.state()
        seen.append((state.optimizer_steps, state.steps, state.data_position, [one.skipped for one in made]))
    assert seen[0] == seen[1] == (3, 3, 20, [False, True, True, False, False])


@pytest.mark.parametrize("task", ["ImagesWithMomentum", "ImagesWithAdafactor"])
def test_a_device_trains_a_task_of_the_users_own(task: str) -> None:
    training = {"tokens": 10_000, "sequenceLength": 1, "batchSize": 8, "evaluation": {"sequences": 20}}
    job = small_job(
        model={"entrypoint": "tests.support.tasks:images_model"},
        data={"holdoutFraction": 0.1},
        task={"entrypoint": f"tests.support.tasks:{task}"},
        training=training,
        sync={"fragments": 2},
    )
    first, second = trainer_of(job, device="cuda"), trainer_of(job, device="cuda")
    before = first.evaluate()
    for _ in range(40):
        first.step(0.0)
    for fragment in range(2):
        whole = first._reader.read(first.layout.fragments[fragment])[0]
        torch.cuda.synchronize()
        for one in (first, second):
            one.apply(fragment, 1, whole)
    assert first.evaluate() < 0.8 * before
    second.load_state(first.state())
    assert second.step(0.0).loss == pytest.approx(first.step(0.0).loss, rel=1e-5)


@pytest.mark.parametrize("buffer", [True, False])
def test_what_training_changes_is_noticed_on_a_device(tmp_path: Path, buffer: bool) -> None:  # a parameter
    model = {"entrypoint": "tests.support.models_with_buffers:Late", "arguments": {"buffer": buffer}}
    trainer = trainer_of(small_job(write_text(tmp_path), model=model, sync={"fragments": 1}), device="cuda")
    trainer.evaluate()
    for _ in range(5):
        trainer.step(0.0)
    with pytest.raises(ModelError, match=r"^model: training changes (buffer shift|state that is neither)"):
        trainer.evaluate()
