"""What the page of the Python API shows runs: a job trains its model on its data, its tokenizer makes a file."""

import importlib
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from diloco.cli.main import execute
from diloco.learner.data import open_token_file
from diloco.model import ModelInfo, export_model
from diloco.model.build import build_model
from diloco.spec import parse_job
from tests.support.small_learner import trainer_of

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/api.md"
JOB = """
apiVersion: diloco.dev/v1alpha1
kind: DiLoCoJob
metadata: {name: mine}
spec:
  training: {tokens: 800, sequenceLength: 8, batchSize: 2, evaluation: {everyTokens: 800, sequences: 4}}
  sync: {fragments: 3, interval: 3}
  regions: [{name: here, pools: [{name: cpu, learners: 2}]}]
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a user's code and manifest are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mycode.py").write_text("\n".join(blocks("python")[:4]), encoding="utf-8")
    job = yaml.safe_load(JOB)
    job["spec"] |= yaml.safe_load(blocks("yaml")[0])["spec"]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    return tmp_path


def test_the_page_lists_all_that_the_packages_export() -> None:
    rows = re.findall(r"^\| `(diloco[a-z.]*)` \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == 5
    for package, names in rows:
        assert sorted(re.findall(r"`(\w+)`", names)) == sorted(importlib.import_module(package).__all__)


def test_the_wheel_says_that_it_is_typed() -> None:
    packages = tomllib.loads((PAGE.parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert "py.typed" in packages["package-data"]["diloco"]
    assert (PAGE.parents[2] / packages["package-dir"]["diloco"] / "py.typed").is_file()


@pytest.mark.usefixtures("one_torch_thread")
def test_the_pages_model_and_data_train_and_load(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = parse_job((folder / "job.yaml").read_text(encoding="utf-8"))
    module = build_model(job.spec)
    (folder / "runs/mine").mkdir(parents=True)
    info = ModelInfo("mine", job.spec.model, 0, 8, "", 0)
    export_model(module, folder / "runs/mine/model.safetensors", info)
    names: dict[str, object] = {}
    model, _, _, _, loading, simulating = blocks("python")
    for text in (model, loading, simulating):
        exec(compile(text, PAGE, "exec"), names)
    assert getattr(names["logits"], "shape", None) == (1, 3, 100)
    before, after, seconds, goodput = map(float, capsys.readouterr().out.split())
    assert after < before
    assert seconds > 20
    assert 0 < goodput < 1


@pytest.mark.usefixtures("one_torch_thread")
def test_the_pages_task_trains(folder: Path) -> None:
    job = yaml.safe_load((folder / "job.yaml").read_text(encoding="utf-8"))
    job["spec"] |= yaml.safe_load(blocks("yaml")[1])["spec"] | {"data": {}, "sync": {"fragments": 1}}
    job["spec"]["model"] = {"entrypoint": "torch.nn:Linear", "arguments": {"in_features": 1, "out_features": 1}}
    trainer = trainer_of(parse_job(yaml.safe_dump(job)).spec)
    before = trainer.evaluate()
    for _ in range(100):
        trainer.step(0.0)
    trainer.apply(0, 1, trainer.capture(0)._values)
    assert trainer.evaluate() < before
    assert list(trainer.metrics) == ["error"]


def test_the_pages_tokenizer_makes_a_token_file(folder: Path) -> None:
    (folder / "text").mkdir()
    (folder / "text" / "a.txt").write_text("Ab z", encoding="utf-8")
    command = ["tokens", "text", "--tokenizer", "mycode:make_tokenizer", "--output", "corpus.tokens"]
    assert execute(command) == 0
    assert open_token_file(folder / "corpus.tokens").read(0, 5).tolist() == [1, 2, 0, 26, 27]
