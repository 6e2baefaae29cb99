"""Adapters that peft saved, as the start of a job."""

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

from diloco.model.build import build_model
from diloco.model.fragments import layout_of, trained_parameters
from diloco.spec.backup import InitFrom
from diloco.syncer.backup.weights import initial_parameters
from diloco.syncer.errors import SyncerError
from tests.support.huggingface import write_model
from tests.support.small_job import small_job

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Adapters with values of their own."""
    base = transformers.AutoModelForCausalLM.from_pretrained(write_model(tmp_path / "base"))
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"])
    model = peft.get_peft_model(base, config)
    for parameter in trained_parameters(model).values():
        torch.nn.init.normal_(parameter)
    model.save_pretrained(str(tmp_path / "adapters"))
    return tmp_path / "adapters"


def begun(saved: Path, **adapter: Any) -> dict[str, torch.Tensor]:
    """The trained parameters of a job that begins with ``saved``."""
    adapter = {"rank": 2, "alpha": 4, "targets": ["q_proj", "v_proj"]} | adapter
    path = str(saved.parent / "base")
    spec = small_job(model={"huggingface": {"path": path, "weights": True}, "adapter": adapter}, sync={"fragments": 2})
    module = build_model(spec)
    begins = InitFrom(url=str(saved / "adapter_model.safetensors"), type="Weights")
    initial_parameters(begins, module, layout_of(module, 2), saved.parent / "scratch")
    return {name: parameter.detach() for name, parameter in trained_parameters(module).items()}


def test_a_job_begins_with_adapters_that_peft_saved(saved: Path) -> None:
    base = transformers.AutoModelForCausalLM.from_pretrained(saved.parent / "base")
    theirs = peft.PeftModel.from_pretrained(base, saved, is_trainable=True)
    expected = trained_parameters(theirs)
    found = begun(saved)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], one) for name, one in expected.items())


@pytest.mark.parametrize(
    ("change", "adapter", "told"),
    [
        ({}, {"rank": 4}, "adapter_config.json: r is 2; use the same as model.adapter.rank, 4"),
        ({}, {"alpha": 8}, "adapter_config.json: lora_alpha is 4; use the same as model.adapter.alpha, 8"),
        (
            {},
            {"targets": ["q_proj"]},
            r"adapter_model.safetensors: is of another model: the model has no tensor base_m",
        ),
        ({"use_dora": True}, {}, "adapter_config.json: use_dora is True; use adapters without it"),
    ],
)
def test_other_adapters_are_refused_in_one_line(
    saved: Path, change: dict[str, Any], adapter: dict[str, Any], told: str
) -> None:
    path = saved / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(SyncerError, match=f"^spec.initFrom.url: .*: {told}") as raised:
        begun(saved, **adapter)
    assert "\n" not in str(raised.value)
