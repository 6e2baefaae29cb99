"""An end whose model cannot be written."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from diloco.model import ModelError
from diloco.syncer.disk.exporter import Exporter


def test_a_model_that_cannot_be_built_is_said_once_and_not_claimed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[int] = []

    def write() -> None:
        tries.append(1)
        raise ModelError("model: has another base")

    async def export() -> Exporter:
        with ThreadPoolExecutor(1) as executor:
            exporter = Exporter(tmp_path / "model.safetensors", executor)
            exporter.begin(write)
            assert exporter._task is not None
            await exporter._task
            assert not exporter.busy
        return exporter

    assert not asyncio.run(export()).exported
    assert tries == [1]
    assert "model: has another base; retrying when the syncer restarts" in caplog.text
