"""When checkpoints are written, which are not, and which are kept: in virtual time, on a real disk."""

import asyncio
import errno
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client import generate_latest

from diloco.core.fragments import TensorSpec, partition
from diloco.spec.outer_choice import DILOCO, OuterChoice
from diloco.syncer.disk.checkpoint import CheckpointContent, SavedCheckpoint, load_checkpoint, write_checkpoint
from diloco.syncer.disk.checkpoint_names import checkpoint_names
from diloco.syncer.disk.checkpointer import DUE, Checkpointer
from diloco.syncer.reporting.metrics import SyncerMetrics
from diloco.syncer.store import FragmentStore
from tests.support.damage import flip
from tests.support.machine_limits import block, unblock

pytestmark = pytest.mark.virtual_time

OUTER = OuterChoice(optimizer=DILOCO, reason="it lasts")
LAYOUT = partition([TensorSpec("a", (10,), embedding=False)], 1)


class Disk:
    """A folder of checkpoints, and the state that they are made of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine: dict[str, Any] = {"readable": True}
        self.metrics = SyncerMetrics()
        self.store = FragmentStore(LAYOUT)
        self.store.put(0, 0, torch.zeros(10))

        self.trains = True
        """Its fragment has changed before each capture."""
        self.base: Callable[[], SavedCheckpoint | None] = lambda: None

    @property
    def names(self) -> list[str]:
        return checkpoint_names(self.folder)

    def held(self) -> bool:
        """Whether momentum has to be copied because a checkpoint reads it."""
        return self.store.target(0).merge.momentum is not self.store.momentum(0)

    @asynccontextmanager
    async def checkpointer(self, keep: int = 2) -> AsyncIterator[Checkpointer]:
        with ThreadPoolExecutor(1) as threads:
            made = Checkpointer(
                self.folder,
                keep,
                threads,
                capture=self._capture,
                release=self.store.release,
                check=self._check,
                metrics=self.metrics,
                clock=asyncio.get_running_loop().time,
            )
            self.base = lambda: made.base
            yield made

    def reason(self, name: str) -> str:
        return load_checkpoint(self.folder, name, LAYOUT, "small").manifest.reason

    def _capture(self, reason: str) -> CheckpointContent:
        if self.trains:
            self.store.put(0, self.store.versions[0] + 1, torch.zeros(10))
        return CheckpointContent(
            "small", LAYOUT, 1, self.store.hold(), dict(self.engine), OUTER, reason, base=self.base()
        )

    def _check(self, content: CheckpointContent) -> None:
        if not content.engine["readable"]:
            raise ValueError("engine snapshot: loss: it is none")


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "checkpoints")


async def write(checkpointer: Checkpointer, times: int = 1) -> None:
    for _ in range(times):
        checkpointer.request("a test")
        await checkpointer.idle()


async def test_a_state_that_cannot_be_read_back_replaces_no_checkpoint(disk: Disk) -> None:
    async with disk.checkpointer() as checkpointer:
        for wanted in (True, True, False, False, False):
            disk.engine["readable"] = wanted
            await write(checkpointer)
        status = checkpointer.status
        assert (status.newest, status.failures) == ("000002", 3)
        assert status.problem == "it could not be read again: engine snapshot: loss: it is none"
        disk.engine["readable"] = True
        assert await checkpointer.last()
    assert disk.names == ["000002", "000003"]


async def test_the_status_says_how_old_the_newest_one_is(disk: Disk) -> None:
    async with disk.checkpointer() as checkpointer:
        assert not checkpointer.busy
        before = checkpointer.status
        assert (before.newest, before.age_seconds, before.failures, before.problem) == ("", None, 0, "")
        checkpointer.begin_with(write_checkpoint(disk.folder, disk._capture("it begins")))
        await asyncio.sleep(3.0)
        assert checkpointer.status.age_seconds == 3.0, "of one that was there: since this process began"
        await write(checkpointer)
        await asyncio.sleep(7.0)
        after = checkpointer.status
        assert (after.newest, after.age_seconds, after.failures, after.problem) == ("000002", 7.0, 0, "")


async def test_each_is_counted_with_the_time_that_it_took(disk: Disk) -> None:
    async with disk.checkpointer() as checkpointer:
        await write(checkpointer)
    page = generate_latest(disk.metrics.registry).decode().splitlines()
    assert "diloco_checkpoint_seconds_count 1.0" in page
    assert "diloco_checkpoint_seconds_sum 0.0" in page  # of virtual time


async def test_nothing_is_captured_while_a_merge_writes_momentum(disk: Disk) -> None:
    async with disk.checkpointer() as checkpointer:
        checkpointer.merge_begins()
        checkpointer.request("a test")
        assert checkpointer.busy
        await asyncio.sleep(5.0)
        assert not disk.held()
        checkpointer.merge_ended()
        assert disk.held()
        await checkpointer.idle()
        assert (checkpointer.busy, disk.held(), disk.names) == (False, False, ["000001"])


async def test_who_waits_for_it_goes_on_soon_after_a_merge(disk: Disk) -> None:
    async with disk.checkpointer() as checkpointer:
        loop = asyncio.get_running_loop()
        checkpointer.merge_begins()
        checkpointer.request("a test")
        loop.call_later(5.5, checkpointer.merge_ended)
        began = loop.time()
        await checkpointer.idle()
        assert 5.5 <= loop.time() - began < 5.6
        assert disk.names == ["000001"]


async def test_requests_during_a_write_become_one_more(disk: Disk) -> None:
    async with disk.checkpointer() as checkpointer:
        for reason in ("one", "two", "three"):
            checkpointer.request(reason)
        await checkpointer.idle()
        assert not checkpointer.busy
    assert [disk.reason(name) for name in disk.names] == ["one", "three"]


async def test_a_failed_write_is_told_until_one_succeeds(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    async with disk.checkpointer() as checkpointer:
        await write(checkpointer)
        block(disk.folder)
        await write(checkpointer)
        status = checkpointer.status
        assert (status.newest, status.failures, status.problem) == ("000001", 1, "Not a directory")
        assert not disk.held()
        unblock(disk.folder)
        await write(checkpointer)
        assert (checkpointer.status.newest, checkpointer.status.problem) == ("000002", "")
    assert "training continues, and the next checkpoint is tried when it is due" in caplog.text


async def test_after_the_newest_is_deleted_the_next_is_written_whole(disk: Disk) -> None:
    disk.trains = False
    async with disk.checkpointer() as checkpointer:
        await write(checkpointer, 2)
        shutil.rmtree(disk.folder / "000002")
        await write(checkpointer)
        assert checkpointer.status.failures == 1
        await write(checkpointer)
        assert checkpointer.status.problem == ""
    assert disk.reason(disk.names[-1]) == "a test"


async def test_an_error_that_nobody_foresaw_is_told_as_it_is(disk: Disk) -> None:
    async with disk.checkpointer() as checkpointer:
        disk.engine.clear()
        await write(checkpointer)
        assert (checkpointer.status.problem, checkpointer.status.failures) == ("KeyError('readable')", 1)
        disk.engine["readable"] = True
        await write(checkpointer)
        assert checkpointer.status.problem == ""


async def test_the_last_one_holds_the_state_at_the_stop(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    async with disk.checkpointer() as checkpointer:
        await write(checkpointer)
        assert await checkpointer.last()
        block(disk.folder)
        assert not await checkpointer.last()
    unblock(disk.folder)
    assert disk.reason("000002") == "the syncer stops"
    assert "no last checkpoint: " in caplog.text
    assert "a restart continues from checkpoint 000002" in caplog.text


async def test_a_last_one_that_does_not_end_is_given_up_after_two_minutes(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    async with disk.checkpointer() as checkpointer:
        loop = asyncio.get_running_loop()
        checkpointer.merge_begins()
        began = loop.time()
        assert not await checkpointer.last()
        assert loop.time() - began == 120.0
    assert "the last checkpoint takes longer than 120 s; giving up on it" in caplog.text


async def test_a_restart_gives_the_last_one_as_long_as_the_one_on_disk_needs(disk: Disk) -> None:
    found = disk.folder / "000001"
    found.mkdir(parents=True)
    with (found / "00000.safetensors").open("wb") as file:
        file.truncate(10_000_000_000)
    async with disk.checkpointer() as checkpointer:
        checkpointer.merge_begins()
        ending = asyncio.create_task(checkpointer.last())
        await asyncio.sleep(150)
        assert not ending.done(), "the merge has not ended yet"
        checkpointer.merge_ended()
        assert await ending


async def test_a_large_one_may_take_as_long_as_its_size_needs(disk: Disk) -> None:
    async with disk.checkpointer() as checkpointer:
        await write(checkpointer)
        assert (checkpointer.longest_seconds, disk.store.hold().size_bytes) == (120.0, 80)
        checkpointer._size_bytes = 10 * 10**9
        checkpointer.merge_begins()
        began = asyncio.get_running_loop().time()
        assert not await checkpointer.last()
        assert asyncio.get_running_loop().time() - began == 200.0


@pytest.mark.parametrize(("keep", "left"), [(1, ["000006"]), (2, ["000005", "000006"]), (4, [*"3456"])])
async def test_so_many_are_kept(disk: Disk, keep: int, left: list[str]) -> None:
    async with disk.checkpointer(keep) as checkpointer:
        await write(checkpointer, 6)
    assert disk.names == [name.zfill(6) for name in left]


@pytest.mark.parametrize(("keep", "left"), [(1, 2), (2, 2), (4, 3)])
async def test_old_ones_make_room_first_but_two_stay_on_a_full_disk(disk: Disk, keep: int, left: int) -> None:
    async with disk.checkpointer(6) as checkpointer:
        await write(checkpointer, 6)
    async with disk.checkpointer(keep) as checkpointer:
        (disk.folder / ".000007.part").write_text("in the way")
        await write(checkpointer)
        assert checkpointer.status.problem == "File exists"
    assert disk.names == ["000004", "000005", "000006"][-left:]


async def test_old_ones_that_cannot_be_deleted_are_no_failure(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with disk.checkpointer() as checkpointer:
            await write(checkpointer, 2)
            (disk.folder / "000001/manifest.json").unlink()
            (disk.folder / ".000001.part").write_text("in the way")
            await write(checkpointer)
            assert (checkpointer.status.newest, checkpointer.status.failures) == ("000003", 0)
    assert "old checkpoints could not be deleted" in caplog.text


@pytest.mark.parametrize("error", [errno.EXDEV, errno.ENOTSUP, errno.EPERM])
async def test_where_files_cannot_be_shared_they_are_copied(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def refused(*_: object) -> None:
        raise OSError(error, "no")

    monkeypatch.setattr("os.link", refused)
    async with disk.checkpointer() as checkpointer:
        await write(checkpointer)
        disk.trains = False
        await write(checkpointer, 2)
        assert (checkpointer.status.failures, checkpointer.status.newest) == (0, "000003")
        flip(disk.folder / "000003" / "00000.safetensors")
        await write(checkpointer)
        assert (checkpointer.status.failures, checkpointer.status.newest) == (1, "000004")
    assert disk.reason("000004") == "a test"


async def test_a_newest_one_that_cannot_be_read_stops_no_other(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "the disk fails here")

    async with disk.checkpointer() as checkpointer:
        await write(checkpointer)
        disk.trains = False
        monkeypatch.setattr("os.link", broken)
        await write(checkpointer, 2)
        assert (checkpointer.status.failures, checkpointer.status.newest) == (1, "000002")


async def test_the_last_one_is_written_though_the_one_before_is_gone(disk: Disk) -> None:
    async with disk.checkpointer() as checkpointer:
        await write(checkpointer)
        disk.trains = False
        shutil.rmtree(disk.folder / "000001")
        assert await checkpointer.last()
    assert len(disk.names) == 1


async def test_a_full_disk_is_left_alone_for_longer_each_time(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    async with disk.checkpointer() as checkpointer:
        assert checkpointer.pause_seconds == 0
        with monkeypatch.context() as on_a_full_disk:
            on_a_full_disk.setattr("diloco.syncer.disk.checkpointer.write_checkpoint", full)
            pauses = []
            for _ in range(6):
                await write(checkpointer)
                pauses.append(checkpointer.pause_seconds)
        assert pauses == [2, 4, 8, 16, 30, 30]
        await write(checkpointer)
        assert (checkpointer.pause_seconds, checkpointer.status.problem) == (0, "")


async def test_of_those_that_are_due_one_line_in_30_s_is_told(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    async with disk.checkpointer() as checkpointer:
        with caplog.at_level(logging.INFO):
            for reason in (DUE, DUE, "a learner is given up", DUE, "another one is given up"):
                await asyncio.sleep(10.0)
                checkpointer.request(reason)
                await checkpointer.idle()
    told = [line.rpartition(": ")[2] for line in caplog.messages]
    assert told == [DUE, "a learner is given up", DUE, "another one is given up"]
