"""The examples that bring a model or a task, by the commands of their READMEs, with learners killed on the way."""

import json
import re
import runpy
import shlex
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed import fork_server
from tests.support.documented_commands import local_script, statements
from tests.support.local_run import PROGRAM

pytestmark = pytest.mark.processes

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LIBRARIES = ("transformers.models.llama.modeling_llama", "peft", "pyarrow.parquet", "tokenizers")
"""Loading them takes each process ten seconds."""

CarryOut = Callable[[str], str]


@pytest.fixture(scope="module")
def libraries_loaded_once() -> Iterator[None]:
    with fork_server.loading(*LIBRARIES):
        yield


@pytest.fixture
def carry_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> CarryOut:
    """Carries out the commands of an example's README; returns what they print. Its Python scripts run in here."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(EXAMPLES, "examples")

    def carried_out(example: str) -> str:
        for statement in statements(local_script((EXAMPLES / example / "README.md").read_text(encoding="utf-8"))):
            match shlex.split(statement, comments=True):
                case ["export", setting]:
                    monkeypatch.setenv(*setting.split("="))
                case ["python", script, *arguments]:
                    monkeypatch.setattr(sys, "argv", [script, *arguments])
                    with warnings.catch_warnings(action="ignore"):
                        runpy.run_path(script, run_name="__main__")
                case ["diloco", *arguments]:
                    done = fork_server.run([*PROGRAM, *arguments])
                    assert done.returncode == 0, done.stdout + done.stderr
                    print(done.stdout)
                case other:
                    pytest.fail(f"{other} is no command that is known here")
        return capfd.readouterr().out

    return carried_out


def summary(run: str) -> Any:
    """Of a run in which a learner was killed and came back."""
    found = json.loads(Path("runs", run, "summary.json").read_text(encoding="utf-8"))
    assert sum(learner["restarts"] for learner in found["learners"]) >= 1
    assert found["eval_loss"] < found["eval_loss_start"]
    return found


@pytest.mark.usefixtures("libraries_loaded_once")
def test_a_corpus_becomes_a_model_that_writes_text(carry_out: CarryOut) -> None:
    told = carry_out("huggingface")
    assert "tiny/trained: written; load it with transformers" in told
    assert "\ndef " in told
    summary("huggingface")


@pytest.mark.usefixtures("libraries_loaded_once")
def test_a_folder_is_tuned_by_adapters_and_by_answers(carry_out: CarryOut) -> None:
    told = carry_out("finetune")
    assert "tiny/adapter: written; load it with peft" in told
    assert "tiny/tuned: written; load it with transformers" in told
    assert told.count("\n12+7=") == 2
    assert summary("lora")["eval_loss"] > summary("sft")["eval_loss"] > 0


def test_a_task_of_images_trains_with_its_own_optimizer(carry_out: CarryOut) -> None:
    told = carry_out("own-task")
    assert float(re.findall(r"accuracy ([\d.]+)", told)[-1]) > 0.8
    summary("own-task")
