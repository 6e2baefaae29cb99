"""When backups are made: beside training, again after a failure, and to the end of a job."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from diloco.runtime.object_store import ObjectStore, StoreError
from diloco.spec.backup import Backup
from diloco.syncer.backup.backups import LAST_ATTEMPTS, LAST_SECONDS, STUCK_SECONDS, Backups
from diloco.syncer.backup.manifest import complete
from tests.support.backups import Trained, folder_store
from tests.support.hand_clock import HandClock


class Checkpoints:
    """Stands for the checkpointer: what is newest, and what is held."""

    def __init__(self, newest: str) -> None:
        self.newest = newest
        self.busy = False
        self.held = ""

    def hold(self, name: str) -> None:
        self.held = name


class Scene:
    """Backups of a training into a folder, and a store that fails on demand."""

    def __init__(self, tmp_path: Path) -> None:
        self.trained = Trained(tmp_path / "s")
        self.clock = HandClock()
        self.checkpoints = Checkpoints(self.trained.checkpoint(1.0))
        self.store = folder_store(tmp_path / "kept")
        self.failure: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.model = tmp_path / "s" / "model.safetensors"
        self.backups = Backups(
            Backup(url="/kept", every_seconds=600, max_backups=2),
            self.trained.owner,
            self.trained.checkpoints,
            self.model,
            self.checkpoints,  # type: ignore[arg-type]  # what is used of it
            open_folder=self._open,
            clock=self.clock,
        )

    def _open(self, url: str, endpoint: str | None) -> ObjectStore:
        del url, endpoint
        self.gate.wait(60)
        if self.failure is not None:
            raise self.failure
        return self.store

    @property
    def uploaded(self) -> list[str]:
        return [name.what for name in complete(self.store.names())]

    def is_settled(self) -> bool:
        return self.backups.settled

    def settle(self) -> None:
        """Let what is due be uploaded, or fail."""
        self.backups.tick()
        self.until(lambda: not self.backups.status.uploading)

    def until(self, true: Callable[[], bool]) -> None:
        for _ in range(6000):
            if true():
                return
            time.sleep(0.01)
            self.backups.tick()
        pytest.fail("it does not come about")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_the_first_is_made_at_once_and_the_next_when_due(scene: Scene) -> None:
    scene.settle()
    assert scene.uploaded == ["000001"]
    scene.checkpoints.newest = scene.trained.checkpoint(2.0)
    scene.clock.now += 599.0
    scene.settle()
    assert scene.uploaded == ["000001"]
    assert scene.backups.status.age_seconds == 599.0
    scene.clock.now += 1.0
    scene.settle()
    assert scene.uploaded == ["000001", "000002"]
    assert scene.backups.status.age_seconds == 0.0


def test_a_checkpoint_is_held_while_it_is_uploaded(scene: Scene) -> None:
    scene.gate.clear()
    scene.checkpoints.busy = True
    scene.backups.tick()
    assert not scene.backups.status.uploading
    scene.checkpoints.busy = False
    scene.backups.tick()
    assert (scene.checkpoints.held, scene.backups.status.uploading) == ("000001", True)
    scene.gate.set()
    scene.settle()
    assert scene.checkpoints.held == ""


def test_a_failure_is_told_and_tried_again_ever_less_often(scene: Scene) -> None:
    scene.failure = StoreError("s3://kept: cannot be listed (access denied)")
    for failures, wait in enumerate((5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0), start=1):
        scene.settle()
        assert (scene.backups.status.failures, scene.backups.status.problem) == (failures, str(scene.failure))
        scene.clock.now += wait - 1.0
        scene.settle()
        assert scene.backups.status.failures == failures
        scene.clock.now += 1.0
    scene.failure = None
    scene.settle()
    assert (scene.backups.status.problem, scene.uploaded) == ("", ["000001"])


def test_an_upload_that_moves_nothing_is_told(scene: Scene) -> None:
    scene.gate.clear()
    scene.backups.tick()
    scene.clock.now += STUCK_SECONDS
    assert "the upload has moved no byte for more than" in scene.backups.status.problem
    scene.gate.set()
    scene.settle()
    assert scene.backups.status.problem == ""


def test_the_end_is_settled_once_checkpoint_and_model_are_uploaded(scene: Scene) -> None:
    scene.settle()
    scene.checkpoints.newest = scene.trained.checkpoint(2.0)
    scene.model.write_bytes(b"a model")
    assert not scene.is_settled()
    scene.backups.ended()
    scene.until(lambda: scene.backups.settled)
    assert scene.uploaded == ["000001", "000002", "model"]


def test_the_end_waits_for_a_store_that_is_away_but_not_for_ever(scene: Scene) -> None:
    scene.settle()
    scene.failure, began = StoreError("away"), scene.clock.now
    scene.backups.ended()
    for _ in range(LAST_ATTEMPTS - 1):
        scene.settle()
        assert not scene.is_settled()
        scene.clock.now += 300.0
    scene.settle()
    assert scene.is_settled()
    assert scene.clock.now - began >= LAST_SECONDS
    assert scene.backups.status.problem == "away"


def test_the_end_waits_for_an_upload_for_as_long_as_it_moves(scene: Scene) -> None:
    scene.model.write_bytes(b"a model")
    scene.gate.clear()
    scene.backups.ended()
    scene.backups.tick()
    assert scene.backups._upload is not None
    for _ in range(3):
        scene.clock.now += LAST_SECONDS - 1.0
        scene.backups.tick()
        assert not scene.is_settled()
        scene.backups._upload.moved_at = scene.clock.now
    scene.gate.set()
    scene.until(lambda: scene.backups.settled)
    assert scene.uploaded == ["000001", "model"]


def test_a_long_upload_that_fails_at_the_end_is_tried_again(scene: Scene) -> None:
    scene.model.write_bytes(b"a model")
    scene.gate.clear()
    scene.backups.ended()
    scene.backups.tick()
    scene.clock.now += 2 * LAST_SECONDS
    assert scene.backups._upload is not None
    scene.backups._upload.moved_at = scene.clock.now
    scene.failure = StoreError("away for a moment")
    scene.gate.set()
    scene.settle()
    assert not scene.is_settled()
    scene.failure = None
    scene.clock.now += 5.0
    scene.until(lambda: scene.backups.settled)
    assert scene.uploaded == ["000001", "model"]


def test_the_end_does_not_wait_for_an_upload_that_moves_nothing(scene: Scene) -> None:
    scene.gate.clear()
    scene.backups.ended()
    scene.backups.tick()
    scene.clock.now += LAST_SECONDS
    scene.backups.tick()
    assert scene.is_settled()
    scene.gate.set()


def test_an_upload_is_not_waited_for_when_the_process_stops(scene: Scene) -> None:
    scene.gate.clear()
    scene.backups.tick()
    scene.backups.close()
    scene.gate.set()
    scene.until(lambda: not scene.backups.status.uploading)
    assert scene.uploaded == []
    assert scene.backups.status.problem == ""
