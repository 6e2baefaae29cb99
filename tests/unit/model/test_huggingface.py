import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from diloco.cli.main import execute
from diloco.model import ModelError, ModelInfo, export_model, load_model
from diloco.model.build import build_model, layout_of_job, model_from_fragments
from diloco.model.fragments import layout_of, read_fragment, trained_parameters
from diloco.model.logits import logits_of
from diloco.spec import JobSpec
from diloco.spec.outer_choice import OuterChoice
from diloco.syncer.disk.checkpoint import CheckpointContent, write_checkpoint
from diloco.syncer.store import FragmentStore
from tests.support.huggingface import CONFIGS, write_model
from tests.support.small_job import named_job, small_job

TOKENS = torch.arange(24).view(2, 12)


def job_of(folder: Path, *, weights: bool = True, **model: Any) -> JobSpec:
    return small_job(model={"huggingface": {"path": str(folder), "weights": weights}, **model}, sync={"fragments": 3})


def read(folder: Path) -> torch.nn.Module:
    made: torch.nn.Module = transformers.AutoModelForCausalLM.from_pretrained(folder)
    return made.eval()


@pytest.mark.parametrize("family", CONFIGS)
def test_a_job_begins_with_the_folders_weights(tmp_path: Path, family: str) -> None:
    job = job_of(write_model(tmp_path, family))
    module = build_model(job)
    layout = layout_of(module, 3)
    assert torch.equal(logits_of(module.eval(), TOKENS), read(tmp_path)(TOKENS).logits)
    assert layout_of_job(job) == layout
    flat = [torch.empty(fragment.numel) for fragment in layout.fragments]
    for fragment, values in zip(layout.fragments, flat, strict=True):
        read_fragment(module, fragment, values)
        values.mul_(1.5)
    trained = model_from_fragments(job, layout, flat)
    for (name, before), after in zip(module.named_parameters(), trained.parameters(), strict=True):
        assert torch.equal(after, before * 1.5), name


def test_without_weights_a_model_is_new_and_its_seed_decides(tmp_path: Path) -> None:
    job = job_of(write_model(tmp_path), weights=False)
    (tmp_path / "model.safetensors").unlink()
    first, second = build_model(job), build_model(job)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert layout_of_job(job) == layout_of(first, 3)
    assert first.training


def test_sharded_weights_in_bf16_become_f32_parameters(tmp_path: Path) -> None:
    write_model(tmp_path, dtype="bfloat16", max_shard_size="5KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    expected = read(tmp_path)
    for name, parameter in build_model(job_of(tmp_path)).named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, expected.get_parameter(name).float())


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def without_folder(folder: Path) -> None:
    (folder / "config.json").unlink()


def quantized(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": {"quant_method": "fp8"}}))


def pickled_by_name(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../model.bin"}}')


def damaged(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)


def changed(folder: Path, **tensors: torch.Tensor | None) -> None:
    path = folder / "model.safetensors"
    every = {**load_file(path), **{name.replace("__", "."): tensor for name, tensor in tensors.items()}}
    save_file({name: tensor for name, tensor in every.items() if tensor is not None}, path, {"format": "pt"})


def pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 9\n")


def own_head(folder: Path) -> None:
    write_model(folder, "qwen3")
    changed(folder, lm_head__weight=torch.zeros(257, 16))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without_folder, r"has no config.json"),
        (quantized, r"config.json is of a quantized model; use one of f32, bf16 or f16"),
        (without_weights, r"has no model.safetensors, whole or in parts \(pickled files, \*\.bin, are not read\)"),
        (pickled_by_name, r"index.json names '../model.bin'; use files of the same folder that end in .safetensors"),
        (damaged, r"model.safetensors cannot be read as safetensors"),
        (pointer, r"model.safetensors is a pointer of git-lfs, not the file itself; run 'git lfs pull'"),
        (own_head, r"has a tensor lm_head.weight of its own, which config.json ties to another one; set tie_word_emb"),
        (lambda folder: changed(folder, lm_head__weight=None), r"has no tensor lm_head.weight"),
        (lambda folder: changed(folder, more=torch.zeros(1)), r"has a tensor more, which the model of config.json has"),
        (
            lambda folder: changed(folder, model__norm__weight=torch.zeros(3)),
            r"model.norm.weight has another shape than in the model of config.json",
        ),
    ],
    ids=["no folder", "quantized", "pickle", "outside", "damaged", "lfs", "tied", "missing", "unexpected", "shape"],
)
def test_weights_that_do_not_fit_are_refused_in_one_line(tmp_path: Path, spoil: Any, message: str) -> None:
    spoil(write_model(tmp_path))
    with pytest.raises(ModelError, match=rf"^model.huggingface.path: .*{message}") as raised:
        build_model(job_of(tmp_path))
    assert "\n" not in str(raised.value)


