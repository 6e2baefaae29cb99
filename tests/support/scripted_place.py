"""A job for sessions of ``diloco chaos``, which does as it is told."""

from collections.abc import Callable

from diloco.local.chaos.spec import ChaosError, Fault
from diloco.spec.status.syncer import SyncerStatus

VICTIM = "a/b/0"


class ScriptedPlace:
    """A job of one learner: ``then`` gives its status after the order that hit it."""

    def __init__(
        self,
        then: Callable[[int], SyncerStatus],
        *,
        interrupts: bool = False,
        gone_after: int | None = None,
        over_after: int | None = None,
    ) -> None:
        """``gone_after``, ``over_after``: orders after which nothing can be hit any more, or the job has ended."""
        self._then = then
        self._interrupts = interrupts
        self._gone_after = gone_after
        self._over_after = over_after
        self.hits: list[Fault] = []
        self.healed = 0
        self.asked = 0

    def hit(self, fault: Fault) -> tuple[tuple[str, ...], str]:
        self.hits.append(fault)
        if self._interrupts:
            raise KeyboardInterrupt
        return fault.victims, ""

    def status(self) -> SyncerStatus | None:
        self.asked += bool(self.hits)
        return self._then(self.asked)

    def over(self) -> bool:
        if len(self.hits) == self._gone_after:
            raise ChaosError("the place is gone")
        return len(self.hits) == self._over_after

    def heal(self) -> None:
        self.healed += 1
