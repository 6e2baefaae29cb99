"""What is put in place of the checkpoint: the fragments' bits, their momentum, the engine, and a checkpoint of all."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from diloco.spec.status.syncer import RecoveredStatus
from diloco.syncer.disk.checkpoint_names import checkpoint_names
from diloco.syncer.disk.directory import SyncerDirectory
from diloco.syncer.options import SyncerOptions
from diloco.syncer.prepare import StartState, prepare
from diloco.syncer.recovery import resume
from diloco.syncer.recovery.resume import Beginning
from diloco.syncer.recovery.tape_tail import TapeTail, read_tail
from tests.unit.syncer.recorded_run import RecordedRun
from tests.unit.syncer.recovery.test_tape_tail import make_job

pytestmark = pytest.mark.usefixtures("one_torch_thread")


class Scene:
    """A run that was killed after its checkpoint, and the next start."""

    def __init__(self, folder: Path, *, spoilt: frozenset[int] = frozenset(), steps: int = 24, **sync: Any) -> None:
        self.job = make_job(**sync)
        self.run = RecordedRun(folder, self.job)
        self.run.train(6)
        self.run.checkpoint()
        self.run.spoilt, self.run.spoilt_by, self.run.spoilt_fragments = spoilt, 1e37, 1
        self.run.train(steps)
        self.run.tape.close()
        self.directory = SyncerDirectory(folder)
        self.start = prepare(self.job, self.directory.checkpoints)
        tail = read_tail(self.directory.tape, "small", self.start)
        assert tail is not None
        self.tail: TapeTail = tail

    def restored(self, *fragments: int) -> tuple[StartState, RecoveredStatus]:
        """The next start, after learners have sent the newest versions of these fragments, and what it tells."""
        options = SyncerOptions(self.job, self.directory.root)
        work = resume._Restoring(Beginning(options, self.directory, self.start, 2, self.tail), self.tail)
        try:
            for fragment in fragments:
                made = self.tail.tail.made[fragment][-1]
                values = self.run.store.current(fragment).parameters.clone()
                asyncio.run(work._take(fragment, made, values))
            found = work.finished()
            assert found.recovered is not None
            return found, found.recovered
        finally:
            work.close()

    def same_bits(self, found: StartState, fragment: int) -> bool:
        return torch.equal(found.store.current(fragment).parameters, self.run.store.current(fragment).parameters) and (
            found.store.current(fragment).version == self.run.store.current(fragment).version
        )

    def momentum_error(self, found: StartState, fragment: int) -> float:
        expected = self.run.store.momentum(fragment)
        return float((found.store.momentum(fragment) - expected).norm() / expected.norm())


@pytest.fixture
def begin() -> Iterator[Callable[..., Scene]]:
    with ExitStack() as opened:

        def made(*arguments: Any, **more: Any) -> Scene:
            scene = Scene(*arguments, **more)
            opened.enter_context(scene.directory)
            return scene

        yield made


@pytest.mark.parametrize("downlink", ["F32", "Int8"])
def test_with_all_fragments_it_is_where_the_last_start_ended(
    begin: Callable[..., Scene], tmp_path: Path, downlink: str
) -> None:
    scene = begin(tmp_path, downlink=downlink)
    before = sum(scene.start.store.versions)
    found, recovered = scene.restored(0, 1, 2, 3)
    assert (recovered.lost, recovered.fragments) == (0, 4)
    assert recovered.restored == sum(scene.run.engine.versions) - before > 4
    assert all(scene.same_bits(found, fragment) for fragment in range(4))
    assert found.engine == scene.run.engine.snapshot(scene.run.now)
    again = prepare(scene.job, scene.directory.checkpoints)
    assert (again.checkpoint, again.epoch) == (found.checkpoint, 2) == ("000003", 2)
    assert again.engine == found.engine
    assert all(torch.equal(again.store.momentum(p), found.store.momentum(p)) for p in range(4))
    assert read_tail(scene.directory.tape, "small", again) is None  # nothing is missing any more


def test_the_momentum_is_exact_after_one_merge_and_near_after_several(
    begin: Callable[..., Scene], tmp_path: Path
) -> None:
    one, several = begin(tmp_path / "one", steps=10), begin(tmp_path / "several", steps=24)
    steps = {p: made[-1].steps for p, made in enumerate(one.tail.tail.made) if made}
    assert set(steps.values()) == {1}
    found, recovered = one.restored(*steps)
    assert recovered.estimated == 0
    assert all(one.momentum_error(found, p) < 1e-3 for p in steps)
    found, recovered = several.restored(0, 1, 2, 3)
    assert recovered.estimated == 4
    assert all(several.momentum_error(found, p) < 0.7 for p in range(4))  # noise without any common direction


def test_fragments_that_nobody_sent_stay_as_in_the_checkpoint(begin: Callable[..., Scene], tmp_path: Path) -> None:
    scene = begin(tmp_path)
    before = scene.start.store.versions
    found, recovered = scene.restored(1, 3)
    versions = found.store.versions
    assert [versions[p] == before[p] for p in range(4)] == [True, False, True, False]
    assert found.engine is not None
    assert found.engine["versions"] == list(versions)
    assert recovered.restored == sum(versions) - sum(before)
    assert recovered.restored + recovered.lost == sum(scene.run.engine.versions) - sum(before)
    assert prepare(scene.job, scene.directory.checkpoints).store.versions == versions


def test_without_any_fragment_the_checkpoint_stays(begin: Callable[..., Scene], tmp_path: Path) -> None:
    scene = begin(tmp_path)
    names = checkpoint_names(scene.directory.checkpoints)
    found, recovered = scene.restored()
    assert (found.checkpoint, found.engine) == (scene.start.checkpoint, scene.start.engine)
    assert recovered.restored == 0
    assert checkpoint_names(scene.directory.checkpoints) == names


def test_what_cannot_be_written_is_not_used(
    begin: Callable[..., Scene], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = begin(tmp_path)
    before = scene.start.store.versions

    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(resume, "write_checkpoint", full)
    found, recovered = scene.restored(0, 1, 2, 3)
    assert found.store.versions == before
    assert found.engine == prepare(scene.job, scene.directory.checkpoints).engine
    assert recovered.restored == 0


def test_versions_of_failed_merges_need_nobody(begin: Callable[..., Scene], tmp_path: Path) -> None:
    """The only learner's outer gradients are far too large: those versions have the values of the ones before."""
    scene = begin(tmp_path, spoilt=frozenset({3, 4, 6}), steps=24, learners=1)
    assert [one.steps for one in scene.tail.tail.made[0]][:4] == [0, 0, 1, 1]
    found, _ = scene.restored(*(p for p in range(4) if scene.tail.provable()[p]))
    assert found.store.versions == scene.run.engine.versions
    assert all(scene.same_bits(found, fragment) for fragment in range(4))
