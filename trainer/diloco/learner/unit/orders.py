"""What the first process of a learner tells the others, before it does the same itself."""

import struct
from enum import IntEnum, unique
from typing import Final, NamedTuple

NUMBERS: Final = 4
"""64-bit integers of an order."""


@unique
class Op(IntEnum):
    """What to do."""

    STEP = 1
    """An inner step. ``a``: its place in the order of sequences; ``x``: the job's progress. The numbers follow,
    and if ``b`` is 1 those of the next step."""
    CAPTURE = 2
    """Give the first process all of fragment ``a``."""
    APPLY = 3
    """Receive fragment ``a`` from it."""
    EVALUATE = 4
    """Evaluate the model as received."""
    START_OVER = 5
    """Drop the inner optimizer's state."""
    SAVE = 6
    """Write this process's part of the next checkpoint."""
    LOAD = 7
    """Restore this process's part of checkpoint ``a``, of ``b`` optimizer steps. The digests of all parts follow."""
    END = 8
    """End the process; in a loop of the user's own, end the session."""
    GO_ON = 9
    """Go on with a loop of the user's own. ``a``: steps of the learner so far."""
    TAKE_UP = 10
    """Restore what a loop of the user's own has saved in the checkpoint that was loaded last."""


class OrderError(ValueError):
    """Not an order; the text is one line."""


class Order(NamedTuple):
    """One order."""

    op: Op
    a: int = 0
    b: int = 0
    x: float = 0.0

    def encoded(self) -> list[int]:
        """As `NUMBERS` integers."""
        return [int(self.op), self.a, self.b, *struct.unpack("<q", struct.pack("<d", self.x))]


def decoded(numbers: list[int]) -> Order:
    """The order that was encoded.

    Raises:
        OrderError: there is no such order.
    """
    try:
        op, a, b, bits = numbers
        return Order(Op(op), a, b, *struct.unpack("<d", struct.pack("<q", bits)))
    except (ValueError, struct.error) as error:
        raise OrderError(f"order: {numbers} is none of this version ({error})") from error
