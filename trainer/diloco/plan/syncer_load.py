"""What the syncer moves and computes, and from which step times on it can. Arithmetic from measured rates; pure."""

from dataclasses import dataclass, replace
from typing import Final

from diloco.core.sizes import F32
from diloco.plan.links import FULL
from diloco.plan.situation import DOWNLINKS, UPLINKS, Exchange, Situation

MERGE_BYTES_PER_SECOND: Final = 5e9
"""f32 bytes per second, over all learners, of a merge on two cores, measured (`benchmarks/merge.py`)."""
WIRE_BYTES_PER_SECOND: Final = 2e9
"""Payload that a syncer receives and sends, together, under mutual TLS, measured (`benchmarks/wire.py`) where one TCP
connection carries 8.5 GB/s, with both ends on two cores, so that each has one."""
_MERGE_CORES: Final = 2


@dataclass(frozen=True, slots=True)
class StepLimit:
    """The shortest inner steps for which a syncer carries the exchange in some encoding."""

    compression: str
    downlink: str
    step_seconds: float


@dataclass(frozen=True, slots=True)
class SyncerLoad:
    """What the syncer does."""

    limits: tuple[StepLimit, ...]
    """With the job's own encodings; then with the narrowest, if those are others: TopK only of a job that has it."""
    received_bytes_per_second: float | None
    """None: no step time is known; the same below."""
    sent_bytes_per_second: float | None
    cores: float | None
    """That it keeps busy, on average."""

    @property
    def enough(self) -> bool:
        """Whether it moves as much as is due, as far as is known."""
        moved = (self.received_bytes_per_second or 0.0) + (self.sent_bytes_per_second or 0.0)
        return moved <= WIRE_BYTES_PER_SECOND


def syncer_load(situation: Situation) -> SyncerLoad:
    """The load of a situation's syncer, in steps of the quorum's slowest learner."""
    exchange = situation.exchange
    compression, downlink = exchange.compression, exchange.downlink
    narrowest = (
        compression if compression == "TopK" else UPLINKS[-1],
        downlink if downlink == "TopK" else DOWNLINKS[-1],
    )
    ways = dict.fromkeys(((compression, downlink), narrowest))
    limits = tuple(StepLimit(*way, _shortest(situation, *way)) for way in ways)
    if (step_seconds := situation.quorum_step_seconds) is None:
        return SyncerLoad(limits, None, None, None)
    up, down = (one / step_seconds for one in _step_bytes(exchange, situation.learners))
    merged = situation.learners * F32.payload_bytes(sum(exchange.numels)) / exchange.interval / step_seconds
    cores = (up + down) / WIRE_BYTES_PER_SECOND + merged / MERGE_BYTES_PER_SECOND * _MERGE_CORES
    return SyncerLoad(limits, up, down, cores)


def _shortest(situation: Situation, compression: str, downlink: str) -> float:
    exchange = replace(situation.exchange, compression=compression, downlink=downlink)
    up, down = _step_bytes(exchange, situation.learners)
    link = situation.syncer
    over_link = max(up / link.up_bytes_per_second, down / link.down_bytes_per_second) / FULL
    return max((up + down) / WIRE_BYTES_PER_SECOND, over_link)


def _step_bytes(exchange: Exchange, learners: int) -> tuple[float, float]:
    """What all learners send and receive in an inner step, on average."""
    cycles = learners / exchange.interval
    return cycles * sum(exchange.up_bytes), cycles * sum(exchange.down_bytes)
