"""What a syncer begins with: the newest checkpoint that it can go on from."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from diloco.core.engine import Engine
from diloco.core.options import EngineOptions
from diloco.spec import DiLoCoJob
from diloco.syncer.disk.checkpoint import CheckpointContent, checkpoint_names, write_checkpoint
from diloco.syncer.errors import SyncerError
from diloco.syncer.prepare import prepare
from tests.support.small_manifest import SMALL_MANIFEST

JOB = DiLoCoJob.model_validate(yaml.safe_load(SMALL_MANIFEST))


def checkpoints_of(directory: Path, *changes: dict[str, Any]) -> None:
    """A checkpoint of a job that has just begun for each of ``changes`` to the engine's snapshot."""
    beginning = prepare(JOB, directory)
    layout = beginning.layout
    snapshot = Engine(EngineOptions.from_job(JOB, layout), 1).snapshot(0.0)
    store, outer = beginning.store, beginning.outer
    content = CheckpointContent(JOB.metadata.name, layout, 1, store.hold(), snapshot, outer, "a test")
    for change in changes:
        write_checkpoint(directory, replace(content, engine=snapshot | change))


def test_an_engine_that_cannot_be_read_sends_it_to_the_checkpoint_before(tmp_path: Path) -> None:
    checkpoints_of(tmp_path, {"elapsed_seconds": 7.0}, {"elapsed_seconds": "soon"}, {"versions": [1]})
    beginning = prepare(JOB, tmp_path)
    assert beginning.checkpoint == "000001"
    assert beginning.engine is not None
    assert beginning.engine["elapsed_seconds"] == 7.0
    assert checkpoint_names(tmp_path) == ["000001"]
    assert (tmp_path / "000003.broken").is_dir()


def test_where_no_engine_can_be_read_nothing_begins_anew(tmp_path: Path) -> None:
    checkpoints_of(tmp_path, {"elapsed_seconds": "soon"})
    with pytest.raises(SyncerError, match="no checkpoint is usable"):
        prepare(JOB, tmp_path)
    assert checkpoint_names(tmp_path) == ["000001"]


def test_the_engine_of_a_later_version_is_refused_and_left_where_it_is(tmp_path: Path) -> None:
    checkpoints_of(tmp_path, {}, {"surprise": 1})
    with pytest.raises(SyncerError, match=r"000002: engine snapshot: surprise: .*; use the version of diloco that"):
        prepare(JOB, tmp_path)
    assert checkpoint_names(tmp_path) == ["000001", "000002"]
