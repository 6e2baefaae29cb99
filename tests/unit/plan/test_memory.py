from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from diloco.plan.memory import Memory, Passes, gathered_bytes, memory
from diloco.plan.situation import Exchange
from tests.support.small_job import small_job

BILLION = 10**9
TEN_FRAGMENTS = (BILLION // 10,) * 10
TAPE_BYTES = (10 << 30) // 10
PINNED = 10 * 2**29 * 3
"""Bytes of three copies of all fragments, each of 0.4 GB, in pinned memory."""


def needed(
    *,
    numels: tuple[int, ...] = TEN_FRAGMENTS,
    frozen_bytes: int = 0,
    pool: dict[str, Any] | None = None,
    passes: Mapping[str, Passes] = MappingProxyType({}),
    **changes: Any,
) -> Memory:
    regions = [{"name": "west", "pools": [{"name": "a", "learners": 2, "batchSize": 16, **(pool or {})}]}]
    sync = {"fragments": len(numels), "interval": 24} | changes.pop("sync", {})
    spec = small_job(**{"model": {"entrypoint": "mine:make"}, "regions": regions, "sync": sync} | changes)
    return memory(spec, Exchange.of(spec.sync, numels), 2, frozen_bytes, passes)


def test_memory_is_counted_by_what_the_job_keeps() -> None:
    billions = (20, 8, 24, 12, 48)
    device, moments, syncer, checkpoint, disk = (BILLION * one for one in billions)
    host = moments + PINNED
    assert needed() == Memory(device, None, host, syncer + 2 * 200 * 10**6, checkpoint, disk + TAPE_BYTES)
    encoded = needed(sync={"compression": "Int8", "downlink": "Int8"})
    assert (encoded.host_bytes, encoded.checkpoint_bytes) == (16 * BILLION + PINNED, 16 * BILLION)
    assert needed(sync={"averageLast": 0}).checkpoint_bytes == 8 * BILLION
    training = {"tokens": 100_000, "sequenceLength": 16, "batchSize": 4, "optimizer": {"type": "Muon"}}
    assert needed(training=training).device_bytes == 16 * BILLION
    adapted = needed(numels=(10**6,) * 10, frozen_bytes=8 * BILLION)
    assert adapted.device_bytes == 8 * BILLION + 20 * 10**7
    assert adapted.host_bytes == adapted.syncer_bytes == 8 * BILLION + 4 * 10**7


def test_what_the_passes_hold_decides_which_pool_needs_most() -> None:
    pools = [{"name": "a"}, {"name": "b", "processesPerNode": 2, "batchSize": 16}]
    passes = {"west/a": Passes(8, 10), "west/b": Passes(8, 11 * BILLION, 10)}
    spec = small_job(model={"entrypoint": "mine:make"}, regions=[{"name": "west", "pools": pools}])
    made = memory(spec, Exchange.of(spec.sync, TEN_FRAGMENTS), 2, 0, passes)
    assert (made.device_bytes, made.passes) == (10 * BILLION, passes["west/b"])
    assert made.step_bytes == 21 * BILLION + 10


def test_fsdp_has_what_is_outside_of_blocks_and_two_blocks_whole() -> None:
    # In BF16: parameters outside and as much of gradients, two blocks and a block's gradient; that also in f32.
    assert gathered_bytes(1000, 100, 2) == 2 * 1000 + 2 * 1000 + 2 * 2 * 100 + 2 * 100 + 4 * 100


@pytest.mark.parametrize(
    ("syncer", "checkpoints"),
    [({"maxCheckpoints": 1}, 4), ({"maxCheckpoints": 5}, 6), ({"backup": {"url": "/kept"}}, 5)],
)
def test_the_syncers_disk_holds_two_checkpoints_more_while_one_is_written(
    syncer: dict[str, Any], checkpoints: int
) -> None:
    assert needed(syncer=syncer).disk_bytes == checkpoints * 12 * BILLION + TAPE_BYTES


@pytest.mark.parametrize(
    ("pool", "device", "host"),
    [
        ({"processesPerNode": 8}, 20 / 8, 12),
        ({"processesPerNode": 8, "nodesPerLearner": 2}, 20 / 16, 12 / 2),
        ({"processesPerNode": 8, "nodesPerLearner": 2, "parallelism": "HSDP"}, 20 / 8, 12),
        ({"processesPerNode": 2, "parallelism": "DDP"}, 20, 2 * 12),
    ],
    ids=["on one node", "on two nodes", "each node the whole", "each the whole"],
)
def test_processes_of_a_learner_share_the_model(pool: dict[str, Any], device: float, host: float) -> None:
    made = needed(pool=pool)
    assert (made.device_bytes, made.host_bytes) == (device * BILLION, host * BILLION + PINNED)
    assert made.syncer_bytes == needed().syncer_bytes


def test_frozen_parameters_are_shared_too() -> None:
    assert needed(pool={"processesPerNode": 2}, frozen_bytes=8 * BILLION).device_bytes == (20 + 8) * BILLION / 2
