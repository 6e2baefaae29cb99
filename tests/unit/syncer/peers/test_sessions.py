"""What a session keeps of a learner's reports beside what it hands to the engine."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from diloco.core.actions import Admit
from diloco.core.fragments import Layout, TensorSpec, partition
from diloco.syncer.peers.claims import ClaimLimits, Claims
from diloco.syncer.peers.link_meter import LinkMeter
from diloco.syncer.peers.newcomers import Newcomers
from diloco.syncer.peers.sessions import Sessions
from diloco.syncer.store import FragmentStore
from diloco.wire.errors import RefusedError
from diloco.wire.messages import Join, LearnerMessage, Progress, StepReport
from tests.support.hand_clock import HandClock

WHO = "r/p/0"
LAYOUT = partition([TensorSpec("a", (10,), embedding=False)], 1)


def sessions_of(layout: Layout, meter: LinkMeter, events: list[object], clock: HandClock | None = None) -> Sessions:
    return Sessions(
        job="job",
        layout=layout,
        epoch="1",
        store=FragmentStore(layout, residuals=False),
        claims=Claims(ClaimLimits(lambda _: 64, frozenset({"r/p"}), 16, 10_000, 6), lambda: None, time.monotonic),
        meter=meter,
        newcomers=Newcomers([WHO]),
        clock=clock or HandClock(),
        post=events.append,
    )


def rate_after(reports: list[StepReport]) -> float | None:
    """What is known of the way down after these reports, ten seconds apart."""
    clock = HandClock()
    meter = LinkMeter(clock)
    events: list[object] = []
    sessions = sessions_of(LAYOUT, meter, events, clock)

    async def inbound() -> AsyncIterator[LearnerMessage]:
        sessions.admit(Admit(WHO, "process", 7, (), (0,), 0, 0, "it is planned"), Progress(0, 1, 0))
        for report in reports:
            yield report
            meter.sample(clock.now)
            clock.now += 10.0

    asyncio.run(sessions.serve(Join("job", WHO, "process", LAYOUT.digest), inbound(), lambda _: None))
    assert len(events) == 1 + len(reports) + 1  # it joined, made steps and left
    return meter.rates(WHO).down


def report(step: int, receiving_seconds: float = 0.0, received_bytes: int = 0) -> StepReport:
    return StepReport(
        7, step, 64 * step, 0.5, 0.0, 2.0, 4 * step, receiving_seconds=receiving_seconds, received_bytes=received_bytes
    )


def test_pulls_are_measured_by_the_learner_that_receives_them() -> None:
    assert rate_after([report(step, 0.5 * step, 1000 * step) for step in range(1, 5)]) == 2000.0


def test_a_learner_of_an_earlier_version_tells_nothing_of_them() -> None:
    assert rate_after([report(step) for step in range(1, 5)]) is None


@pytest.mark.parametrize(
    ("digest", "message"),
    [
        ("0" * 64, "has another model than the syncer"),
        (
            f"{LAYOUT.cut}.other",
            "has other frozen parameters or buffers than the syncer: give both the same base",
        ),
        (LAYOUT.cut, "does not say which frozen parameters and buffers it has: use this version of diloco"),
    ],
)
def test_a_learner_of_another_model_or_base_is_refused(digest: str, message: str) -> None:
    events: list[object] = []
    sessions = sessions_of(replace(LAYOUT, constants="base"), LinkMeter(HandClock()), events)

    async def nothing() -> AsyncIterator[LearnerMessage]:
        return
        yield

    with pytest.raises(RefusedError, match=message):
        asyncio.run(sessions.serve(Join("job", WHO, "process", digest), nothing(), lambda _: None))
    assert events == []
