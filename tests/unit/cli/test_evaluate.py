import json
from pathlib import Path

import pytest

from diloco.cli.main import execute
from diloco.model import ModelInfo, export_model
from diloco.model.build import build_model
from diloco.spec import load_job

MANIFEST = """
apiVersion: diloco.dev/v1alpha1
kind: DiLoCoJob
metadata: {name: images}
spec:
  model: {entrypoint: "tests.support.tasks:images_model"}
  task: {entrypoint: "tests.support.tasks:Images"}
  training: {tokens: 10_000, sequenceLength: 1, batchSize: 8, evaluation: {sequences: 20}}
  regions: [{name: here, pools: [{name: cpu}]}]
"""


def test_the_tasks_loss_and_metrics_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest, model = tmp_path / "job.yaml", tmp_path / "model.safetensors"
    manifest.write_text(MANIFEST)
    spec = load_job(manifest).spec
    export_model(build_model(spec), model, ModelInfo("images", spec.model, 0, 1, "", 80))
    command = ["evaluate", "--job", str(manifest), "--model", str(model)]
    assert execute([*command, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert 1 < said["loss"] < 2
    assert set(said["metrics"]) == {"accuracy"}
    assert execute(command) == 0
    told = f"loss {said['loss']:.4f} on average, accuracy {said['metrics']['accuracy']:.4g}, on 20 held-out examples"
    assert told in capsys.readouterr().out
