"""The bulk side of a link, for pushes; and a context whose computing is done at once."""

from collections.abc import Callable
from typing import Any, TypeVar

from diloco.learner.exchange.transfers import Bulk, Tasks, TransferContext, TransferCounts
from diloco.wire.errors import WireError
from diloco.wire.messages import PullHeader, PushHeader, PushReceipt

T = TypeVar("T")

MOST_CALLS = 10
"""Of a test: one that begins again without an end fails it."""


def fails(error: BaseException) -> None:
    raise error


async def at_once(function: Callable[..., T], *arguments: Any) -> T:
    return function(*arguments)


def context_of(bulk: Bulk, counts: TransferCounts, step_seconds: Callable[[], float] = lambda: 0.0) -> TransferContext:
    """Without pauses between attempts."""
    return TransferContext("r/p/0", bulk, step_seconds, lambda: -1.0, counts, Tasks(fails), at_once)


class PushLink:
    """Each push meets the next of ``fates``; None is success."""

    def __init__(self, *fates: WireError | None) -> None:
        self.fates = list(fates)
        self.pushed: list[tuple[PushHeader, bytes]] = []
        self.deadlines: list[float] = []
        """Seconds that each push was given."""
        self.receipt = PushReceipt(accepted=True)
        self.after_call: Callable[[], None] = lambda: None

    @property
    def calls(self) -> int:
        return len(self.deadlines)

    async def push(self, header: PushHeader, payload: memoryview, *, deadline_seconds: float) -> PushReceipt:
        assert self.calls < MOST_CALLS
        self.deadlines.append(deadline_seconds)
        self.after_call()
        fate = self.fates.pop(0) if self.fates else None
        if fate is not None:
            raise fate
        self.pushed.append((header, bytes(payload)))
        return self.receipt

    async def pull(self, *_: object, **__: object) -> PullHeader:
        raise AssertionError("a pull is not expected here")
