"""Injects the faults that are due: kills, pauses and cuts, and ends those that last for a time.

``schedule`` decides when. Used from the main thread only.
"""

import secrets
import signal
import time
from collections.abc import Callable, Mapping

from diloco.local.chaos.region_link import RegionLink
from diloco.local.chaos.schedule import ChaosPlan, RunState
from diloco.local.chaos.spec import Fault, FaultKind
from diloco.local.fleet import Fleet
from diloco.local.targets import SYNCER
from diloco.runtime.journal import Journal

_MOST_REASONS = 3


class FaultInjector:
    """Injects the faults of one run."""

    def __init__(self, plan: ChaosPlan, fleet: Fleet, links: Mapping[str, RegionLink], journal: Journal) -> None:
        self._plan = plan
        self._fleet = fleet
        self._links = links
        self._journal = journal
        self._clock: Callable[[], float] = time.monotonic
        self._lasting: dict[tuple[FaultKind, str], float] = {}
        """Paused processes and cut regions, and until when."""
        self._of_session: set[tuple[FaultKind, str]] = set()
        """Those of them that ``diloco chaos``, not the plan, has paused or cut."""

    @property
    def paused(self) -> frozenset[str]:
        """Processes that are paused now."""
        return frozenset(name for kind, name in self._lasting if kind is FaultKind.PAUSE)

    @property
    def cut(self) -> frozenset[str]:
        """Regions whose link is cut now."""
        return frozenset(name for kind, name in self._lasting if kind is FaultKind.CUT)

    def apply_due(self, state: RunState) -> None:
        """Inject the faults that are due, and end those whose time is over."""
        now = self._clock()
        for lasting in [one for one, until in self._lasting.items() if now >= until]:
            self._end(*lasting)
        for fault in self._plan.due(state):
            self._inject(fault, fault.target, key=fault.key)

    def obey(self, fault: Fault) -> tuple[tuple[str, ...], str]:
        """Inject a fault of ``diloco chaos``; returns who was hit, and why the others were not."""
        fault_id = secrets.token_hex(8)
        hit: list[str] = []
        missed: list[str] = []
        for victim in fault.victims:
            if why := self._impossible(fault.kind, victim):
                missed.append(f"{victim}: {why}")
                continue
            if fault.kind is not FaultKind.KILL:
                self._of_session.add((fault.kind, victim))
            self._inject(fault, victim, fault_id=fault_id)
            hit.append(victim)
        return tuple(hit), "; ".join(sorted(missed)[:_MOST_REASONS])

    def end_session(self) -> None:
        """End the pauses and cuts of ``diloco chaos``."""
        for lasting in list(self._of_session):
            self._end(*lasting)

    def stop(self) -> None:
        """End every pause and cut now, as every process must be able to answer when the run is stopped."""
        for lasting in list(self._lasting):
            self._end(*lasting)

    def _impossible(self, kind: FaultKind, victim: str) -> str:
        """Why a fault cannot be injected; empty: it can."""
        if kind is FaultKind.CUT:
            return "" if victim in self._links else "its link has no relay"
        if victim != SYNCER and victim not in self._fleet.learners:
            return "no such process"
        return "" if self._fleet.find(victim).child.running else "it does not run"

    def _inject(self, fault: Fault, victim: str, **source: str) -> None:
        """``source``: the key of a planned fault, or the id that all victims of one ``diloco chaos`` fault share."""
        lasting = fault.kind, victim
        if fault.kind is FaultKind.KILL:
            self._fleet.find(victim).by_chaos = True
            self._forget((FaultKind.PAUSE, victim))
            self._fleet.signal(victim, signal.SIGKILL)
            text = f"{victim} killed with SIGKILL"
        else:
            self._lasting[lasting] = max(self._lasting.get(lasting, 0.0), self._clock() + fault.seconds)
            if fault.kind is FaultKind.PAUSE:
                self._fleet.signal(victim, signal.SIGSTOP)
                text = f"{victim} stopped with SIGSTOP for {fault.seconds:g} s"
            else:
                self._links[victim].cut(fault.manner)
                text = f"{victim}'s link cut for {fault.seconds:g} s"
        self._journal.write(fault.kind.value, victim, seconds=fault.seconds, **source)
        self._fleet.announce(f"chaos: {text}")

    def _end(self, kind: FaultKind, name: str) -> None:
        self._forget((kind, name))
        if kind is FaultKind.PAUSE:
            self._fleet.signal(name, signal.SIGCONT)
            self._journal.write("continue", name)
            self._fleet.announce(f"chaos: {name} continues")
        else:
            self._links[name].restore()
            self._journal.write("heal", name)
            self._fleet.announce(f"chaos: {name}'s link is back")

    def _forget(self, lasting: tuple[FaultKind, str]) -> None:
        self._lasting.pop(lasting, None)
        self._of_session.discard(lasting)
