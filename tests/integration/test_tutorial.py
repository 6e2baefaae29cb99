"""The tutorial of a model of one's own, word for word: it trains, a learner is killed, the model writes."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from testbed import fork_server
from tests.support.documented_commands import files, local_script, statements
from tests.support.local_run import PROGRAM

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs/tutorials/own-model.md"


def carry_out(statement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a shell does. A program alone is forked: each of its processes would load for seconds."""
    match shlex.split(statement, comments=True):
        case ["export", *settings]:
            for setting in settings:
                name, _, value = setting.partition("=")
                monkeypatch.setenv(name, os.path.expandvars(value))
            return
        case ["cd", folder]:
            monkeypatch.chdir(folder)
            return
        case ["diloco", *arguments] if not {"|", "||"} & {*arguments}:
            done = fork_server.run([*PROGRAM, *arguments])
        case _:
            done = subprocess.run(["/bin/sh", "-c", statement], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.processes
@pytest.mark.timeout(900)
def test_the_tutorials_commands_train_kill_and_use_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tutorial = PAGE.read_text(encoding="utf-8")
    shutil.copytree(PAGE.parents[1], tmp_path / "docs")
    (tmp_path / "mine").mkdir()
    for name, text in files(tutorial).items():
        (tmp_path / "mine" / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    for statement in statements(local_script(tutorial)):
        carry_out(statement, monkeypatch)
    runs = tmp_path / "mine/runs"
    assert (runs / "mine/model.safetensors").is_file()
    summary = json.loads((runs / "killed/summary.json").read_text(encoding="utf-8"))
    assert sum(learner["restarts"] for learner in summary["learners"]) == 1
