"""The file by which the operator tells a syncer which given-up learners may join again. Pure.

It is beside the manifest, and in no manifest, so that a syncer of an earlier version ignores it.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

READMITTED_FILE: Final = "readmitted"
"""Its name, in the directory of the manifest."""
MAXIMUM_BYTES: Final = 1 << 19
"""Most bytes of it (ours): what names 10,000 learners by short names."""

_LINE: Final = re.compile(r"([a-z0-9-]{1,63}/[a-z0-9-]{1,63}/[0-9]{1,9}) ([0-9]{1,9}) ([0-9]{1,18})", re.ASCII)


class Readmission(NamedTuple):
    """One learner that may join again."""

    learner: str
    """``region/pool/index``."""
    epoch: int
    """The start of the syncer that reported it as given up."""
    incarnation: int
    """The number of its latest admission then. With the epoch it tells one giving up from a later one."""


def readmission_text(orders: Iterable[Readmission]) -> str:
    """The file's text: one learner a line."""
    return "".join(f"{one.learner} {one.epoch} {one.incarnation}\n" for one in sorted(orders))


def readmissions(text: str) -> tuple[Readmission, ...]:
    """What a file says. Lines that are none of ours are ignored: a later version may write them."""
    found = (_LINE.fullmatch(line) for line in text.splitlines())
    return tuple(Readmission(one[1], int(one[2]), int(one[3])) for one in found if one is not None)
