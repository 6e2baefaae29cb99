import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from diloco.model import ModelError, ModelInfo, export_model, load_model
from diloco.model.build import build_model
from diloco.model.export import fill_trained
from diloco.model.fragments import trained_parameters
from diloco.spec import JobSpec
from tests.support.small_job import small_job


def info(job: JobSpec, tokens: int = 123) -> ModelInfo:
    return ModelInfo("some-job", job.model, 257, job.training.sequence_length, "digest", tokens)


def test_an_exported_model_comes_back_to_the_bit_and_stands_alone(tmp_path: Path) -> None:
    job = small_job()
    model = build_model(job)
    export_model(model, tmp_path / "model.safetensors", info(job))
    loaded = load_model(tmp_path / "model.safetensors")
    assert loaded.info == info(job)
    for name, parameter in model.named_parameters():
        assert torch.equal(loaded.module.get_parameter(name), parameter)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert "output.weight" not in file.keys()  # noqa: SIM118  # no mapping
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_an_entrypoint_model_needs_the_manifest_and_keeps_frozen_weights(tmp_path: Path) -> None:
    job = small_job(model={"entrypoint": "tests.support.entrypoints:tiny_model"})
    model = build_model(job)
    model.get_parameter("scale").fill_(7.0)
    path = tmp_path / "model.safetensors"
    export_model(model, path, info(job))
    with pytest.raises(ModelError, match=r"its model comes from the entrypoint tests.support.entrypoints:tiny_model"):
        load_model(path)
    assert load_model(path, job.model).module.get_parameter("scale").tolist() == [7.0] * 8


def test_hooks_on_the_state_dict_change_neither_export_nor_load(tmp_path: Path) -> None:
    job = small_job(model={"entrypoint": "tests.support.entrypoints:hooked_model"})
    model, path = build_model(job), tmp_path / "model.safetensors"
    with torch.no_grad():
        for parameter in trained_parameters(model).values():
            parameter.fill_(0.5)
    export_model(model, path, info(job))
    again = build_model(job)
    fill_trained(path, again)
    for read in (load_model(path, job.model).module, again):
        assert all(bool((parameter == 0.5).all()) for parameter in trained_parameters(read).values())


def described(text: str = "", **changed: object) -> Callable[[Path], object]:
    """Write a file with this metadata; without a text, with that of a model but for what is ``changed``."""
    whole = {
        "job": "",
        "model": {"builtin": {}},
        "vocabularySize": 9,
        "sequenceLength": 2,
        "layoutDigest": "",
        "tokens": 1,
    }
    said = text or json.dumps(whole | changed)
    return lambda path: save_file({"a": torch.zeros(1)}, path, metadata={"diloco": said})


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda _: None, "cannot be read: no such file or directory"),
        (os.mkfifo, "cannot be read: is not a regular file"),
        (lambda path: path.write_bytes(b"\xff" * 100), "cannot be read as safetensors"),
        (lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"), "is a pointer of git-lfs, not"),
        (lambda path: save_file({"a": torch.zeros(1)}, path), "was not written by diloco"),
        (described('{"job": "x"}'), "its metadata is not diloco's"),
        (described(tokens=math.inf), "its metadata is not diloco's"),
        (described("[" * 50_000), "its metadata is not diloco's"),
        (described(sequenceLength=-5), "its sequence length is -5, it must be above 0"),
    ],
    ids=["missing", "pipe", "garbage", "git-lfs", "foreign", "incomplete", "infinite", "nested", "a negative length"],
)
def test_a_file_that_is_none_of_ours_is_refused_in_one_line(
    tmp_path: Path, write: Callable[[Path], object], message: str
) -> None:
    write(tmp_path / "file")
    with pytest.raises(ModelError, match=message) as raised:
        load_model(tmp_path / "file")
    assert "\n" not in str(raised.value)


def test_a_failed_export_leaves_what_was_there(tmp_path: Path) -> None:
    job = small_job()
    folder = tmp_path / "model.safetensors"
    folder.mkdir()
    (folder / "kept").touch()
    with pytest.raises(OSError, match=r"model.safetensors"):
        export_model(build_model(job), folder, info(job))
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
