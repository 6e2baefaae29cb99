"""Injects the faults that are due: kills, pauses and cuts, and ends those that last for a time.

``schedule`` decides when. Used from the main thread only.
"""

import signal
import time
from collections.abc import Callable, Iterable, Mapping

from diloco.local.chaos.order_file import HEAL, Command
from diloco.local.chaos.region_link import RegionLink
from diloco.local.chaos.schedule import ChaosPlan, DueFault, RunState
from diloco.local.chaos.spec import Fault, FaultKind
from diloco.local.fleet import Fleet
from diloco.local.journal import Journal
from diloco.local.targets import SYNCER


class FaultInjector:
    """Injects the faults of one run."""

    def __init__(self, plan: ChaosPlan, fleet: Fleet, links: Mapping[str, RegionLink], journal: Journal) -> None:
        self._plan = plan
        self._fleet = fleet
        self._links = links
        self._journal = journal
        self._clock: Callable[[], float] = time.monotonic
        self._ordered: set[str] = set()
        """Processes and regions that an order, not the plan, has paused or cut."""
        self._paused: dict[str, float] = {}
        self._cut: dict[str, float] = {}

    @property
    def paused(self) -> frozenset[str]:
        """Processes that are paused now."""
        return frozenset(self._paused)

    @property
    def cut(self) -> frozenset[str]:
        """Regions whose link is cut now."""
        return frozenset(self._cut)

    def apply_due(self, run_state: RunState) -> None:
        """Inject the faults that are due, and end those whose time is over."""
        now = self._clock()
        for process in [name for name, until in self._paused.items() if now >= until]:
            self._continue(process)
        for region in [name for name, until in self._cut.items() if now >= until]:
            self._restore(region)
        for due_fault in self._plan.due(run_state):
            self._inject(due_fault, now)

    def obey(self, commands: Iterable[Command]) -> None:
        """Carry out the orders of ``diloco chaos``. Each leaves an entry in the journal, also if it is refused."""
        now = self._clock()
        for command in commands:
            if command.kind == HEAL:
                self._end_ordered()
                continue
            kind = FaultKind(command.kind)
            fault = Fault(f"order {command.id}", kind, command.victims, seconds=command.seconds, manner=command.manner)
            for victim in command.victims:
                if why := self._impossible(kind, victim):
                    self._journal.write("refused", victim, order=command.id, reason=why)
                    continue
                if kind is not FaultKind.KILL:
                    self._ordered.add(victim)
                self._inject(DueFault(fault, victim), now, command.id)

    def _end_ordered(self) -> None:
        for process in [name for name in self._paused if name in self._ordered]:
            self._continue(process)
        for region in [name for name in self._cut if name in self._ordered]:
            self._restore(region)

    def _impossible(self, kind: FaultKind, victim: str) -> str:
        """Why an order cannot be carried out; empty: it can."""
        if kind is FaultKind.CUT:
            return "" if victim in self._links else "its link has no relay"
        if victim != SYNCER and victim not in self._fleet.learners:
            return "no such process"
        return "" if self._fleet.find(victim).child.running else "it does not run"

    def stop(self) -> None:
        """End every pause and cut now, as every process must be able to answer when the run is stopped."""
        for process in list(self._paused):
            self._continue(process)
        for region in list(self._cut):
            self._restore(region)

    def _inject(self, due_fault: DueFault, now: float, order: str = "") -> None:
        fault, victim = due_fault
        if fault.kind is FaultKind.KILL:
            self._fleet.find(victim).by_chaos = True
            self._paused.pop(victim, None)
            self._fleet.signal(victim, signal.SIGKILL)
            told = f"{victim} killed with SIGKILL"
        elif fault.kind is FaultKind.PAUSE:
            self._paused[victim] = max(self._paused.get(victim, 0.0), now + fault.seconds)
            self._fleet.signal(victim, signal.SIGSTOP)
            told = f"{victim} stopped with SIGSTOP for {fault.seconds:g} s"
        else:
            self._cut[victim] = max(self._cut.get(victim, 0.0), now + fault.seconds)
            self._links[victim].cut(fault.manner)
            told = f"{victim}'s link cut for {fault.seconds:g} s"
        self._write(due_fault, fault, order)
        self._fleet.announce(f"chaos: {told}")

    def _write(self, due_fault: DueFault, fault: Fault, order: str) -> None:
        source = {"order": order} if order else {"key": due_fault.key}
        self._journal.write(fault.kind.value, due_fault.victim, seconds=fault.seconds, **source)

    def _continue(self, process: str) -> None:
        del self._paused[process]
        self._ordered.discard(process)
        self._fleet.signal(process, signal.SIGCONT)
        self._journal.write("continue", process)
        self._fleet.announce(f"chaos: {process} continues")

    def _restore(self, region: str) -> None:
        del self._cut[region]
        self._ordered.discard(region)
        self._links[region].restore()
        self._journal.write("heal", region)
        self._fleet.announce(f"chaos: {region}'s link is back")
