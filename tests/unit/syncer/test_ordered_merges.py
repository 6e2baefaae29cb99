"""Merges that the engine orders: one at a time, beside checkpoints, recorded, and what becomes of their results."""

import asyncio
import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from diloco.core.engine import actions
from diloco.core.engine.actions import Merge
from diloco.core.engine.events import LeftOut, Merged
from diloco.core.merge.fragment_merge import in_this_thread
from diloco.syncer.disk.checkpoint_names import checkpoint_names
from diloco.syncer.disk.payload_files import read_payload
from diloco.syncer.peers.inbox import PushRefusedError
from diloco.syncer.reporting.metrics import SyncerMetrics
from diloco.syncer.store import digest_of
from diloco.wire.messages import PushKey
from tests.support.syncer_peers import BESIDE as B
from tests.support.syncer_peers import WHO as A
from tests.support.syncer_peers import settle
from tests.unit.syncer.executor_scene import Scene, numel_of, push_of, scene

INFINITE = float("inf")


async def merged(on: Scene, fragment: int = 0, version: int = 1, value: float = 0.5) -> Merged:
    """A merge is ordered, and the engine learns how it ended."""
    on.order(on.merge_of(fragment, version, value))
    return await on.told(Merged)


def values_of(on: Scene, fragment: int = 0) -> torch.Tensor:
    return on.store.current(fragment).parameters


async def test_a_merge_becomes_the_current_version_as_the_engine_learns_of_it(on: Scene) -> None:
    told = await merged(on)
    assert on.store.versions == (1, 0)
    assert torch.equal(values_of(on), torch.full((10,), -0.5))
    digest = digest_of(values_of(on))
    assert on.store.current(0).digest == digest
    assert (told.fragment, told.version, told.digest, told.failed) == (0, 1, digest.hex(), False)
    assert told.left_out == ()
    assert on.count("diloco_merge_seconds_count") == 1


async def test_merges_ordered_together_are_made_one_upon_the_other(on: Scene) -> None:
    on.order(on.merge_of(0, 1, 0.5), on.merge_of(0, 2, 0.25), on.merge_of(1, 1, 4.0))
    told = [await on.told(Merged) for _ in range(3)]
    assert [(one.fragment, one.version) for one in told] == [(0, 1), (0, 2), (1, 1)]
    assert torch.equal(values_of(on), torch.full((10,), -0.75))
    assert torch.equal(values_of(on, 1), torch.full((6,), -4.0))
    await settle()
    await merged(on, 0, 3, 1.0)
    assert torch.equal(values_of(on), torch.full((10,), -1.75))
    await settle()
    assert not on.engine_loop.failed.done()


async def test_after_a_merge_its_version_is_served_and_no_longer_wanted(on: Scene) -> None:
    late = PushKey(B, 1, 0, 1, 1)
    on.inbox.ask(late)
    pulls = [asyncio.ensure_future(on.posted.next_version(A, 1, fragment)) for fragment in (0, 1)]
    await merged(on)
    await settle()
    assert [pull.done() for pull in pulls] == [True, False]
    assert pulls[0].result() is None
    assert on.inbox.held_bytes == 0
    with pytest.raises(PushRefusedError, match="not requested, or no longer is"):
        on.inbox.open(push_of(late), lambda: None)
    pulls[1].cancel()


async def test_a_merge_that_ends_after_the_job_changes_nothing(on: Scene) -> None:
    on.order(on.merge_of(0, 1, 0.5))
    on.engine.finished = True
    on.order(actions.Checkpoint("the job is over"))
    await on.checkpointer.idle()
    assert on.captured == [("the job is over", (0, 0))]
    assert on.store.versions == (0, 0)
    assert on.engine.told.empty()


async def test_a_checkpoint_waits_for_the_merge_and_goes_before_the_next(on: Scene) -> None:
    on.order(on.merge_of(0, 1, 0.5), on.merge_of(1, 1, 0.5), actions.Checkpoint("it is due"))
    assert on.captured == []
    await on.told(Merged)
    await on.told(Merged)
    await on.checkpointer.idle()
    assert on.captured == [("it is due", (1, 0))]
    assert checkpoint_names(on.checkpoints) == ["000001"]


