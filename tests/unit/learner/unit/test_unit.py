"""A learner of several processes trains as one process does on the same batches."""

from pathlib import Path
from typing import Any

import pytest
import torch

from diloco.core.dealing.pieces import Piece
from diloco.learner.training.optimizers.optimizer import OptimizerError
from diloco.learner.training.steps import TrainingDivergedError
from diloco.model import ModelError
from diloco.model.fragments import trained_parameters
from testbed.units import StartedUnit
from tests.support.units import alone, check_alike, job_of, trained

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view")


def kind(name: str) -> dict[str, Any]:
    made = {"entrypoint": "tests.support.model_kinds:made", "arguments": {"kind": name}}
    return {"model": made, "sync": {"fragments": 2}}


def parallel(function: str) -> dict[str, Any]:
    return {"model": WIDE | {"parallelize": f"tests.support.parallelisms:{function}"}}


IMAGES: dict[str, Any] = {"model": {"entrypoint": "tests.support.tasks:flat_images_model"}, "sync": {"fragments": 1}}
WIDE = {"entrypoint": "tests.support.parallelisms:Wide"}
LLAMA = {"kind": "llama", "num_key_value_heads": 1, "intermediate_size": 16}


@pytest.mark.slow
@pytest.mark.parametrize("micro", [None, 2])
@pytest.mark.parametrize("parallelism", ["FSDP", "DDP"])
def test_two_processes_train_as_one(two: StartedUnit, text: Path, parallelism: str, micro: int | None) -> None:
    check_alike(two, job_of(text, training={"microBatchSize": micro}), parallelism)


@pytest.mark.parametrize(
    ("parallelism", "how"),
    [
        *(("FSDP", "Selective"), ("DDP", "Full")),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (("FSDP", "Full"), ("DDP", "Selective"))),
    ],
)
def test_blocks_that_compute_again_train_alike(two: StartedUnit, text: Path, parallelism: str, how: str) -> None:
    check_alike(two, job_of(text, training={"microBatchSize": 2, "activationCheckpointing": how}), parallelism)


@pytest.mark.parametrize("task", ["Answers", None])
def test_two_processes_that_gather_bf16_train_as_one(two: StartedUnit, text: Path, task: str | None) -> None:
    own: dict[str, Any] = {"task": {"entrypoint": f"tests.support.tasks:{task}"}, "model": WIDE} if task else {}
    job = job_of(text, training={"precision": "BF16"}, **own)
    wanted = trained(alone(job), 4)
    with two.trainer(job) as trainer:
        made = trained(trainer, 4)
    assert all(made["received"])
    assert made["losses"] == pytest.approx(wanted["losses"], rel=1e-2)
    assert [mean for mean, _ in made["means"]] == pytest.approx([mean for mean, _ in wanted["means"]], rel=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"mask": True},
        {"model": {"builtin": {"preset": "pico", "tieEmbeddings": False}}},
        {"sync": {"fragments": 12}},
        {"task": {"entrypoint": "tests.support.tasks:Images"}} | IMAGES,
        {"task": {"entrypoint": "tests.support.tasks:ImagesWithKeptCounts"}} | IMAGES,
        {"task": {"entrypoint": "tests.support.tasks:Answers"}, "model": WIDE},
        *(kind(name) for name in ("shared container", "parameter in two modules", "not saved", "lora")),
        {"model": {"entrypoint": "tests.support.model_kinds:hugging_face", "arguments": LLAMA}},
    ],
    ids=[
        *("document mask", "untied", "split embedding", "images", "kept counts", "masked answers"),
        *("shared container", "parameter in two modules", "buffer that is not saved", "lora", "llama"),
    ],
)
def test_what_a_job_may_have_trains_alike(two: StartedUnit, text: Path, changes: dict[str, Any]) -> None:
    check_alike(two, job_of(text, **changes))


@pytest.mark.slow
@pytest.mark.parametrize("function", ["recomputed", "by_columns"])
def test_a_users_own_parallelism_trains_as_one_process(two: StartedUnit, text: Path, function: str) -> None:
    check_alike(two, job_of(text, **parallel(function)))


def test_dropped_values_depend_on_the_step_and_the_process_alone(two: StartedUnit, text: Path) -> None:
    job = job_of(text, **kind("recomputed"))
    seen = []
    for _ in range(2):
        with two.trainer(job) as trainer:
            seen.append(trained(trainer, 4))
    assert seen[0]["losses"] == seen[1]["losses"]
    assert all(map(torch.equal, seen[0]["deltas"], seen[1]["deltas"]))


@pytest.mark.parametrize("parallelism", ["FSDP", "DDP"])
def test_a_part_that_only_some_processes_use_is_trained(two: StartedUnit, text: Path, parallelism: str) -> None:
    with two.trainer(job_of(text, **kind("used in some batches")), parallelism) as trainer:
        assert all(trained(trainer, 6)["received"])


