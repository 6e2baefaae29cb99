"""``diloco chaos`` beside a real ``diloco run``: the victims recover, nobody else restarts, and the report says so."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from diloco.runtime.journal import read_journal
from diloco.runtime.process.exits import EXIT_BAD_INPUT, EXIT_INTERRUPTED
from testbed import fork_server
from tests.support.local_run import GENTLE, LEARNERS, PROGRAM, WAIT_SECONDS, LocalRun, write_job

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]
OTHER, VICTIM = LEARNERS


def command(run: LocalRun, *flags: str) -> list[str]:
    return [*PROGRAM, "chaos", str(run.output), *flags]


def chaos(run: LocalRun, *flags: str) -> subprocess.CompletedProcess[str]:
    return fork_server.run(command(run, *flags), WAIT_SECONDS)


def trains(run: LocalRun) -> None:
    """Wait until all of it does, and something has been merged."""
    run.wait_until(run.merging)
    run.all_train()


def test_victims_recover_and_only_they_restart(tmp_path: Path) -> None:
    with LocalRun(write_job(tmp_path), "--relays", *GENTLE) as run:
        trains(run)
        told = chaos(
            run,
            *("--for", "5s", "--seed", "3", "--settle", "200"),
            *("--fault", f"kill:{VICTIM}@at=0.5", "--fault", "cut:east@at=1,seconds=1"),
        )
        assert told.returncode == 0, told.stderr
        assert "2 fault(s) within 5s, --seed 3" in told.stdout
        found = json.loads((run.output / "chaos.json").read_text())
        kill, cut = found["faults"]
        assert (kill["kind"], kill["victims"], cut["victims"]) == ("kill", [VICTIM], ["east"])
        assert kill["recovered"] == 1
        assert kill["recovery_seconds"] > 0
        assert (run.starts(VICTIM), run.starts(OTHER), run.starts("syncer")) == (2, 1, 1)
        (exit_of_victim,) = [entry for entry in read_journal(run.output / "supervisor.jsonl") if entry.event == "exit"]
        assert exit_of_victim.details["by_chaos"]
        told_of = [one for one in run.status().recoveries.latest if one.learner == VICTIM]
        assert len(told_of) == 1
        assert told_of[0].restarted
        pools = ("--fault", "kill:*@rate=3600,by=pool", "--seed", "1", "--for", "10s", "--dry-run")
        dry = chaos(run, *pools)
        assert dry.stdout == chaos(run, *pools).stdout
        assert "kill west/old (west/old/0)" in dry.stdout
        assert run.starts(VICTIM) == 2
        # Ctrl-C ends a session, and what it has paused goes on.
        session = fork_server.Popen(
            command(run, "--for", "10min", "--fault", f"pause:{OTHER}@at=0,seconds=500"),
            stdout=subprocess.PIPE,
            text=True,
        )
        run.wait_until(lambda: ("pause", OTHER) in run.events())
        session.send_signal(signal.SIGINT)
        assert "nothing is left paused or cut" in session.communicate(timeout=WAIT_SECONDS)[0]
        assert session.returncode == EXIT_INTERRUPTED
        run.wait_until(lambda: ("continue", OTHER) in run.events())
        for flags, complaint in {
            ("--fault", "kill:north@at=1"): "'north' matches no learner of this job",
            ("--fault", "kill:*@rate=6,by=node"): "by 'node' is not known here; use learner, pool, region",
            ("--fault", "kill:west@step=9"): "kill has no option 'step'; use at, rate",
        }.items():
            refused = chaos(run, *flags)
            assert refused.returncode == EXIT_BAD_INPUT
            assert complaint in refused.stderr
            assert len(refused.stderr.splitlines()) == 1
        run.interrupt()
    refused = chaos(run, "--fault", "kill:*@rate=6")
    assert "no run is going on there" in refused.stderr


def test_the_report_of_a_run_has_what_was_injected(tmp_path: Path) -> None:
    with LocalRun(write_job(tmp_path, 40_000)) as run:
        trains(run)
        told = chaos(run, "--for", "1s", "--settle", "0", "--fault", f"kill:{VICTIM}@at=0")
        assert told.returncode == 0, told.stderr
        ended = run.ended()
    assert ended.returncode == 0, ended.stderr
    page = (run.output / "report.html").read_text()
    assert "Injected faults and what they did" in page
    (fault,) = json.loads((run.output / "chaos.json").read_text())["faults"]
    assert (fault["kind"], fault["victims"], fault["recovered"]) == ("kill", [VICTIM], 1)
    assert fault["recovery_seconds"] > 0
    summary = run.summary()
    (recovery,) = [one for one in summary["recoveries"] if one["learner"] == VICTIM]
    parts = sum(recovery[part] for part in ("down", "loading", "stepping", "merging"))
    assert recovery["seconds"] == pytest.approx(parts, abs=0.01)
    assert summary["merged"] <= summary["goodput"] <= 1
