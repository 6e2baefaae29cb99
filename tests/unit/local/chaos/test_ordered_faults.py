"""Orders to the injector: what cannot be carried out is refused in the journal, and hits nothing."""

from pathlib import Path

import pytest

from diloco.local.chaos.injector import FaultInjector
from diloco.local.chaos.order_file import HEAL, Command
from diloco.local.chaos.schedule import ChaosPlan
from diloco.local.child import Child
from diloco.local.fleet import Fleet, Managed
from diloco.local.journal import Journal, read_journal


def injector(folder: Path) -> FaultInjector:
    """Of a run whose processes have not started, and which has no relays."""

    def managed(name: str) -> Managed:
        return Managed(name, Child(["--version"], folder / f"{name}.log", {}))

    journal = Journal(folder / "journal")
    fleet = Fleet(managed("syncer"), {"a": managed("a")}, journal, lambda _: None)
    return FaultInjector(ChaosPlan((), seed=0), fleet, {}, journal)


@pytest.mark.parametrize(
    ("kind", "victim", "reason"),
    [
        ("kill", "a", "it does not run"),
        ("pause", "syncer", "it does not run"),
        ("kill", "b", "no such process"),
        ("pause", "../b", "no such process"),
        ("cut", "a", "its link has no relay"),
    ],
)
def test_what_cannot_be_hit_is_refused(tmp_path: Path, kind: str, victim: str, reason: str) -> None:
    made = injector(tmp_path)
    made.obey([Command("s-1", 0.0, kind, (victim,), 5.0), Command("s-2", 0.0, HEAL)])
    (entry,) = read_journal(tmp_path / "journal")
    assert (entry.event, entry.process) == ("refused", victim)
    assert entry.details == {"order": "s-1", "reason": reason}
    assert not made.paused
    assert not made.cut
