"""The learners by what every event asks about them, so that its cost does not grow with their number.

All of it follows from the state and is never stored: `Roster.gather` reads every learner, `Roster.place` one of them.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diloco.spec.status.engine import LearnerState

if TYPE_CHECKING:
    from diloco.core.engine.records import LearnerRecord
    from diloco.core.engine.state import EngineState


@dataclass(slots=True)
class Ranking:
    """A number of each of some learners, and all of these in ascending order."""

    of: dict[str, float]
    ascending: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.ascending = sorted(self.of.values())

    def put(self, learner: str, number: float | None) -> None:
        """Set a learner's number; None: it has none."""
        before = self.of.get(learner)
        if number == before:
            return
        if before is not None:
            del self.ascending[bisect_left(self.ascending, before)]
        if number is None:
            del self.of[learner]
        else:
            self.of[learner] = number
            insort(self.ascending, number)

    def at_least(self, number: float) -> int:
        """How many learners have this number or a higher one."""
        return len(self.ascending) - bisect_left(self.ascending, number)


@dataclass(slots=True)
class Roster:
    """What follows from a state's learners."""

    state: "EngineState" = field(repr=False, compare=False)
    working: dict[str, "LearnerRecord"] = field(init=False)
    """Those that may send fragments, by id: decisions over several are made in this order."""
    expected: int = field(init=False)
    """Planned learners, of an elastic pool only its minimum."""
    reported: set[str] = field(init=False)
    """Planned ones that have made a step in their present process, until what is merged counts."""
    measured: set[str] = field(init=False)
    """Planned ones with which others are compared, until what is merged counts."""
    starting: set[str] = field(init=False)
    """Planned ones that have a session and are not measured, until what is merged counts."""
    remaining: set[str] = field(init=False)
    """Planned ones that are not given up."""
    given_up: set[str] = field(init=False)
    """Planned ones that are."""
    quarantined: set[str] = field(init=False)
    """Those that remain and are in quarantine."""
    unanswering: set[str] = field(init=False)
    """Those that remain, are in no quarantine, and for which rounds have waited in vain."""
    quorum: int = field(init=False)
    """K, or as many as are left of these without those in quarantine or unanswering: the job goes on without them."""
    pacing: set[str] = field(init=False)
    """Those that work and whose outer gradients are merged: the schedule follows these, or all if they are too few."""
    all_pace: bool = field(init=False)
    """Whether they are too few for the quorum."""
    clocks: Ranking = field(init=False)
    """Of those that the schedule follows."""
    quorum_clock: float | None = field(init=False)
    """The clock of the quorum's slowest learner; None: fewer than the quorum work."""
    step_seconds: Ranking = field(init=False)
    """Of those of them that train, as far as measured."""
    overdue: set[str] = field(init=False)
    """Those of them that have not reached the next syncer step, and for whom its fragment's turn is overdue."""
    with_lead: dict[str, "LearnerRecord"] = field(init=False)
    """Those that work and are asked ahead of launches, by id."""
    longest_lead_steps: int = field(init=False)
    asked_ahead_at: float | None = field(init=False, compare=False)
    """The clock at which all of them were last asked ahead; None: something has changed for all of them since."""
    next_due: int = field(init=False)
    """The clock at which the next syncer step is due."""
    next_fragment: int = field(init=False)
    _bound: int = field(init=False)

    def __post_init__(self) -> None:
        self.gather()

    def gather(self) -> None:
        """Read every learner: the plan has changed."""
        state = self.state
        planned = [one for one in state.learners.values() if one.id in state.planned]
        elastic = sum(one.pool in state.elastic for one in planned)
        self.expected = len(planned) - elastic + sum(pool.minimum for pool in state.elastic.values())
        self.reported = {one.id for one in planned if one.pace.reports and not state.confirmed}
        self.measured = {one.id for one in planned if one.measured is not None and not state.confirmed}
        self.starting = {one.id for one in planned if one.present and one.measured is None and not state.confirmed}
        self.working = {one.id: one for one in self.state.ordered_learners if one.working}
        self.given_up = {one.id for one in planned if one.state == LearnerState.GIVEN_UP}
        self.remaining = {one.id for one in planned if one.id not in self.given_up}
        self.quarantined = {one.id for one in planned if one.id in self.remaining and one.standing.quarantined}
        unanswering = {one.id for one in planned if one.unanswering}
        self.unanswering = (unanswering & self.remaining) - self.quarantined
        self._count_quorum()
        self.pacing = {name for name, one in self.working.items() if one.paces}
        self.all_pace = len(self.pacing) < self.quorum
        self.gather_clocks()
        self.gather_leads()

    def gather_clocks(self) -> None:
        """Read every learner's clock and speed: syncer steps were launched, or what counts of speeds has changed."""
        schedule, step = self.state.options.schedule, self.state.launched + 1
        self.next_due, self.next_fragment = schedule.due(step), schedule.fragment(step)
        self._bound = schedule.overdue_steps(self.state.options.max_staleness_steps)
        followed = [one for one in self.working.values() if self._follows(one)]
        self.clocks = Ranking({one.id: one.clock for one in followed})
        self._find_quorum_clock()
        training = [one for one in followed if one.state == LearnerState.TRAINING]
        self.step_seconds = Ranking({one.id: seconds for one in training if (seconds := one.step_seconds) is not None})
        late = [one for one in followed if one.clock < self.next_due]
        self.overdue = {one.id for one in late if self._is_overdue(one)}

    def gather_leads(self) -> None:
        """Read every learner's lead."""
        self.with_lead = {name: one for name, one in self.working.items() if one.longest_lead_steps > 0}
        self.longest_lead_steps = max((one.longest_lead_steps for one in self.with_lead.values()), default=0)
        self.asked_ahead_at = None

    def place(self, record: "LearnerRecord") -> None:
        """Read a learner whose state has changed, or that answers no longer or again."""
        name, working, planned = record.id, record.working, record.id in self.state.planned
        remains = planned and record.state != LearnerState.GIVEN_UP
        _put(self.given_up, name, belongs=planned and not remains)
        _put(self.remaining, name, belongs=remains)
        quarantined = remains and record.standing.quarantined
        _put(self.quarantined, name, belongs=quarantined)
        _put(self.unanswering, name, belongs=remains and not quarantined and record.unanswering)
        self._count_quorum()
        if not working:
            self.working.pop(name, None)
        elif name not in self.working:
            self.working = dict(sorted([*self.working.items(), (name, record)]))
        if (working and record.longest_lead_steps > 0) != (name in self.with_lead):
            self.gather_leads()
        _put(self.pacing, name, belongs=working and record.paces)
        if (len(self.pacing) < self.quorum) != self.all_pace:
            self.all_pace = not self.all_pace
            self.gather_clocks()
        self.moved(record)

    def moved(self, record: "LearnerRecord") -> None:
        """Read a learner that has reported steps, or whose clock was set."""
        name, followed = record.id, self._follows(record)
        if not self.state.confirmed:
            planned = name in self.state.planned
            _put(self.reported, name, belongs=planned and record.pace.reports > 0)
            measured = record.measured is not None
            _put(self.measured, name, belongs=planned and measured)
            _put(self.starting, name, belongs=planned and record.present and not measured)
        self.clocks.put(name, record.clock if followed else None)
        self._find_quorum_clock()
        training = followed and record.state == LearnerState.TRAINING
        self.step_seconds.put(name, record.step_seconds if training else None)
        if followed and record.clock < self.next_due and self._is_overdue(record):
            self.overdue.add(name)
        else:
            self.overdue.discard(name)

    def _count_quorum(self) -> None:
        left = len(self.remaining) - len(self.quarantined) - len(self.unanswering)
        self.quorum = max(1, min(self.state.options.quorum, left))

    def _follows(self, record: "LearnerRecord") -> bool:
        return record.working and (self.all_pace or record.paces)

    def _find_quorum_clock(self) -> None:
        clocks = self.clocks.ascending
        self.quorum_clock = clocks[-self.quorum] if len(clocks) >= self.quorum else None

    def _is_overdue(self, record: "LearnerRecord") -> bool:
        # All its steps, as those that do not count bring it to its staleness bound too.
        return record.step - record.turn_steps[self.next_fragment] >= self._bound


def _put(names: set[str], name: str, *, belongs: bool) -> None:
    if belongs:
        names.add(name)
    else:
        names.discard(name)
