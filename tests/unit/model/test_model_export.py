import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from diloco.model import ModelError, ModelInfo, build_model, export_model, load_model
from diloco.spec import JobSpec
from tests.support.small_job import small_job


def info(job: JobSpec, tokens: int = 123) -> ModelInfo:
    return ModelInfo("some-job", job.model, 257, job.training.sequence_length, "digest", tokens)


def test_an_exported_model_comes_back_to_the_bit(tmp_path: Path) -> None:
    job = small_job()
    model = build_model(job)
    export_model(model, tmp_path / "model.safetensors", info(job))
    loaded = load_model(tmp_path / "model.safetensors")
    assert loaded.info == info(job)
    for name, parameter in model.named_parameters():
        assert torch.equal(loaded.module.get_parameter(name), parameter)


def test_tied_weights_are_stored_once_and_nothing_is_left_beside_the_file(tmp_path: Path) -> None:
    job = small_job()
    export_model(build_model(job), tmp_path / "model.safetensors", info(job))
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


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    job = small_job()
    path = tmp_path / "model.safetensors"
    export_model(build_model(job), path, info(job))
    other = small_job(model={"builtin": {"preset": "nano"}})
    with pytest.raises(ModelError, match=r"is of another model: the file has no tensor blocks.3"):
        load_model(path, other.model)


@pytest.mark.parametrize(
    "described",
    [
        '{"job":"","model":{"builtin":{}},"vocabularySize":9,"sequenceLength":2,"layoutDigest":"","tokens":Infinity}',
        "[" * 50_000,
    ],
)
def test_metadata_that_cannot_be_is_one_line(tmp_path: Path, described: str) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(1)}, path, metadata={"diloco": described})
    with pytest.raises(ModelError, match="its metadata is not diloco's") as raised:
        load_model(path)
    assert "\n" not in str(raised.value)


def test_a_pipe_is_no_model_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelError, match=r"pipe: cannot be read: is not a regular file"):
        load_model(tmp_path / "pipe")


def test_files_that_are_none_of_ours_are_refused_in_one_line(tmp_path: Path) -> None:
    missing, foreign, strange, garbage = (tmp_path / name for name in ("missing", "foreign", "strange", "garbage"))
    save_file({"a": torch.zeros(1)}, foreign)
    save_file({"a": torch.zeros(1)}, strange, metadata={"diloco": '{"job": "x"}'})
    garbage.write_bytes(b"\xff" * 100)
    for path, message in [
        (missing, "cannot be read: no such file or directory"),
        (foreign, "was not written by diloco"),
        (strange, "its metadata is not diloco's"),
        (garbage, "cannot be read as safetensors"),
    ]:
        with pytest.raises(ModelError, match=message) as raised:
            load_model(path)
        assert "\n" not in str(raised.value)


def test_a_failed_export_leaves_what_was_there(tmp_path: Path) -> None:
    job = small_job()
    folder = tmp_path / "model.safetensors"
    folder.mkdir()
    (folder / "kept").touch()
    with pytest.raises(OSError, match=r"model.safetensors"):
        export_model(build_model(job), folder, info(job))
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
