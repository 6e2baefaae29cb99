"""What a syncer's start costs: a new job builds its model, a restart reads files."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from diloco.core.engine import Engine
from diloco.core.options import EngineOptions
from diloco.model import build_model, read_fragment
from diloco.spec import DiLoCoJob, Metadata
from diloco.syncer.disk.checkpoint import CheckpointContent, write_checkpoint
from diloco.syncer.errors import SyncerError
from diloco.syncer.prepare import StartState, prepare, recorded_bases
from diloco.tape.limits import TapeLimits
from diloco.tape.reader import TapeHeader
from diloco.tape.writer import TapeWriter
from tests.support import models_with_buffers
from tests.support.small_job import small_job


def job_of(name: str, module: str = "models_with_buffers", sync: Mapping[str, object] = {}) -> DiLoCoJob:
    spec = small_job(
        model={"entrypoint": f"tests.support.{module}:{name}"}, sync={"fragments": 2, "interval": 2, **sync}
    )
    return DiLoCoJob(api_version="diloco.dev/v1alpha1", kind="DiLoCoJob", metadata=Metadata(name="made"), spec=spec)


def begun(job: DiLoCoJob, folder: Path, *, tell_of_constants: bool = True) -> StartState:
    """A job that has begun and has a checkpoint."""
    beginning = prepare(job, folder)
    layout = beginning.layout
    if not tell_of_constants:
        layout = type(layout)(layout.fragments)
    image, engine = beginning.store.hold(), Engine(EngineOptions.from_job(job, layout), 1).snapshot(0.0)
    write_checkpoint(folder, CheckpointContent("made", layout, 1, image, engine, beginning.outer, "test"))
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


def test_a_new_job_begins_with_the_models_values_at_version_0(tmp_path: Path) -> None:
    job = job_of("lora")
    beginning = prepare(job, tmp_path)
    torch.manual_seed(job.spec.training.seed)
    module = build_model(job.spec)
    assert beginning.store.versions == (0, 0)
    assert (beginning.engine, beginning.checkpoint, beginning.bytes_by_region) == (None, "", ())
    for fragment in beginning.layout.fragments:
        values = torch.empty(fragment.numel)
        read_fragment(module, fragment, values)
        assert values.any()
        assert torch.equal(beginning.store.current(fragment.index).parameters, values)


@pytest.mark.parametrize(("anchor", "kept"), [("Received", 0), ("Current", 3)])
def test_as_many_versions_are_kept_as_the_anchor_looks_back(tmp_path: Path, anchor: str, kept: int) -> None:
    store = prepare(job_of("lora", sync={"anchor": anchor, "maxVersionLag": 3}), tmp_path).store
    for version in range(1, 9):
        store.commit(0, version, store.target(0), b"")
    assert [store.base(0, version) is not None for version in range(8)] == [version >= 8 - kept for version in range(8)]


@pytest.mark.parametrize(("downlink", "kept"), [("F32", False), ("Int8", True)])
def test_residuals_are_kept_where_updates_are_encoded(tmp_path: Path, downlink: str, *, kept: bool) -> None:
    assert (prepare(job_of("lora", sync={"downlink": downlink}), tmp_path).store.residual(0) is not None) == kept


def record_of(folder: Path, epoch: int, base: str, *, record: bool) -> None:
    header = TapeHeader({}, "", epoch, base, record, {}, 0.0)
    TapeWriter(folder, header, TapeLimits()).close()


def test_a_replay_begins_with_the_checkpoints_of_recorded_tapes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert recorded_bases(tmp_path / "tape") == frozenset()
    for epoch, (base, record) in enumerate([("000001", True), ("000004", False), ("", True), ("000009", True)]):
        record_of(tmp_path / "tape", epoch + 1, base, record=record)
    assert recorded_bases(tmp_path / "tape") == {"000001", "000009"}
    assert caplog.records == []
    (tmp_path / "tape" / "000001.jsonl").write_text("{}\n")
    assert recorded_bases(tmp_path / "tape") == {"000009"}
    (said,) = caplog.records
    assert str(tmp_path / "tape" / "000001.jsonl") in said.getMessage()


def test_another_model_is_refused_in_one_line(tmp_path: Path) -> None:
    begun(job_of("lora"), tmp_path)
    with pytest.raises(SyncerError, match=r"a checkpoint of another model .* than the job's") as raised:
        prepare(job_of("tied"), tmp_path)
    assert "\n" not in str(raised.value)
