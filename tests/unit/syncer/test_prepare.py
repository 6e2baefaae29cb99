"""What a syncer begins with: the model's values, or the newest checkpoint that it can go on from."""

from pathlib import Path
from typing import Any

import pytest
import torch

from diloco.core.engine.engine import Engine
from diloco.core.engine.options import EngineOptions
from diloco.model import ModelError
from diloco.model.build import build_model, model_identity
from diloco.model.fragments import read_fragment
from diloco.spec import DiLoCoJob
from diloco.syncer.disk.checkpoint import CheckpointContent, write_checkpoint
from diloco.syncer.disk.checkpoint_names import checkpoint_names
from diloco.syncer.errors import SyncerError
from diloco.syncer.prepare import StartState, prepare, recorded_bases
from diloco.tape.keeper import TapeLimits
from diloco.tape.writer import TapeWriter
from tests.support import models_with_buffers
from tests.support.small_job import named_job, small_job
from tests.support.tape_headers import tape_header


def job_of(name: str, **sync: object) -> DiLoCoJob:
    model = {"entrypoint": f"tests.support.models_with_buffers:{name}"}
    return named_job("made", small_job(model=model, sync={"fragments": 2, "interval": 2} | sync))


def begun(job: DiLoCoJob, folder: Path, *changes: dict[str, Any]) -> StartState:
    """A job that has begun and has a checkpoint for each of these changes to the engine's snapshot; default: one."""
    beginning = prepare(job, folder)
    layout = beginning.layout
    image, engine = beginning.store.hold(), Engine(EngineOptions.from_job(job, layout), 1).snapshot(0.0)
    model = model_identity(job.spec)
    for change in changes or ({},):
        write_checkpoint(
            folder,
            CheckpointContent("made", layout, 1, image, engine | change, beginning.outer, "test", model=model),
        )
    return beginning


@pytest.mark.parametrize("name", ["Lora", "looks_at_values"])
def test_a_restart_builds_no_model_even_without_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    job = job_of(name)
    first = begun(job, tmp_path)
    monkeypatch.setattr(models_with_buffers, name, lambda: pytest.fail("it is built"))
    second = prepare(job, tmp_path)
    assert second.layout == first.layout
    assert bool(second.layout.constants) == (name == "Lora")
    assert torch.equal(second.store.current(1).parameters, first.store.current(1).parameters)


def test_a_model_that_is_another_without_values_is_one_line_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^model: .*:wider_with_values has 2136 trained .*, where it has 2128; build"):
        prepare(job_of("wider_with_values"), tmp_path)


def test_other_words_for_the_model_go_on_if_it_is_the_same(tmp_path: Path) -> None:
    job = job_of("Lora")
    first = begun(job, tmp_path)
    other = job.spec.training.model_copy(update={"seed": 7})
    renamed = job.model_copy(update={"spec": job.spec.model_copy(update={"training": other})})
    assert renamed != job
    assert prepare(renamed, tmp_path).layout == first.layout


def test_a_new_job_begins_with_the_models_values_at_version_0(tmp_path: Path) -> None:
    job = job_of("Lora")
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
    store = prepare(job_of("Lora", anchor=anchor, maxVersionLag=3), tmp_path).store
    for version in range(1, 9):
        store.commit(0, version, store.target(0), b"")
    assert [store.base(0, version) is not None for version in range(8)] == [version >= 8 - kept for version in range(8)]


@pytest.mark.parametrize(("downlink", "kept"), [("F32", False), ("Int8", True)])
def test_residuals_are_kept_where_updates_are_encoded(tmp_path: Path, downlink: str, *, kept: bool) -> None:
    assert (prepare(job_of("Lora", downlink=downlink), tmp_path).store.residual(0) is not None) == kept


def record_of(folder: Path, epoch: int, base: str, *, record: bool) -> None:
    header = tape_header(epoch=epoch, base_checkpoint=base, record=record)
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
    begun(job_of("Lora"), tmp_path)
    with pytest.raises(SyncerError, match=r"a checkpoint of another model .* than the job's") as raised:
        prepare(job_of("tied"), tmp_path)
    assert "\n" not in str(raised.value)


def test_an_engine_that_cannot_be_read_sends_it_to_the_checkpoint_before(tmp_path: Path) -> None:
    begun(job_of("Lora"), tmp_path, {"elapsed_seconds": 7.0}, {"elapsed_seconds": "soon"}, {"versions": [1]})
    beginning = prepare(job_of("Lora"), tmp_path)
    assert beginning.checkpoint == "000001"
    assert beginning.engine is not None
    assert beginning.engine["elapsed_seconds"] == 7.0
    assert checkpoint_names(tmp_path) == ["000001"]
    assert (tmp_path / "000003.broken").is_dir()


def test_an_engine_at_other_versions_sends_it_to_the_checkpoint_before(tmp_path: Path) -> None:
    begun(job_of("Lora"), tmp_path, {}, {"versions": [1, 0]})
    assert prepare(job_of("Lora"), tmp_path).checkpoint == "000001"


def test_where_no_engine_can_be_read_nothing_begins_anew(tmp_path: Path) -> None:
    begun(job_of("Lora"), tmp_path, {"elapsed_seconds": "soon"})
    with pytest.raises(SyncerError, match="no checkpoint is usable"):
        prepare(job_of("Lora"), tmp_path)
    assert checkpoint_names(tmp_path) == ["000001"]


def test_the_engine_of_a_later_version_is_refused_and_left_where_it_is(tmp_path: Path) -> None:
    begun(job_of("Lora"), tmp_path, {}, {"surprise": 1})
    with pytest.raises(SyncerError, match=r"000002: EngineState\.surprise is 1: .*; use the version of diloco that"):
        prepare(job_of("Lora"), tmp_path)
    assert checkpoint_names(tmp_path) == ["000001", "000002"]
