"""The other processes of a learner are started, watched, and end with it. Here they are plain Python."""

import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from diloco.learner.options import LearnerOptions
from diloco.learner.unit.starting import Unit, unit_of
from diloco.runtime.last_error import VARIABLE
from diloco.runtime.process.exits import EXIT_BAD_INPUT, EXIT_REFUSED, EXIT_UNEXPECTED
from diloco.spec import parse_job
from tests.support.small_learner import learner_options

WAIT_SECONDS = 60.0
WAITS = "import sys; sys.stdin.read(); import time; time.sleep(1000)"


class Exits:
    """Stands for ``os._exit``."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self._called = threading.Event()

    def __call__(self, code: int) -> None:
        self.codes.append(code)
        self._called.set()

    def wait(self) -> list[int]:
        assert self._called.wait(WAIT_SECONDS)
        return self.codes


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The programs that are to run instead of each rank, first those of the first; then what was asked for."""
    programs: list[list[str]] = []
    really = subprocess.Popen

    def popen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        program = programs.pop(0)
        programs.append(command)
        return really([sys.executable, "-S", "-c", *program], **options)

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "other")
    return programs


def options_of(folder: Path, **changes: Any) -> LearnerOptions:
    return learner_options(folder, **({"processes": 3, "threads": 2, "device": "cpu"} | changes))


SAYS = f"import os, sys; open(os.environ[{VARIABLE!r}], 'w').write('why\\n'); sys.exit"


@pytest.mark.parametrize(
    ("program", "becomes", "how"),
    [(f"{SAYS}({code})", code, f"exit code {code}): why") for code in (EXIT_UNEXPECTED, EXIT_BAD_INPUT, EXIT_REFUSED)]
    + [(f"{SAYS}(0)", EXIT_UNEXPECTED, "exit code 0): why")]
    + [("import os; os.kill(os.getpid(), 9)", EXIT_UNEXPECTED, "SIGKILL)")],
)
def test_the_end_of_one_is_the_learners_with_its_cause(
    tmp_path: Path, commands: list[list[str]], caplog: pytest.LogCaptureFixture, program: str, becomes: int, *, how: str
) -> None:
    commands[:] = [[WAITS], [program]]
    exits = Exits()
    with closing(Unit(options_of(tmp_path), exits)):
        assert exits.wait() == [becomes]
        assert caplog.messages == [f"rank 2 of here/cpu/0 ended ({how}"]


@pytest.mark.parametrize("told", [True, False])
def test_their_end_is_waited_for_and_forced(tmp_path: Path, commands: list[list[str]], told: bool) -> None:
    commands[:] = [["import sys; sys.stdin.read()"] if told else [WAITS]]
    exits = Exits()
    unit = Unit(options_of(tmp_path, processes=2), exits)
    (child,) = unit._children.values()
    unit.end((lambda: None) if told else raise_runtime_error)
    assert child.returncode == (0 if told else -9)
    unit.await_cause()
    assert exits.codes == []
    assert not list((tmp_path / "learner").iterdir())


def raise_runtime_error() -> None:
    raise RuntimeError("Connection closed by peer")


def test_each_gets_the_job_and_its_part(tmp_path: Path, commands: list[list[str]]) -> None:
    copies = "import os, sys; open(os.environ[{!r}] + '.job', 'w').write(sys.stdin.read() + os.environ[{!r}])"
    commands[:] = [[copies.format(VARIABLE, "GLOO_SOCKET_IFNAME")]] * 2
    options = options_of(tmp_path, device="cuda:3,cuda:4,cuda:5", log_json=True)
    left = options.directory / ".unit-left"
    left.mkdir(parents=True)
    unit = Unit(options, lambda _: None)
    for child in unit._children.values():
        child.wait()
    assert not left.exists()
    told = [path.read_text() for path in sorted(Path(unit.store).parent.glob("*.job"))]
    assert all(one.endswith("lo") and parse_job(one.removesuffix("lo")) == options.job for one in told)
    assert len(told) == 2
    flags = dict(zip(commands[1][4:-1:2], commands[1][5:-1:2], strict=False))
    assert (flags["--rank"], flags["--ranks"], flags["--device"], flags["--threads"]) == ("2", "3", "cuda:5", "2")
    assert "--log-json" in commands[1]
    unit.close()


def test_none_is_left_if_not_all_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    really = subprocess.Popen
    started: list[subprocess.Popen[bytes]] = []

    def popen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        del command
        if started:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        started.append(really([sys.executable, "-S", "-c", WAITS], **options))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(SystemExit) as ended, unit_of(options_of(tmp_path)):
        pass
    assert ended.value.code == EXIT_UNEXPECTED
    assert caplog.messages[0].startswith("cannot start the processes of here/cpu/0: ")
    assert not psutil.pid_exists(started[0].pid)


def test_a_learner_of_one_process_is_no_unit(tmp_path: Path) -> None:
    with unit_of(options_of(tmp_path, processes=None)) as unit:
        assert unit is None
