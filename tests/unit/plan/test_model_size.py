from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from diloco.core.fragments import LayoutError
from diloco.model.build import vocabulary_of_builtin
from diloco.model.fragments import layout_of
from diloco.model.gpt import GPT, GPTConfig
from diloco.plan import PlanError
from diloco.plan.model_size import gpt_layout, model_size
from diloco.spec import JobSpec
from diloco.spec.presets import PRESETS
from diloco.spec.training import BuiltinModel
from tests.support.small_job import small_job

TOKENS = {"tokens": {"path": "corpus.tokens"}}
OWN = {"entrypoint": "mine:make"}


def job(*, builtin: dict[str, Any] | None = None, fragments: int = 24, **changes: Any) -> JobSpec:
    model = OWN if builtin is None else {"builtin": builtin}
    return small_job(Path("text"), model=model, sync={"fragments": fragments, "interval": 24}, **changes)


@pytest.mark.parametrize("preset", get_args(BuiltinModel.model_fields["preset"].annotation))
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("data", [{}, {"data": TOKENS}], ids=["text", "tokens"])
@pytest.mark.parametrize("fragments", [1, 24, 26])
def test_fragments_of_the_builtin_model_are_the_real_ones(
    preset: str, tied: bool, data: dict[str, Any], fragments: int
) -> None:
    builtin: dict[str, Any] = {"preset": preset, "tieEmbeddings": tied}
    if data:
        builtin["vocabularySize"] = 50_257
    spec = job(builtin=builtin, fragments=fragments, **data)
    assert spec.model.builtin is not None
    vocabulary = vocabulary_of_builtin(spec)
    with torch.device("meta"):
        layout = layout_of(GPT(GPTConfig(PRESETS[preset], vocabulary, tied)), fragments)
    assert model_size(spec, None).numels == layout.numels
    assert gpt_layout(spec.model.builtin, fragments).cut == layout.cut
    assert model_size(spec, None).assumed == ""


def test_more_fragments_than_tensors_are_refused() -> None:
    with pytest.raises(LayoutError, match=r"sync\.fragments is 27, but the model has 26 parameter tensors"):
        model_size(job(builtin={"preset": "pico"}, fragments=27), None)


def test_a_model_of_ones_own_is_taken_for_equal_fragments_and_that_is_said() -> None:
    size = model_size(job(), 1_000_003)
    assert len(size.numels) == 24
    assert size.parameters == 1_000_003
    assert max(size.numels) - min(size.numels) == 1
    assert "equal size" in size.assumed


@pytest.mark.parametrize(
    ("builtin", "parameters", "told"),
    [
        (None, 23, "--parameters: 23 is not from 24, one for each fragment"),
        (None, 10**15 + 1, "--parameters: 1000000000000001 is not from 24"),
        ({"preset": "pico"}, 100, "--parameters: 100 is not needed"),
        ({"preset": "pico"}, [100], "--hf: is not needed"),
    ],
)
def test_a_size_that_is_missing_wrong_or_not_needed_is_refused(
    builtin: dict[str, Any] | None, parameters: int | list[int], told: str
) -> None:
    with pytest.raises(PlanError) as caught:
        model_size(job(builtin=builtin), parameters)
    assert str(caught.value).startswith(told)
