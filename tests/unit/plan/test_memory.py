from typing import Any

import pytest

from diloco.plan.fit.situation import Exchange
from diloco.plan.memory import Memory, memory
from tests.support.small_job import small_job

BILLION = 10**9
TEN_FRAGMENTS = (BILLION // 10,) * 10
TAPE_BYTES = (10 << 30) // 10


def needed(
    *,
    numels: tuple[int, ...] = TEN_FRAGMENTS,
    frozen_bytes: int = 0,
    pool: dict[str, Any] | None = None,
    **changes: Any,
) -> Memory:
    regions = [{"name": "west", "pools": [{"name": "a", "learners": 2, "batchSize": 16, **(pool or {})}]}]
    sync = {"fragments": len(numels), "interval": 24} | changes.pop("sync", {})
    spec = small_job(**{"model": {"entrypoint": "mine:make"}, "regions": regions, "sync": sync} | changes)
    return memory(spec, Exchange.of(spec.sync, numels), 2, frozen_bytes)


def test_memory_is_counted_by_what_the_job_keeps() -> None:
    billions = (20, 20, 16, 8, 24)
    device, host, syncer, checkpoint, disk = (BILLION * one for one in billions)
    assert needed() == Memory(device, host, syncer + 2 * 200 * 10**6, checkpoint, disk + TAPE_BYTES)
    encoded = needed(sync={"compression": "Int8", "downlink": "Int8"})
    assert (encoded.host_bytes, encoded.checkpoint_bytes) == (28 * BILLION, 12 * BILLION)
    training = {"tokens": 100_000, "sequenceLength": 16, "batchSize": 4, "optimizer": {"type": "Muon"}}
    assert needed(training=training).device_bytes == 16 * BILLION
    adapted = needed(numels=(10**6,) * 10, frozen_bytes=8 * BILLION)
    assert adapted.device_bytes == 8 * BILLION + 20 * 10**7
    assert adapted.host_bytes == adapted.syncer_bytes == 8 * BILLION + 4 * 10**7


@pytest.mark.parametrize(
    ("syncer", "checkpoints"),
    [({"maxCheckpoints": 1}, 3), ({"maxCheckpoints": 5}, 5), ({"backup": {"url": "/kept"}}, 4)],
)
def test_the_syncers_disk_holds_one_checkpoint_more_while_it_is_written(
    syncer: dict[str, Any], checkpoints: int
) -> None:
    assert needed(syncer=syncer).disk_bytes == checkpoints * 8 * BILLION + TAPE_BYTES


@pytest.mark.parametrize(
    ("pool", "device", "host"),
    [
        ({"processesPerNode": 8}, 20 / 8, 12 + 12),
        ({"processesPerNode": 8, "nodesPerLearner": 2}, 20 / 16, 12 + 12 / 2),
        ({"processesPerNode": 8, "nodesPerLearner": 2, "parallelism": "HSDP"}, 20 / 8, 12 + 12),
        ({"processesPerNode": 2, "parallelism": "DDP"}, 20, 12 + 2 * 12),
    ],
    ids=["on one node", "on two nodes", "each node the whole", "each the whole"],
)
def test_processes_of_a_learner_share_the_model(pool: dict[str, Any], device: float, host: float) -> None:
    made = needed(pool=pool)
    assert (made.device_bytes, made.host_bytes) == (device * BILLION, host * BILLION)
    assert made.syncer_bytes == needed().syncer_bytes


def test_frozen_parameters_are_shared_too() -> None:
    assert needed(pool={"processesPerNode": 2}, frozen_bytes=8 * BILLION).device_bytes == (20 + 8) * BILLION / 2
