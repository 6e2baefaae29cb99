"""The loops of `examples/session`, each in two learners, which are both killed on the way."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed import fork_server
from tests.support.local_run import GENTLE, PROGRAM, LocalRun, of, untouched

LEARNERS = "here/cpu/0", "here/cpu/1"
EXAMPLE = Path(__file__).resolve().parents[2] / "examples/session"


@pytest.fixture(scope="module", autouse=True)
def libraries_loaded_once() -> Iterator[None]:
    with fork_server.loading("transformers.trainer", "pytorch_lightning"):
        yield


def newest_checkpoints(run: LocalRun) -> list[dict[str, Any]]:
    folders = run.output.glob("learners/*/checkpoints")
    return [json.loads((max(one.iterdir()) / "manifest.json").read_text(encoding="utf-8")) for one in folders]


@pytest.mark.processes
@pytest.mark.timeout(900)
@pytest.mark.parametrize("loop", [pytest.param("plain", marks=pytest.mark.core), "with_trainer", "with_lightning"])
def test_a_loop_goes_on_after_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{EXAMPLE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.chdir(tmp_path)
    job = tmp_path / "job.yaml"
    manifest = (EXAMPLE / "job.yaml").read_text(encoding="utf-8").replace("plain:train", f"{loop}:train")
    job.write_text(manifest.replace("16_000", "4_000"))
    with LocalRun(job, "--chaos", "kill:*@step=20") as run:
        done = run.ended()
    assert done.returncode == 0, done.stderr
    assert [run.starts(name) for name in LEARNERS] == [2, 2]
    summary = run.summary()
    assert summary["eval_loss"] < 0.8 * summary["eval_loss_start"]
    # One of them may come back when the other has done the rest.
    logs = [log.read_text(encoding="utf-8") for log in run.output.glob("logs/here.*.log")]
    assert any("continues from its own checkpoint of step" in log for log in logs)
    assert not any("step() was called" in log for log in logs)
    assert any(kept["optimizer_steps"] >= 10 for kept in newest_checkpoints(run))
    told = fork_server.run([*PROGRAM, "data", str(run.output)])
    assert (told.returncode, "the job's loop has data of its own" in told.stdout) == (0, True)


@pytest.mark.processes
@pytest.mark.timeout(900)
@pytest.mark.parametrize("loop", ["with_fsdp", "with_trainer", "with_lightning"])
def test_a_loop_in_several_processes_outlives_the_kill_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{EXAMPLE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.chdir(tmp_path)
    job = tmp_path / "job.yaml"
    manifest = (EXAMPLE / "several.yaml").read_text(encoding="utf-8").replace("with_fsdp:train", f"{loop}:train")
    job.write_text(manifest.replace("16_000", "16_000_000"))
    killed, other = LEARNERS
    with LocalRun(job, *GENTLE) as run:
        run.trains_on(killed, 20)
        before = run.all_train()  # the other one may begin later
        (follower,) = run.processes("rank", killed)
        follower.kill()
        run.wait_until(lambda: run.starts(killed) == 2)
        run.trains_on(killed, of(run.all_train(), killed).steps)
        after = run.trains_on(other, of(before, other).steps)
        untouched(before, after, other)
        run.interrupt()
        assert run.processes() == []
    log = run.log(killed)
    assert f"rank 1 of {killed} ended (SIGKILL)" in log
    assert "continues from its own checkpoint of step" in log
    for name in LEARNERS:
        assert "wrote a checkpoint of step" in run.log(name)
