"""``diloco chaos`` and a run's supervisor, over a real socket: faults, answers, and ends of either side."""

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from diloco.local.chaos.injector import FaultInjector
from diloco.local.chaos.region_link import RegionLink
from diloco.local.chaos.run_socket import ChaosListener, LocalPlace, RunFacts
from diloco.local.chaos.schedule import ChaosPlan
from diloco.local.chaos.spec import ChaosError, Fault, FaultKind, Manner
from diloco.local.child import Child
from diloco.local.directory import RunDirectory
from diloco.local.fleet import Fleet, Managed
from diloco.runtime.journal import Journal, read_journal
from testbed.kind.waiting import wait_until

CUT = Fault(FaultKind.CUT, "a", ("a",), seconds=500.0, manner=Manner.RESET)
FACTS = RunFacts("small", ("a/b/0",), ("a",), "127.0.0.1:9")


class Link(RegionLink):
    """A region's link that is only noted."""

    def __init__(self) -> None:
        self.manner: Manner | None = None

    def cut(self, manner: Manner) -> None:
        self.manner = manner

    def restore(self) -> None:
        self.manner = None


class Run:
    """A supervisor's end, with a relay for region ``a`` and processes that have not started."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root, self.link, self.announced = root, Link(), list[str]()
        journal = Journal(root / "journal")
        fleet = Fleet(
            Managed("syncer", Child([], root / "syncer.log", {})),
            {"a/b/0": Managed("a/b/0", Child([], root / "a.log", {}))},
            journal,
            self.announced.append,
        )
        self.injector = FaultInjector(ChaosPlan((), seed=0), fleet, {"a": self.link}, journal)
        self.listener = ChaosListener(RunDirectory(root), FACTS, self.announced.append)
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        while not self.stopped.wait(0.01):
            self.listener.serve(self.injector)

    def kill(self) -> None:
        """End it without a word: what it had open is closed, and its socket stays."""
        self.stopped.set()
        self.thread.join()
        for one in (self.listener._listener, *self.listener._connections):
            one.close()

    def stop(self) -> None:
        self.stopped.set()
        self.thread.join()
        self.listener.close()

    def manner(self) -> Manner | None:
        """How the link is cut now."""
        return self.link.manner

    @property
    def events(self) -> list[str]:
        return [entry.event for entry in read_journal(self.root / "journal")]


@contextmanager
def started(root: Path) -> Iterator[Run]:
    run = Run(root)
    try:
        yield run
    finally:
        run.stop()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with started(tmp_path / "out") as made:
        yield made


@pytest.fixture
def place(run: Run) -> Iterator[LocalPlace]:
    with closing(LocalPlace(run.root)) as made:
        made.begin()
        yield made


def test_a_fault_arrives_whole_and_ends_with_the_session(run: Run, place: LocalPlace) -> None:
    assert place.facts == FACTS
    assert place.hit(CUT) == (("a",), "")
    assert run.manner() is Manner.RESET
    assert run.injector.cut == {"a"}
    place.heal()
    assert run.manner() is None
    assert run.events == ["cut", "heal"]
    assert not place.over()


@pytest.mark.parametrize(
    ("kind", "victim", "reason"),
    [
        (FaultKind.KILL, "a/b/0", "it does not run"),
        (FaultKind.PAUSE, "syncer", "it does not run"),
        (FaultKind.KILL, "b", "no such process"),
        (FaultKind.PAUSE, "../b", "no such process"),
        (FaultKind.CUT, "b", "its link has no relay"),
    ],
)
def test_what_cannot_be_hit_is_refused(run: Run, place: LocalPlace, kind: FaultKind, victim: str, reason: str) -> None:
    assert place.hit(Fault(kind, victim, (victim,), seconds=5.0)) == ((), f"{victim}: {reason}")
    assert run.events == []
    assert not run.injector.paused


def test_a_cut_without_a_relay_is_told_before_anything_is_hit(place: LocalPlace) -> None:
    place.check((CUT,))
    with pytest.raises(ChaosError, match=r"^cut west: its link cannot be cut; start the run with diloco run --relays$"):
        place.check((CUT, Fault(FaultKind.CUT, "west", ("west",))))


def test_one_session_at_a_time_and_others_may_look(run: Run, place: LocalPlace) -> None:
    with closing(LocalPlace(run.root)) as other:
        assert other.facts == FACTS
        with pytest.raises(ChaosError, match=r"out: another diloco chaos is at work on this run; wait for it$"):
            other.begin()
        assert other.hit(CUT)[0] == ()
    assert place.hit(CUT) == (("a",), "")
    place.close()
    wait_until(lambda: run.manner() is None, "its link is back")
    assert run.events == ["cut", "heal"], "a session that dies leaves nothing cut"
    with closing(LocalPlace(run.root)) as later:
        later.begin()


def test_a_run_that_ends_or_is_killed_is_over(run: Run, place: LocalPlace) -> None:
    run.kill()
    wait_until(place.over, "the run is over")
    assert place.hit(CUT) == ((), "the run has ended")
    with pytest.raises(ChaosError, match=r"out: no run is going on there; start it with diloco run"):
        LocalPlace(run.root)
    with started(run.root) as again, closing(LocalPlace(run.root)) as resumed:
        assert resumed.hit(CUT) == (("a",), "")
        assert again.manner() is Manner.RESET
    assert run.manner() is None
    assert not (run.root / "chaos.sock").exists()


def test_a_folder_that_moves_stays_with_its_run(run: Run, place: LocalPlace) -> None:
    run.root.rename(run.root.with_name("moved"))
    with started(run.root) as other:
        assert place.hit(CUT) == (("a",), "")
        assert other.manner() is None
        run.stop()
        with closing(LocalPlace(run.root)) as reached:
            assert reached.hit(CUT) == (("a",), "")


def test_a_run_in_a_folder_of_any_length_is_reached(tmp_path: Path) -> None:
    folder = tmp_path / "/".join(["x" * 60] * 6)
    with started(folder) as run, closing(LocalPlace(folder)) as place:
        assert place.hit(CUT) == (("a",), "")
        assert run.announced[1:] == []


@pytest.mark.parametrize("message", [b"\xff", b"[]", b"7", b'{"kind": "explode"}', b"[" * 10_000])
def test_what_is_no_fault_ends_that_connection_alone(run: Run, message: bytes) -> None:
    with closing(LocalPlace(run.root)) as wrong, closing(LocalPlace(run.root)) as place:
        wrong._socket.send(message)
        wait_until(wrong.over, "the connection ends")
        assert place.hit(CUT) == (("a",), "")


def test_a_run_that_does_not_answer_ends_the_session(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diloco.local.chaos.run_socket._ANSWER_SECONDS", 3.0)
    with closing(LocalPlace(run.root)) as place:
        run.stopped.set()
        run.thread.join()
        assert place.hit(CUT) == ((), "the run did not answer")
        with pytest.raises(ChaosError, match=r"out: the run did not answer$"):
            place.over()
    with pytest.raises(ChaosError, match=r"out: the run does not answer$"):
        LocalPlace(run.root)


def test_a_folder_that_cannot_have_a_socket_is_told_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "out" / "chaos.sock" / "in the way").mkdir(parents=True)
    with started(tmp_path / "out") as run:
        (line,) = run.announced
    assert line.startswith(f"diloco chaos cannot reach this run: {tmp_path}/out/chaos.sock: ")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_another_user_is_refused() -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        with started(Path(name)) as run:
            os.seteuid(65534)
            try:
                with pytest.raises(ChaosError, match="the run belongs to another user; only its owner can inject"):
                    LocalPlace(run.root)
            finally:
                os.seteuid(0)


def test_only_the_owner_may_write_to_the_socket(run: Run) -> None:
    assert (run.root / "chaos.sock").stat().st_mode & 0o777 == 0o600


def test_it_is_no_run_without_a_socket_there(tmp_path: Path) -> None:
    (tmp_path / "chaos.sock").write_text("")
    with pytest.raises(ChaosError, match="no run is going on there"):
        LocalPlace(tmp_path)
    with pytest.raises(ChaosError, match="no run is going on there"):
        LocalPlace(tmp_path / "missing")
