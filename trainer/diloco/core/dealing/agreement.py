"""Which data a job has, by what its learners say of theirs when they join. Pure.

The data of the first learner is dealt at once, so that it need not wait, but another's may still take its place. Two
planned learners that have the same data fix it, and so does the first merge of a planned one while no other disagrees.
Data that is not fixed and that no planned learner with a session has is dropped as soon as a learner brings other data.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from diloco.spec.words import listed

ENOUGH: Final = 2
"""Planned learners that fix the data (ours): what one says may be false, or its files may be the wrong ones."""
REMEMBERED_TICKS: Final = 60
"""Seconds for which the data of a learner that had to wait counts, unless it comes back (ours)."""
_SHOWN: Final = 12


class Data(NamedTuple):
    """What a learner says of its data."""

    sequences: int = 0
    """Training sequences; 0: none that could be dealt."""
    digest: str = ""
    """Of what they are cut from; empty: it has none."""

    def __str__(self) -> str:
        digest = f" (digest {self.digest[:_SHOWN]})" if self.digest else ""
        return f"{self.sequences} training sequences{digest}"


class Known(NamedTuple):
    """The data that is dealt."""

    data: Data = Data()
    by: str = ""
    """The learners that have it, for people."""
    fixed: bool = False
    """It stays that of the job."""


class Objection(NamedTuple):
    """Why a learner cannot join with its data."""

    text: str
    may_change: bool
    """Other learners may still show that its data is the right one."""


def difference(data: Data, known: Known) -> str:
    """One line that tells a learner which data the job has."""
    advice = "use the same data for all learners and after --resume, and another job for other data"
    return f"data: has {data}, that of {known.by} has {known.data}; {advice}"


class Agreement:
    """Who says what of the data, as far as nothing is fixed."""

    def __init__(self, planned: Iterable[str] = ()) -> None:
        self._planned = frozenset(planned)
        self._here: dict[str, Data] = {}
        """By learner that has a session."""
        self._waiting: dict[str, Data] = {}
        """By learner that was turned away a short time ago."""
        self._ticks: dict[str, int] = {}

    def plan(self, learners: Iterable[str]) -> None:
        """Note that the manifest has changed."""
        self._planned = frozenset(learners)

    def objection(self, learner: str, data: Data, known: Known) -> Objection | None:
        """Why a learner with this data cannot join; None: it can."""
        if data == known.data or self._gives_way(known, learner, data):
            return None
        text = difference(data, known)
        if known.fixed:
            return Objection(text, may_change=False)
        if learner in self._planned:
            self._waiting[learner], self._ticks[learner] = data, 0
        # Only a learner that has said nothing can still decide.
        decides = self._planned - self._here.keys() - self._waiting.keys()
        return Objection(f"{text}; a third learner decides" if decides else text, may_change=bool(decides))

    def _gives_way(self, known: Known, learner: str, data: Data) -> bool:
        """Whether the known data makes way for other data, with which ``learner`` comes."""
        if known.fixed:
            return False
        others = {one for one in self._holders(known.data) if one != learner}
        return not others or len(self._who(data) | ({learner} & self._planned)) >= ENOUGH

    def begins(self, known: Known, learner: str, data: Data) -> Known:
        """What is known once a learner with this data, to which there is no objection, has a session."""
        self._here[learner] = data
        self._waiting.pop(learner, None)
        if known.fixed:
            return known
        if len(who := self._who(data)) >= ENOUGH:
            return Known(data, listed(sorted(who)[:ENOUGH], "and"), fixed=True)
        return known if known.data == data else Known(data, learner)

    def over(self, learner: str) -> None:
        """Note that its session is over."""
        self._here.pop(learner, None)

    def tick(self) -> None:
        """Forget who waited and did not come back. Call it once a second."""
        for learner in list(self._waiting):
            self._ticks[learner] += 1
            if self._ticks[learner] >= REMEMBERED_TICKS:
                del self._waiting[learner]

    def merged(self, known: Known, members: Iterable[str]) -> Known:
        """What is known once the work of these learners, which have the known data, is merged."""
        who = sorted(self._planned.intersection(members))
        disputed = any(data != known.data for data in self._waiting.values())
        return known if known.fixed or disputed or not who else Known(known.data, who[0], fixed=True)

    def _holders(self, data: Data) -> set[str]:
        """Planned learners with a session that have this data."""
        return {one for one, held in self._here.items() if held == data and one in self._planned}

    def _who(self, data: Data) -> set[str]:
        """The same, and those that wait."""
        return self._holders(data) | {one for one, held in self._waiting.items() if held == data}
