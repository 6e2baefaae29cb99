"""The steps of `make test`: in order, with clusters where they are wanted, and nothing left whatever ends them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testbed import prometheus
from testbed.kind import bed, steps
from testbed.kind.commands import Unavailable
from testbed.kind.waiting import wait_until

MAKEFILE = """\
first second: ; @echo $@ $$DILOCO_CLUSTERS_UNAVAILABLE >> made; echo "  some test: no device" > build/skipped.txt
broken: ; @false
said whispered: ; @echo $@ at $$(nice)
group: ; @sleep 0.2; cat /proc/self/autogroup > group
long: ; @echo $$$$ > long.pid; sleep 1000
"""


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """A folder with a Makefile, no set-up beside it, and the clusters that are taken down."""
    monkeypatch.chdir(tmp_path)
    Path("Makefile").write_text(MAKEFILE, encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "executable", "true")
    monkeypatch.setattr(bed, "programs", lambda: None)
    monkeypatch.setattr(prometheus, "ensure", lambda _: None)
    names: list[str] = []
    monkeypatch.setattr(bed, "end_of_use", names.append)
    # A run ends by ignoring them, as its process is to end.
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return names


def test_steps_run_in_order_and_what_was_skipped_is_told_last(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], ended: list[str]
) -> None:
    class Brought:
        def images(self) -> None:
            with Path("made").open("a", encoding="utf-8") as file:
                file.write("clusters\n")

    monkeypatch.setattr(bed, "up", lambda _name, workers: Brought() if workers else None)
    assert steps.run(["first", "programs", "clusters", "second"], {"diloco-a": 1}) == 0
    assert Path("made").read_text(encoding="utf-8").split() == ["first", "clusters", "second"]
    assert ended == ["diloco-a"]
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        *("Minutes:", "first", "programs", "clusters", "second", "ending", "all"),
        *("Took", "Failed", "Skipped:", "some"),
    ]


@pytest.mark.usefixtures("ended")
def test_tests_are_told_why_there_are_no_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(_name: str, workers: int) -> None:
        raise Unavailable(f"no engine for {workers} worker")

    monkeypatch.setattr(bed, "up", unavailable)
    assert steps.run(["clusters", "second"], {"diloco-a": 1}) == 0
    assert Path("made").read_text(encoding="utf-8") == "second no engine for 1 worker\n"


def test_a_step_that_fails_is_the_last_one(ended: list[str]) -> None:
    assert steps.run(["broken", "second"], {"diloco-a": 1}) != 0
    assert not Path("made").exists()
    assert ended == ["diloco-a"]


@pytest.mark.usefixtures("ended")
def test_a_step_beside_another_is_shown_after_it_and_may_fail(capfd: pytest.CaptureFixture[str]) -> None:
    assert steps.run(["said+whispered"], {"diloco-a": 1}) == 0
    ours, lines = os.nice(0), capfd.readouterr().out.splitlines()
    assert lines[:2] == [f"said at {ours}", f"whispered at {min(ours + 10, 19)}"]
    assert steps.run(["first+broken", "second"], {"diloco-a": 1}) != 0
    assert Path("made").read_text(encoding="utf-8").split() == ["first"]


@pytest.mark.usefixtures("ended")
@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="sessions are no scheduling groups here")
def test_a_step_beside_another_leaves_the_cores_to_other_sessions() -> None:
    assert steps.run(["first+group"], {"diloco-a": 1}) == 0
    assert Path("group").read_text(encoding="utf-8").split()[1:] == ["nice", "10"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_by_steps_that_are_interrupted(tmp_path: Path, number: signal.Signals) -> None:
    set_up = tmp_path / "set-up"
    set_up.write_text("#!/bin/sh\necho $$ > set-up.pid\nsleep 1000\n", encoding="utf-8")
    set_up.chmod(0o755)
    (tmp_path / "Makefile").write_text(MAKEFILE, encoding="utf-8")
    program = (
        "import signal, sys; from testbed.kind import bed, steps; sys.executable = './set-up';"
        # As the command does: before a target's own handler is there, the signal would end only this process.
        "signal.signal(signal.SIGTERM, signal.default_int_handler);"
        "bed.end_of_use = print; sys.exit(steps.run(['long'], {'diloco-a': 1}))"
    )
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, env=env) as process:
        try:
            sessions = [_session(tmp_path / name) for name in ("long.pid", "set-up.pid")]
        finally:
            process.send_signal(number)
        assert process.wait(60) != 0
    wait_until(lambda: not any(map(_is_there, sessions)), "the sessions' ends")


def _is_there(session: int) -> bool:
    try:
        os.killpg(session, 0)
    except ProcessLookupError:
        return False
    return True


def _session(file: Path) -> int:
    return os.getsid(int(wait_until(lambda: file.exists() and file.read_text(encoding="utf-8"), file.name, 100)))
