"""What each reason means, and what to do about it.

Conditions, events and the tables in docs/how-to/operations.md all take their text from here.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from diloco_operator.decide.guide.entry import Guide
from diloco_operator.decide.guide.of_causes import CAUSES
from diloco_operator.decide.guide.of_states import STATES
from diloco_operator.decide.reasons import Reason

__all__ = ["GUIDE", "UNANNOUNCED", "Guide"]

GUIDE: Final[Mapping[Reason, Guide]] = MappingProxyType({**CAUSES, **STATES})
"""What each reason means."""

UNANNOUNCED = frozenset({Reason.AS_EXPECTED})
"""Reasons that create no event: they say that something is not the case."""
