"""The model of a job that is over: when it is written, tried again, and claimed to be there. In virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from diloco.model import ModelError, ModelInfo, export_model, load_model
from diloco.model.build import build_model, model_from_fragments
from diloco.model.export import info_of
from diloco.model.fragments import layout_of
from diloco.syncer.disk.exporter import Exporter, export
from tests.support import models_with_buffers
from tests.support.small_job import named_job, small_job
from tests.support.syncer_process import SmallJob
from tests.support.watched_disk import watch_disk

pytestmark = pytest.mark.virtual_time


class Model:
    """A file that is written as often as it takes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "model.safetensors"
        self.tries: list[float] = []
        self.errors: list[Exception] = []
        """What the next attempts end with."""

    def write(self) -> str:
        """Returns the file's digest."""
        self.tries.append(self.clock())
        if self.errors:
            raise self.errors.pop(0)
        self.path.write_text("new")
        return "0" * 64

    @asynccontextmanager
    async def exporter(self) -> AsyncIterator[Exporter]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.clock: Callable[[], float] = lambda: loop.time() - began
        with ThreadPoolExecutor(1) as executor:
            yield Exporter(self.path, executor)


def exported(folder: Path, path: Path, tokens: int) -> SmallJob:
    """Export a model of halves; returns its job."""
    job = SmallJob(folder)
    parameters = [torch.full((fragment.numel,), 0.5) for fragment in job.layout.fragments]
    export(job.job, job.layout, parameters, tokens, path)
    return job


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path)


async def ended(exporter: Exporter) -> None:
    await asyncio.sleep(60.0)
    assert not exporter.busy


async def test_before_the_end_there_is_nothing_to_write_or_to_stop(model: Model) -> None:
    async with model.exporter() as exporter:
        assert (exporter.busy, exporter.exported) == (False, False)
        exporter.cancel()


async def test_a_full_disk_is_tried_again_every_five_seconds(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    async with model.exporter() as exporter:
        model.errors = [OSError(28, "No space left on device")] * 3
        exporter.begin(model.write)
        await asyncio.sleep(14.0)
        assert (exporter.busy, exporter.exported) == (True, False)
        await ended(exporter)
        assert exporter.exported
    assert model.tries == [0.0, 5.0, 10.0, 15.0]
    assert "cannot export the model, retrying: [Errno 28] No space left on device" in caplog.text


async def test_attempts_end_when_the_syncer_does(model: Model) -> None:
    async with model.exporter() as exporter:
        model.errors = [OSError(28, "No space left on device")] * 9
        exporter.begin(model.write)
        await asyncio.sleep(7.0)
        exporter.cancel()
        await asyncio.sleep(60.0)
        assert (exporter.busy, exporter.exported) == (False, False)
    assert model.tries == [0.0, 5.0]


async def test_a_model_that_cannot_be_built_is_said_once_and_not_claimed(
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    async with model.exporter() as exporter:
        model.errors = [ModelError("model: has another base")] * 2
        exporter.begin(model.write)
        await ended(exporter)
        assert not exporter.exported
    assert model.tries == [0.0]
    assert "model: has another base; retrying when the syncer restarts" in caplog.text


async def test_the_model_of_an_end_that_was_undone_is_gone_at_once(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced = watch_disk(monkeypatch)

    async with model.exporter() as exporter:
        model.path.write_text("old")
        exporter.begin(model.write)
        assert not model.path.exists()
        assert forced == [("forced", model.path.parent.name, b"")]
        await ended(exporter)
    assert model.path.read_text() == "new"


@pytest.mark.parametrize(("there", "tokens"), [(True, 640), (True, 320), (False, 640)])
async def test_after_a_restart_it_is_written_unless_that_of_this_end_is_there(
    model: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, there: bool, tokens: int
) -> None:
    content = b"new"
    if there:
        exported(tmp_path, model.path, tokens)
    if there and tokens == 640:
        content = model.path.read_bytes()
    forced = watch_disk(monkeypatch)

    async with model.exporter() as exporter:
        exporter.resume(model.write, 640)
        await ended(exporter)
        assert exporter.exported
    assert model.path.read_bytes() == content
    # It may have been renamed into place just before a power cut.
    assert forced == [("forced", model.path.name, content), ("forced", model.path.parent.name, b"")]


def test_what_is_exported_can_be_loaded_and_says_where_it_is_from(tmp_path: Path) -> None:
    job = exported(tmp_path, tmp_path / "model.safetensors", 640)
    loaded = load_model(tmp_path / "model.safetensors")
    assert (loaded.info.job, loaded.info.tokens, loaded.info.sequence_length) == ("small", 640, 16)
    assert loaded.info.layout_digest == job.layout.digest
    assert all(bool((one == 0.5).all()) for one in loaded.module.parameters())


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert {name: one.dtype for name, one in ours.items()} == {name: one.dtype for name, one in theirs.items()}
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(
    ("name", "builds"),
    [("tied", False), ("Lora", True), ("looks_at_values", True)],
)
def test_the_file_is_that_of_the_model_which_is_built_only_if_it_must_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, *, builds: bool
) -> None:
    model = {"entrypoint": f"tests.support.models_with_buffers:{name}"}
    job = named_job("made", small_job(model=model, sync={"fragments": 2, "interval": 2}))
    layout = layout_of(build_model(job.spec), 2)
    parameters = [torch.randn(fragment.numel) for fragment in layout.fragments]
    info = ModelInfo("made", job.spec.model, 0, job.spec.training.sequence_length, layout.digest, 7)
    export_model(model_from_fragments(job.spec, layout, parameters), tmp_path / "built", info)
    built: list[str] = []
    make: Callable[[], torch.nn.Module] = getattr(models_with_buffers, name)

    def counted() -> torch.nn.Module:
        module = make()
        built.extend([name] * (not next(module.parameters()).is_meta))
        return module

    monkeypatch.setattr(models_with_buffers, name, counted)
    export(job, layout, parameters, 7, tmp_path / "exported")
    assert_same(load_file(tmp_path / "exported"), load_file(tmp_path / "built"))
    assert info_of(tmp_path / "exported") == info
    assert bool(built) == builds