def test_results_that_differ_in_one_process_alone_hold_up_none(two: StartedUnit, text: Path) -> None:
    job = job_of(text, model={"entrypoint": "tests.support.parallelisms:UnsteadyInOne"})
    with two.trainer(job) as trainer:
        assert all(trained(trainer, 2)["received"])


def test_ten_steps_without_finite_losses_end_the_training_everywhere(two: StartedUnit, text: Path) -> None:
    job = job_of(text)
    one = alone(job)
    with two.trainer(job) as trainer:
        for each in (one, trainer):
            good = each.capture(1)._anchor
            each.step(0.0)
            each.apply(1, 1, torch.full_like(good, torch.inf))
            for _ in range(9):
                assert each.step(0.0).skipped
            with pytest.raises(TrainingDivergedError):
                each.step(0.0)
            each.start_over()
            each.apply(1, 2, good)
        assert trainer.step(0.0).loss == pytest.approx(one.step(0.0).loss, rel=1e-6)


@pytest.mark.parametrize("parallelism", ["FSDP", "DDP"])
def test_fragments_move_during_steps_whose_numbers_are_late(two: StartedUnit, text: Path, parallelism: str) -> None:
    job = job_of(text)
    one = alone(job)
    one._inner._late = True
    with two.trainer(job, parallelism, late=True) as trainer:
        for value in (0.01, torch.nan, 0.02, 0.03):
            seen = []
            for each in (one, trainer):
                late = each.begin(0.0)
                assert callable(late)
                capture = each.capture(2)
                each.apply(1, 1, each.buffer(1).fill_(value))
                made = late()
                seen.append((capture.steps, made.skipped, each.steps, each.fragment_steps(1), capture.delta, made.loss))
            assert seen[0][:4] == seen[1][:4]
            assert float((seen[0][4] - seen[1][4]).abs().max()) < 1e-5
            assert seen[1][5] == pytest.approx(seen[0][5], rel=1e-5, nan_ok=True)
        assert (trainer.steps, trainer._inner.optimizer.steps) == (3, 3)


def test_a_jump_drops_what_every_process_has_trained_since(two: StartedUnit, text: Path) -> None:
    one = alone(job := job_of(text))
    with two.trainer(job) as trainer:
        for each in (one, trainer):
            each._data.sampler.supply = None
            each.hand.put(Piece(0, 0, 12))
            each.step(0.0)
            each.hand.put(Piece(20, 100, 12))
            assert each.jump()
            assert not any(each.capture(fragment).delta.any() for fragment in range(4))
        assert trainer.step(0.0).loss == pytest.approx(one.step(0.0).loss, rel=1e-6)


def test_a_process_holds_its_share_of_what_is_trained_and_no_more(two: StartedUnit, text: Path) -> None:
    with two.trainer(job_of(text)) as trainer:
        trained(trainer, 4)
        numel = sum(one.numel() for one in trained_parameters(trainer._module).values())
    # Parameters, those received and two moments; a gathered block may not be freed yet.
    assert two.held_bytes()[0] < 4 * numel * 4 / 2 * 1.2


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            kind("scalars"),
            "model: torch cannot part it among processes: ValueError: fully_shard doesn't support scalar",
        ),
        (
            kind("strided"),
            "model: torch cannot part it among processes: NotImplementedError: FSDP does not support non-",
        ),
        (kind("hooks"), "model: output.weight has a hook for its gradient, which is lost in a learner of several"),
        (parallel("without_mesh"), "model.parallelize: tests.support.parallelisms:without_mesh returned a NoneType"),
        (parallel("plain"), "model.parallelize: embedding.weight is not a DTensor; make every trained parameter one"),
        (parallel("raising"), "model.parallelize: tests.support.parallelisms:raising raised RuntimeError: no such"),
        (parallel("renaming"), "model.parallelize: renames parameters; keep the model's names"),
    ],
    ids=["scalars", "strided", "hooks", "without_mesh", "plain", "raising", "renaming"],
)
def test_a_model_that_cannot_be_parted_is_refused(
    two: StartedUnit, text: Path, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(ModelError) as raised, two.trainer(job_of(text, **changes)):
        pass
    assert str(raised.value).startswith(told)
    assert "\n" not in str(raised.value)


def test_an_optimizer_of_the_users_own_is_refused(two: StartedUnit, text: Path) -> None:
    task: dict[str, Any] = {"task": {"entrypoint": "tests.support.tasks:ImagesWithMomentum"}}
    with (
        pytest.raises(OptimizerError, match="not possible in a learner of several"),
        two.trainer(job_of(text, **task, **IMAGES)),
    ):
        pass