async def test_an_error_in_a_merge_ends_the_loop(tmp_path: Path) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no memory")

    async with scene(tmp_path, run_blocks=fails) as on:
        with pytest.raises(RuntimeError, match="no memory"):
            await merged(on)


async def test_a_result_that_cannot_be_announced_ends_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(tmp_path) as on:
        monkeypatch.setattr(SyncerMetrics, "observe_curve", None)
        with pytest.raises(TypeError):
            await merged(on)


async def test_a_later_merge_that_cannot_begin_ends_the_loop(on: Scene) -> None:
    second = on.merge_of(1, 1, 0.5)
    on.inbox.drop(PushKey(A, 1, 1, 1, 1))
    on.order(on.merge_of(0, 1, 0.5), second)
    await on.told(Merged)
    with pytest.raises(KeyError):
        await on.told(Merged)


async def test_closing_waits_for_the_merge_and_ends_its_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    begun, done = threading.Event(), threading.Event()

    def slowly(one_pass: Any, blocks: range) -> None:
        begun.set()
        in_this_thread(one_pass, blocks)
        done.set()

    async with scene(tmp_path, run_blocks=slowly) as on:
        on.order(on.merge_of(0, 1, 0.5))
        await asyncio.to_thread(begun.wait)
        on.executor.close()
        assert done.is_set()
        assert not [one.name for one in set(threading.enumerate()) - before if one.name.startswith("merge")]


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_merge_that_fails_is_told_counted_and_named(on: Scene, caplog: pytest.LogCaptureFixture) -> None:
    assert (await merged(on, value=INFINITE)).failed
    assert on.count("diloco_merge_failures_total") == 1
    assert on.count("diloco_updates_not_encoded_total") == 0
    said = (
        "fragment 0 is not merged and stays at version 1: the outer gradient of r/p/0 holds values that are not finite"
    )
    assert warnings_in(caplog)[0] == said


async def test_members_left_out_are_told_counted_and_named(on: Scene, caplog: pytest.LogCaptureFixture) -> None:
    keys = [PushKey(learner, 1, 0, 1, 1) for learner in (A, B)]
    members = [on.arrived(key, value) for key, value in zip(keys, (1.0, INFINITE), strict=True)]
    on.order(Merge(0, 1, tuple(replace(member, weight=0.5) for member in members), "due"))
    told = await on.told(Merged)
    assert told.left_out == (LeftOut(B, "it holds values that are not finite", broken=True),)
    assert on.count("diloco_members_left_out_total") == 1
    assert on.count("diloco_merge_failures_total") == 0
    assert warnings_in(caplog) == [
        f"version 1 of fragment 0 is merged without {B}: it holds values that are not finite"
    ]


async def test_an_update_that_cannot_be_encoded_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with scene(tmp_path, downlink="Int8") as on:
        await merged(on)
        assert on.store.current(0).update is not None
        on.store.put(0, 1, torch.zeros(10), None, torch.full((10,), 3.4e38))  # more than Int8 can say
        await merged(on, 0, 2)
        assert on.store.current(0).update is None
        assert on.count("diloco_updates_not_encoded_total") == 1
    assert any("is sent whole because its update cannot be encoded" in line for line in warnings_in(caplog))


async def test_payloads_of_a_recorded_run_are_kept(tmp_path: Path) -> None:
    async with scene(tmp_path, record=True) as on:
        merge = on.merge_of(0, 1, 0.5)
        on.order(merge)
        await on.told(Merged)
        assert on.executor.record_problem == ""
        kept = read_payload(on.payloads, merge.members[0].digest, 4 * numel_of(0))
        assert torch.equal(kept.view(torch.float32), torch.full((10,), 0.5))


async def test_payloads_that_cannot_be_kept_are_said_once_and_merged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene(tmp_path, record=True) as on:
        on.payloads.write_text("in the way")
        on.order(*(on.merge_of(0, version, 0.25) for version in (1, 2, 3)))
        for _ in range(3):
            await on.told(Merged)
        assert torch.equal(values_of(on), torch.full((10,), -0.75))
        assert on.executor.record_problem == "Not a directory"
    (line,) = warnings_in(caplog)
    assert line.startswith("cannot record a payload; later merges cannot be replayed: ")
