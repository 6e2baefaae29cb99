"""A learner of several processes whose other processes die, hang or differ: it ends at once, and comes back whole."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from diloco.runtime.process.exits import EXIT_OK, EXIT_REFUSED, EXIT_STUCK, EXIT_UNEXPECTED
from tests.support.learner_process import LearnerProcess, make_job
from tests.support.local_run import GENTLE, SYNC, WAIT_SECONDS, LocalRun, of, untouched, write_job
from tests.support.unit_deaths import CASES, ORDERS

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]
RANKS = 2


def test_every_end_of_a_process_ends_its_learner_with_the_cause() -> None:
    command = [sys.executable, "-m", "tests.support.unit_deaths"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=True).stdout
    ends = {case: (code, line) for case, code, line in map(json.loads, told.splitlines())}
    assert set(ends) == set(CASES)
    begin = "rank 1 of here/cpu/0 ended"
    killed = EXIT_UNEXPECTED, f"{begin} (SIGKILL)"
    cases = [*ORDERS.keys() - {"END"}, "joining", "writing"]
    assert {case: ends[case] for case in cases} == dict.fromkeys(cases, killed)
    # All is done by then.
    assert ends["END"] == ends["nothing"] == (EXIT_OK, "")
    unexpected = f"{begin} (exit code {EXIT_UNEXPECTED}): stopped by an unexpected error: "
    assert ends["MemoryError"] == (EXIT_UNEXPECTED, f"{unexpected}MemoryError")
    assert ends["no memory"][0] == EXIT_UNEXPECTED
    assert ends["no memory"][1].startswith(f"{unexpected}RuntimeError: ")
    differs = f"{begin} (exit code {EXIT_REFUSED}): rank 1 differs from rank 0 in "
    assert ends["another version"][0] == ends["another number"][0] == EXIT_REFUSED
    assert ends["another version"][1].startswith(f"{differs}diloco (0.0.9, there ")
    assert "layout (other, there " in ends["another version"][1]
    assert ends["another number"][1].startswith(f"{differs}number of processes (3, there 2)")


def test_a_stop_before_the_first_step_leaves_no_process(tmp_path: Path) -> None:
    make_job(tmp_path)
    with LearnerProcess(tmp_path, "127.0.0.1:1", "--processes", str(RANKS), "--device", "cpu") as learner:
        learner.wait_for("training on cpu")
        others = ranks_in(tmp_path)
        learner.terminate()
        assert learner.wait() == EXIT_OK
    assert len(others) == RANKS - 1
    assert not any(one.is_running() for one in others)
    assert not list(learner.directory.glob(".unit-*"))


def ranks_in(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "rank" in line and str(folder) in " ".join(line):
            found.append(process)
    return found


@pytest.mark.core
def test_a_unit_is_restarted_as_one_and_the_others_train_on(tmp_path: Path) -> None:
    pools = [{"name": "p", "learners": 1, "processesPerNode": RANKS}]
    regions = [{"name": name, "pools": pools} for name in ("east", "west")]
    victim, other = "west/p/0", "east/p/0"
    job = write_job(
        tmp_path,
        regions=regions,
        failurePolicy={"stuckSeconds": 2},
        training={"checkpointEverySteps": 4},
        sync=SYNC | {"fragments": 4},
    )
    with LocalRun(job, "--device", "cpu", *GENTLE) as run:
        run.wait_until(run.merging)
        before = run.all_train()
        run.trains_on(victim, 0)
        (follower,) = run.processes("rank", victim)
        follower.kill()
        run.wait_until(lambda: run.starts(victim) == 2)
        assert "rank 1 of west/p/0 ended (SIGKILL)" in run.log(victim)
        run.trains_on(victim, of(run.all_train(), victim).steps)
        (follower,) = run.processes("rank", victim)
        follower.send_signal(signal.SIGSTOP)
        run.wait_until(lambda: run.starts(victim) == 3)
        assert follower not in run.processes("rank")
        run.trains_on(victim, of(run.all_train(), victim).steps)
        after = run.trains_on(other, of(before, other).steps)
        untouched(before, after, other)
        codes = [one["code"] for one in ends(run, victim)]
        assert codes == [EXIT_UNEXPECTED, EXIT_STUCK]
        run.interrupt()
        assert run.processes() == []


def ends(run: LocalRun, learner: str) -> list[dict[str, int]]:
    lines = map(json.loads, (run.output / "supervisor.jsonl").read_text().splitlines())
    return [line for line in lines if (line.get("event"), line.get("process")) == ("exit", learner)]
