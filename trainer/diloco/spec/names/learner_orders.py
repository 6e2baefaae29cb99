"""The files by which the operator gives a syncer orders about single learners. Pure.

They are beside the manifest, not in it.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

READMITTED_FILE: Final = "readmitted"
"""In the directory of the manifest: which given-up learners may join again."""
FAILED_FILE: Final = "failed"
"""The same: which learners fail again and again before they can join, and are to be given up."""
MAXIMUM_BYTES: Final = 1 << 19
"""Most bytes of a file (ours): what names 10,000 learners by short names."""

_LINE: Final = re.compile(r"([a-z0-9-]{1,63}/[a-z0-9-]{1,63}/[0-9]{1,9}) ([0-9]{1,9}) ([0-9]{1,18})", re.ASCII)


class LearnerOrder(NamedTuple):
    """One learner that an order is about."""

    learner: str
    """``region/pool/index``."""
    epoch: int
    """The start of the syncer whose report was the reason."""
    incarnation: int
    """The number of the learner's latest admission then, 0: none. With the epoch it tells one failure from a later
    one."""


def orders_text(orders: Iterable[LearnerOrder]) -> str:
    """A file's text: one learner a line."""
    return "".join(f"{one.learner} {one.epoch} {one.incarnation}\n" for one in sorted(orders))


def orders_in(text: str) -> tuple[LearnerOrder, ...]:
    """What a file says. Lines that are none of ours are ignored: a later version may write them."""
    found = (_LINE.fullmatch(line) for line in text.splitlines())
    return tuple(LearnerOrder(one[1], int(one[2]), int(one[3])) for one in found if one is not None)
