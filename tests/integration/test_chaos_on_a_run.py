"""``diloco chaos`` beside a real ``diloco run``: the victims recover, nobody else restarts, and the report says so."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diloco.local.journal import read_journal
from diloco.runtime.exits import EXIT_BAD_INPUT, EXIT_INTERRUPTED
from testbed import fork_server
from tests.support.local_run import WAIT_SECONDS, merging, started, starts, status, training, wait_until, write_job

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]
VICTIM, OTHER = "west/old/0", "east/fast/0"


def command(output: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "diloco.cli.entry", "chaos", str(output), *flags]


def chaos(output: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return fork_server.run(command(output, *flags), WAIT_SECONDS)


def events(output: Path) -> list[tuple[str, str]]:
    return [(entry.event, entry.process) for entry in read_journal(output / "supervisor.jsonl")]


def test_victims_recover_and_only_they_restart(tmp_path: Path) -> None:
    job, output = write_job(tmp_path, 10**9), tmp_path / "out"
    with started(job, output, "--relays") as process:
        wait_until(lambda: merging(output) and training(output) == {VICTIM, OTHER}, process)
        told = chaos(
            output,
            *("--for", "5s", "--seed", "3", "--settle", "200"),
            *("--fault", f"kill:{VICTIM}@at=0.5", "--fault", "cut:east@at=1,seconds=1"),
        )
        assert told.returncode == 0, told.stderr
        assert "2 fault(s) within 5s, --seed 3" in told.stdout
        found = json.loads((output / "chaos.json").read_text())
        kill, cut = found["faults"]
        assert (kill["kind"], kill["victims"], cut["victims"]) == ("kill", [VICTIM], ["east"])
        assert kill["recovered"] == 1
        assert kill["recovery_seconds"] > 0
        assert (starts(output, VICTIM), starts(output, OTHER), starts(output, "syncer")) == (2, 1, 1)
        (exit_of_victim,) = [entry for entry in read_journal(output / "supervisor.jsonl") if entry.event == "exit"]
        assert exit_of_victim.details["by_chaos"]
        told_of = [one for one in status(output).recoveries.latest if one.learner == VICTIM]
        assert len(told_of) == 1
        assert told_of[0].restarted
        dry = chaos(output, "--kill-pools", "3600", "--seed", "1", "--for", "10s", "--dry-run")
        assert dry.stdout == chaos(output, "--kill-pools", "3600", "--seed", "1", "--for", "10s", "--dry-run").stdout
        assert "kill west/old (west/old/0)" in dry.stdout
        assert starts(output, VICTIM) == 2
        # Ctrl-C ends a session, and what it has paused goes on.
        session = fork_server.Popen(
            command(output, "--for", "10min", "--fault", f"pause:{OTHER}@at=0,seconds=500"),
            stdout=subprocess.PIPE,
            text=True,
        )
        wait_until(lambda: ("pause", OTHER) in events(output), process)
        session.send_signal(signal.SIGINT)
        assert "nothing is left paused or cut" in session.communicate(timeout=WAIT_SECONDS)[0]
        assert session.returncode == EXIT_INTERRUPTED
        wait_until(lambda: ("continue", OTHER) in events(output), process)
        for flags, complaint in {
            ("--fault", "kill:north@at=1"): "'north' matches no learner of this job",
            ("--kill-learners", "6", "--only", "wets"): "--only 'wets': 'wets' matches no learner of this job",
            ("--kill-nodes", "6"): "--kill-nodes: 6 cannot be used on this machine",
            ("--fault", "kill:west@step=9"): "kill has no option 'step'; use at, rate",
        }.items():
            refused = chaos(output, *flags)
            assert refused.returncode == EXIT_BAD_INPUT
            assert complaint in refused.stderr
            assert len(refused.stderr.splitlines()) == 1
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_SECONDS)
    refused = chaos(output, "--kill-learners", "6")
    assert "no run is going on there" in refused.stderr


def test_the_report_of_a_run_has_what_was_injected(tmp_path: Path) -> None:
    job, output = write_job(tmp_path, 40_000), tmp_path / "out"
    with started(job, output) as process:
        wait_until(lambda: merging(output) and training(output) == {VICTIM, OTHER}, process)
        told = chaos(output, "--for", "1s", "--settle", "0", "--fault", f"kill:{VICTIM}@at=0")
        assert told.returncode == 0, told.stderr
        _, complaints = process.communicate(timeout=2 * WAIT_SECONDS)
    assert process.returncode == 0, complaints
    page = (output / "report.html").read_text()
    assert "Injected faults and what they did" in page
    (fault,) = json.loads((output / "chaos.json").read_text())["faults"]
    assert (fault["kind"], fault["victims"], fault["recovered"]) == ("kill", [VICTIM], 1)
    assert fault["recovery_seconds"] > 0
    summary = json.loads((output / "summary.json").read_text())
    (recovery,) = [one for one in summary["recoveries"] if one["learner"] == VICTIM]
    parts = sum(recovery[part] for part in ("down", "loading", "stepping", "merging"))
    assert recovery["seconds"] == pytest.approx(parts, abs=0.01)
    assert summary["merged"] <= summary["goodput"] <= 1


def test_a_file_of_orders_that_others_may_write_is_ignored(tmp_path: Path) -> None:
    job, output = write_job(tmp_path, 10**9), tmp_path / "out"
    with started(job, output) as process:
        wait_until(lambda: merging(output), process)
        refused = chaos(output, "--fault", "cut:east@at=1,seconds=1")
        assert "its link cannot be cut; start the run with diloco run --relays" in refused.stderr
        orders = output / "chaos.orders"
        orders.touch()
        orders.chmod(0o666)
        line = {"id": "x", "made_at": time.time(), "kind": "kill", "victims": [OTHER], "seconds": 0, "manner": "silent"}
        orders.write_text(json.dumps(line) + "\n")
        steps = status(output).syncer_step
        wait_until(lambda: status(output).syncer_step > steps + 5, process)
        assert ("kill", OTHER) not in events(output)
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=WAIT_SECONDS)
    assert "chaos.orders is ignored: it must belong to this user" in told
