"""What a syncer's start costs: a new job builds its model, a restart reads files."""

from pathlib import Path

import pytest
import torch

from diloco.core.engine import Engine
from diloco.core.options import EngineOptions
from diloco.spec import DiLoCoJob, Metadata
from diloco.syncer.disk.checkpoint import CheckpointContent, Totals, write_checkpoint
from diloco.syncer.errors import SyncerError
from diloco.syncer.prepare import StartState, prepare
from tests.support import models_with_buffers
from tests.support.small_job import small_job


def job_of(name: str, module: str = "models_with_buffers") -> DiLoCoJob:
    spec = small_job(model={"entrypoint": f"tests.support.{module}:{name}"}, sync={"fragments": 2, "interval": 2})
    return DiLoCoJob(api_version="diloco.dev/v1alpha1", kind="DiLoCoJob", metadata=Metadata(name="made"), spec=spec)


def begun(job: DiLoCoJob, folder: Path, *, tell_of_constants: bool = True) -> StartState:
    """A job that has begun and has a checkpoint."""
    beginning = prepare(job, folder)
    layout = beginning.layout
    if not tell_of_constants:
        layout = type(layout)(layout.fragments)
    image, engine = beginning.store.hold(), Engine(EngineOptions.from_job(job, layout), 1).snapshot(0.0)
    write_checkpoint(folder, CheckpointContent("made", layout, 1, image, engine, Totals(), "test"))
    return beginning


@pytest.fixture
def built_whole(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of models that were built with values."""
    built: list[str] = []
    original = models_with_buffers.lora

    def lora() -> torch.nn.Module:
        model = original()
        built.extend(["lora"] * (not next(model.parameters()).is_meta))
        return model

    monkeypatch.setattr(models_with_buffers, "lora", lora)
    return built


def test_a_restart_builds_no_model(tmp_path: Path, built_whole: list[str]) -> None:
    job = job_of("lora")
    first = begun(job, tmp_path)
    assert built_whole == ["lora"]
    second = prepare(job, tmp_path)
    assert built_whole == ["lora"]
    assert second.layout == first.layout
    assert second.layout.constants
    assert torch.equal(second.store.current(1).parameters, first.store.current(1).parameters)


def test_a_restart_from_an_earlier_versions_checkpoint_looks_at_the_base(
    tmp_path: Path, built_whole: list[str]
) -> None:
    job = job_of("lora")
    first = begun(job, tmp_path, tell_of_constants=False)
    assert prepare(job, tmp_path).layout == first.layout
    assert built_whole == ["lora", "lora"]


def test_an_entrypoint_that_is_cut_otherwise_without_values_goes_on(tmp_path: Path) -> None:
    job = job_of("wider_with_values")
    first = begun(job, tmp_path)
    assert prepare(job, tmp_path).layout == first.layout


def test_another_model_is_refused_in_one_line(tmp_path: Path) -> None:
    begun(job_of("lora"), tmp_path)
    with pytest.raises(SyncerError, match=r"a checkpoint of another model .* than the job's") as raised:
        prepare(job_of("tied"), tmp_path)
    assert "\n" not in str(raised.value)
