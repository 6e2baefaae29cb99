"""A process that is killed anywhere in a checkpoint, or in the deletion of old ones, goes on from a whole one."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco.core.fragments import TensorSpec, partition
from diloco.spec.outer_choice import DILOCO, OuterChoice
from diloco.syncer.disk.checkpoint import CheckpointContent, SavedCheckpoint, newest_checkpoint, write_checkpoint
from diloco.syncer.disk.checkpoint_names import checkpoint_names, prune_checkpoints
from diloco.syncer.store import FragmentStore
from tests.support.examples import examples

FRAGMENTS = 4
LAYOUT = partition([TensorSpec(f"t{i}", (8,), embedding=False) for i in range(FRAGMENTS)], FRAGMENTS)
OUTER = OuterChoice(optimizer=DILOCO, reason="it lasts")
TURNS = st.lists(st.sets(st.integers(0, FRAGMENTS - 1)), min_size=1, max_size=6)
"""Which fragments are merged before each checkpoint."""


class Life:
    """A process that writes checkpoints into a folder; each value is its fragment's version."""

    def __init__(self, folder: Path, *, residuals: bool) -> None:
        self.folder, self.store = folder, FragmentStore(LAYOUT, residuals=residuals)
        for fragment in range(FRAGMENTS):
            self.store.put(fragment, 0, *(torch.zeros(8) for _ in range(2 + residuals)))
        self.saved: SavedCheckpoint | None = None
        self.written = [self.store.versions]

    def checkpoint(self, merged: set[int]) -> None:
        for fragment in merged:
            made, version = self.store.target(fragment), self.store.current(fragment).version + 1
            for values in (made.merge.parameters, made.merge.momentum, made.rest):
                if values is not None:
                    values.fill_(float(version))
            self.store.commit(fragment, version, made, b"")
        image = self.store.hold()
        now = CheckpointContent("small", LAYOUT, 1, image, {}, OUTER, "a test", base=self.saved)
        self.written.append(self.store.versions)
        self.saved = write_checkpoint(self.folder, now)
        self.store.release()
        prune_checkpoints(self.folder, 1, frozenset())


def versions_in(folder: Path) -> tuple[int, ...]:
    """Of the newest checkpoint, each of whose values has to be its fragment's version."""
    loaded, broken = newest_checkpoint(folder, LAYOUT, "small", lambda *_: None)
    assert not broken
    if loaded is None:
        return (0,) * FRAGMENTS
    for tensors, version in zip(loaded.fragments, loaded.manifest.versions, strict=True):
        assert all(bool((values == version).all()) for values in tensors if values is not None)
    return loaded.manifest.versions


@contextmanager
def killed_anywhere(folder: Path, copies: Path) -> Iterator[list[Path]]:
    """Copies of the folder as a kill before or after each change of it would leave it."""
    made: list[Path] = []

    def copied() -> None:
        made.append(copies / str(len(made)))
        shutil.copytree(folder, made[-1])

    def watched(plain: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any, **named: Any) -> Any:
            copied()
            return plain(*arguments, **named)

        return change

    with ExitStack() as stack:
        for name in ("fsync", "link", "rename", "rmdir", "unlink"):
            stack.enter_context(mock.patch.object(os, name, watched(getattr(os, name))))
        yield made


@given(TURNS, st.booleans(), st.data())
@settings(max_examples=examples(20))
def test_a_kill_anywhere_leaves_the_last_checkpoint_or_the_one_before(
    turns: list[set[int]], residuals: bool, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "checkpoints"
        folder.mkdir()
        life = Life(folder, residuals=residuals)
        for merged in turns[:-1]:
            life.checkpoint(merged)
        with killed_anywhere(folder, Path(name) / "copies") as copies:
            life.checkpoint(turns[-1])
        assert versions_in(folder) == life.written[-1]
        for copy in copies:
            assert versions_in(copy) in life.written[-2:]
        after = Life(data.draw(st.sampled_from(copies)), residuals=residuals)
        after.checkpoint({0})
        assert versions_in(after.folder) == (1, *[0] * (FRAGMENTS - 1))
        assert sorted(path.name for path in after.folder.iterdir()) == sorted(checkpoint_names(after.folder))
