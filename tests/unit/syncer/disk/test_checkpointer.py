"""When checkpoints are written, and which are not."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from diloco.core.fragments import TensorSpec, partition
from diloco.syncer.disk.checkpoint import CheckpointContent, Totals, checkpoint_names
from diloco.syncer.disk.checkpointer import Checkpointer
from diloco.syncer.reporting.metrics import SyncerMetrics
from diloco.syncer.store import FragmentStore

LAYOUT = partition([TensorSpec("a", (10,), embedding=False)], 1)


def test_a_state_that_cannot_be_read_back_replaces_no_checkpoint(tmp_path: Path) -> None:
    store = FragmentStore(LAYOUT)
    store.put(0, 0, torch.zeros(10))
    readable = {"readable": True}

    def capture(reason: str) -> CheckpointContent:
        return CheckpointContent("small", LAYOUT, 1, store.hold(), dict(readable), Totals(), reason)

    def check(content: CheckpointContent) -> None:
        if not content.engine["readable"]:
            raise ValueError("engine snapshot: loss: it is none")

    async def play() -> None:
        with ThreadPoolExecutor(1) as disk:
            checkpointer = Checkpointer(
                tmp_path, 2, capture=capture, release=store.release, check=check, metrics=SyncerMetrics()
            )
            checkpointer.start(disk)
            for wanted in (True, True, False, False, False):
                readable["readable"] = wanted
                checkpointer.request("a test")
                await checkpointer.idle()
            status = checkpointer.status
            assert (status.newest, status.failures) == ("000002", 3)
            assert status.problem == "it could not be read again: engine snapshot: loss: it is none"
            readable["readable"] = True
            assert await checkpointer.last()

    asyncio.run(play())
    assert checkpoint_names(tmp_path) == ["000002", "000003"]
