"""Models whose parameters have two names, or are strided, are trained and evaluated as plain ones."""

from pathlib import Path

import pytest
import torch

from diloco.learner.training.trainer import InnerTrainer
from tests.support.small_job import small_job, write_text
from tests.support.small_learner import trainer_of


def of(folder: Path, name: str, **arguments: object) -> InnerTrainer:
    model = {"entrypoint": f"tests.support.odd_models:{name}", "arguments": arguments}
    return trainer_of(small_job(write_text(folder), model=model, sync={"fragments": 2}))


def hand_over(trainer: InnerTrainer, fragments: int = 2) -> None:
    """What it has trained becomes what it has received."""
    for fragment in range(fragments):
        trainer.apply(fragment, 1, trainer.capture(fragment)._values)


def test_a_module_of_several_names_is_trained_after_an_evaluation(tmp_path: Path) -> None:
    plain, evaluated = of(tmp_path, "one_layer_three_times"), of(tmp_path, "one_layer_three_times")
    for _ in range(3):
        evaluated.evaluate()
        assert evaluated.step(0.0).loss == plain.step(0.0).loss
    before = evaluated.evaluate()
    hand_over(evaluated)
    assert evaluated.evaluate() < before


def test_an_evaluation_that_raises_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    trainer = of(tmp_path, "one_layer_three_times")
    trainer.step(0.0)
    before = {name: tensor.clone() for name, tensor in trainer._module.named_parameters()}

    def fail(*_: object) -> None:
        raise RuntimeError("no")

    hook = trainer._module.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="no"):
        trainer.evaluate()
    hook.remove()
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer._module.named_parameters())
    assert trainer._module.training


def test_strided_parameters_are_trained_and_evaluated_as_contiguous_ones(tmp_path: Path) -> None:
    odd, plain = of(tmp_path, "strided"), of(tmp_path, "strided", contiguous=True)
    assert [not one.is_contiguous() for one in odd._module.parameters()].count(True) == 2
    for _ in range(5):
        assert odd.step(0.0).loss == pytest.approx(plain.step(0.0).loss, rel=1e-5)
    for fragment in range(2):
        assert torch.allclose(odd.capture(fragment).delta, plain.capture(fragment).delta, atol=1e-5)
    hand_over(odd)
    evaluated = odd.evaluate()
    hand_over(plain)
    assert evaluated == pytest.approx(plain.evaluate(), rel=1e-5)
