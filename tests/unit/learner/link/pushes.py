"""The bulk side of a link, for workers that push."""

from typing import TYPE_CHECKING

from diloco.wire.errors import WireError
from diloco.wire.messages import PullHeader, PushHeader, PushReceipt

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_CALLS = 10
"""Of a test: a worker that begins again without an end fails it."""


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

    def push(self, header: PushHeader, payload: memoryview, *, deadline_seconds: float, **_: object) -> PushReceipt:
        assert self.calls < MOST_CALLS
        self.deadlines.append(deadline_seconds)
        self.after_call()
        fate = self.fates.pop(0) if self.fates else None
        if fate is not None:
            raise fate
        self.pushed.append((header, bytes(payload)))
        return self.receipt

    def pull(self, *_: object, **__: object) -> PullHeader:
        raise AssertionError("a pull is not expected here")