def test_a_tied_head_may_be_in_the_file_too(tmp_path: Path) -> None:
    job = job_of(write_model(tmp_path, "qwen3"))
    changed(tmp_path, lm_head__weight=load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"].clone())
    assert layout_of_job(job) == layout_of(build_model(job), 3)


@pytest.mark.parametrize(("family", "wrapper"), [("gpt2", "_orig_mod."), ("llama", "module._orig_mod.")])
def test_names_and_buffers_of_a_training_script_are_understood(tmp_path: Path, family: str, wrapper: str) -> None:
    job = job_of(write_model(tmp_path, family))
    before = build_model(job).state_dict()
    path = tmp_path / "model.safetensors"
    buffers = {"transformer.h.0.attn.masked_bias": torch.tensor(-1e4), "transformer.h.1.attn.bias": torch.ones(1, 1)}
    every = load_file(path) | (buffers if family == "gpt2" else {"model.rotary_emb.inv_freq": torch.ones(4)})
    save_file({f"{wrapper}{name}": tensor for name, tensor in every.items()}, path, {"format": "pt"})
    after = build_model(job).state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_model_whose_values_are_overwritten_draws_none(tmp_path: Path) -> None:
    """It differs from the initial model in trained parameters only."""
    for job in (small_job(), job_of(write_model(tmp_path), weights=False), job_of(tmp_path)):
        whole, blank = build_model(job), build_model(job, values=False)
        assert layout_of(whole, 1) == layout_of(blank, 1)
        assert (
            not any(one.any() for one in blank.parameters())
            or job.model.huggingface == job_of(tmp_path).model.huggingface
        )
        for (name, one), other in zip(whole.named_buffers(), blank.buffers(), strict=True):
            assert torch.equal(one, other), name


@pytest.mark.parametrize("target", ["embed_tokens", "lm_head"])
def test_an_adapter_of_a_tied_head_is_refused(tmp_path: Path, target: str) -> None:
    job = job_of(write_model(tmp_path, "qwen3"), adapter={"targets": ["q_proj", target]})
    with pytest.raises(ModelError, match=rf"^model.adapter.targets: {target} shares its weight with another layer"):
        build_model(job)
    build_model(job_of(write_model(tmp_path / "untied"), adapter={"targets": ["q_proj", "lm_head"]}))


def test_an_adapter_is_all_that_is_trained(tmp_path: Path) -> None:
    adapter = {"rank": 2, "alpha": 4, "dropout": 0.5, "targets": ["q_proj", "v_proj"]}
    job = job_of(write_model(tmp_path), adapter=adapter)
    module = build_model(job)
    layout = layout_of(module, 3)
    names = [slot.tensor.name for fragment in layout.fragments for slot in fragment.slots]
    assert len(names) == 2 * 2 * 2
    assert all(".lora_" in name for name in names)
    assert layout_of_job(job) == replace(layout, constants=None)
    assert torch.equal(logits_of(module.eval(), TOKENS), read(tmp_path)(TOKENS).logits)


@pytest.mark.parametrize(("package", "field"), [("transformers", "model.huggingface.path"), ("peft", "model.adapter")])
def test_a_missing_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, field: str
) -> None:
    job = job_of(write_model(tmp_path), adapter={"targets": ["q_proj"]})
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ModelError, match=rf"^{field}: needs the package {package}; run pip install '\.\[hf\]' in a clone$"
    ):
        build_model(job)


