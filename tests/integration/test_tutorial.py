"""The tutorial of a model of one's own, word for word: it trains, a learner is killed, the model writes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documented_commands import files, local_script

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs/tutorials/own-model.md"


@pytest.mark.timeout(900)
def test_the_tutorials_commands_train_kill_and_use_a_model(tmp_path: Path) -> None:
    tutorial = PAGE.read_text(encoding="utf-8")
    shutil.copytree(PAGE.parents[1], tmp_path / "docs")
    (tmp_path / "mine").mkdir()
    for name, text in files(tutorial).items():
        (tmp_path / "mine" / name).write_text(text, encoding="utf-8")
    environment = {"PYTHONPATH": "", **os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["/bin/sh", "-e", "-c", local_script(tutorial)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = tmp_path / "mine/runs"
    assert (runs / "mine/model.safetensors").is_file()
    summary = json.loads((runs / "killed/summary.json").read_text(encoding="utf-8"))
    assert sum(learner["restarts"] for learner in summary["learners"]) == 1
