"""The example of Hugging Face's format, by the commands of its README, with learners killed on the way."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documented_commands import local_script

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/huggingface"


@pytest.mark.timeout(900)
def test_the_examples_commands_lead_from_a_corpus_to_written_text(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "examples/huggingface")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    script = local_script((EXAMPLE / "README.md").read_text(encoding="utf-8"))
    command = ["/bin/sh", "-e", "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tiny/trained: written; load it with transformers\ndef " in done.stdout
    summary = json.loads((tmp_path / "runs/huggingface/summary.json").read_text(encoding="utf-8"))
    assert sum(learner["restarts"] for learner in summary["learners"]) >= 1