def test_an_adapters_target_that_matches_nothing_is_one_line(tmp_path: Path) -> None:
    job = job_of(write_model(tmp_path), adapter={"targets": ["q_proj", "q_prj"]})
    with pytest.raises(ModelError, match=r"^model.adapter.targets: q_prj is the name of no layer; use names such as"):
        build_model(job)


def trained(job: JobSpec, folder: Path) -> tuple[torch.nn.Module, Path]:
    """A run of the job in ``folder`` that ended with parameters of their own, and its model."""
    module = build_model(job)
    with torch.no_grad():
        for parameter in trained_parameters(module).values():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    digest = layout_of(module, 3).digest
    folder.mkdir()
    (folder / "job.yaml").write_text(named_job("mine", job).model_dump_json(by_alias=True))
    export_model(module, folder / "model.safetensors", ModelInfo("mine", job.model, 257, 16, digest, 100))
    return module.eval(), folder


@pytest.mark.parametrize("family", CONFIGS)
def test_transformers_loads_what_export_writes(tmp_path: Path, family: str) -> None:
    base = write_model(tmp_path / "base", family)
    (base / "tokenizer.json").write_text("{}")
    (base / "modeling_mine.py").write_text("")
    module, run = trained(job_of(base), tmp_path / "run")
    assert execute(["export", str(run), "--hf", str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    again = read(tmp_path / "out")
    assert torch.equal(logits_of(module, TOKENS), again(TOKENS).logits)
    assert getattr(again.config, "use_cache")  # noqa: B009  # nn.Module says that it is a tensor
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == load_file(base / "model.safetensors").keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "out", "run"]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own
def test_peft_loads_what_export_writes_of_adapters(tmp_path: Path) -> None:
    base = write_model(tmp_path / "base", "qwen3")
    job = job_of(base, adapter={"rank": 2, "targets": ["q_proj", "v_proj"]})
    module, run = trained(job, tmp_path / "run")
    assert all(".lora_" in name for name in load_file(run / "model.safetensors"))
    assert execute(["export", str(run / "model.safetensors"), "--hf", str(tmp_path / "out")]) == 0
    again = peft.PeftModel.from_pretrained(read(base), tmp_path / "out").eval()
    assert torch.equal(logits_of(module, TOKENS), again(TOKENS).logits)
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)
    changed(base, model__norm__weight=torch.zeros(16))
    with pytest.raises(ModelError, match=r"its adapters are of another base model than"):
        load_model(run / "model.safetensors")


def test_a_checkpoint_is_exported_while_its_run_goes_on(tmp_path: Path) -> None:
    job = job_of(write_model(tmp_path / "base"))
    layout = layout_of(build_model(job), 3)
    store = FragmentStore(layout)
    for fragment in layout.fragments:
        store.put(fragment.index, 1, torch.full((fragment.numel,), 0.25))
    checkpoints = tmp_path / "run" / "syncer" / "checkpoints"
    checkpoints.mkdir(parents=True)
    (tmp_path / "run" / "job.yaml").write_text(named_job("mine", job).model_dump_json(by_alias=True))
    assert execute(["export", str(tmp_path / "run"), "--hf", str(tmp_path / "none")]) == 2
    content = CheckpointContent("mine", layout, 1, store.hold(), {}, OuterChoice.of(job), "test")
    name = write_checkpoint(checkpoints, content).name
    for number, place in enumerate((tmp_path / "run", checkpoints / name)):
        assert execute(["export", str(place), "--hf", str(tmp_path / str(number))]) == 0
        assert all(bool((one == 0.25).all()) for one in read(tmp_path / str(number)).parameters())


def test_an_export_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, run = trained(job_of(write_model(tmp_path / "base")), tmp_path / "run")
    (tmp_path / "out").mkdir()
    for place in (run / "nowhere", run):
        assert execute(["export", str(place), "--hf", str(tmp_path / "base")]) == 2
    assert "is not empty; use another folder, or empty it" in capsys.readouterr().err
    assert execute(["export", str(run), "--hf", str(tmp_path / "out")]) == 0
    assert execute(["export", str(tmp_path), "--hf", str(tmp_path / "more")]) == 2
    assert "has no model.safetensors, and no job.yaml; use the folder of a run, or --job" in capsys.readouterr().err
