"""The trackers' own packages: a run that is killed and continued has each step once."""

import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto.wandb_internal_pb2 import Record

from diloco.spec.tracking import MLflow, TensorBoard, Tracker, WeightsAndBiases
from diloco.syncer.tracking.trackers import EventFiles, MLflowRun, TrackedRun, WandbRun, opened

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def run(folder: Path, training: str = "0123456789abcdef") -> TrackedRun:
    return TrackedRun("job", training, folder)


def test_event_files_show_nothing_of_what_was_written_beyond_the_place(tmp_path: Path) -> None:
    board = Tracker(tensorboard=TensorBoard())
    first = opened(board, run(tmp_path), -1)
    for step in (10, 20, 30):
        first.log(step, 1.7e9 + step, {"job/eval_loss": 1.0})
    first.flush()  # and is killed
    second = opened(board, run(tmp_path), 20)
    for step in (30, 40):
        second.log(step, 1.8e9 + step, {"job/eval_loss": 2.0})
    second.close(over=True)
    shown = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("job/eval_loss")
    assert [(one.step, one.value) for one in shown] == [(10, 1.0), (20, 1.0), (30, 2.0), (40, 2.0)]


def test_event_files_go_into_the_folder_that_is_given(tmp_path: Path) -> None:
    made = opened(Tracker(tensorboard=TensorBoard(folder=str(tmp_path / "boards"))), run(tmp_path), -1)
    assert isinstance(made, EventFiles)
    made.close(over=True)
    assert [path.name.partition(".tfevents")[0] for path in (tmp_path / "boards").iterdir()] == ["events.out"]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MLflow:
    """A store of MLflow in a folder: a manifest names a server."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    return MLflow.model_construct(uri=(tmp_path / "store").as_uri(), experiment="trained")


def test_a_run_of_mlflow_is_continued_and_knows_how_far_it_is(tmp_path: Path, store: MLflow) -> None:
    first = MLflowRun(store, run(tmp_path))
    assert first.last == -1
    values = {f"learners/east/a/{n}/loss": 2.0 for n in range(1200)}
    for step in (10, 20):
        first.log(step, 1.7e9 + step, values)
    first.close(over=False)
    second = MLflowRun(store, run(tmp_path))
    assert second.last == 20
    second.log(30, 1.7e9 + 30, values)
    second.close(over=True)
    other = MLflowRun(store, run(tmp_path, "ff"))
    assert other.last == -1
    (found,) = second._client.search_runs([second._experiment], "attributes.status = 'FINISHED'")
    assert (found.info.run_name, found.data.metrics["merged_tokens"]) == ("job", 30.0)
    history = second._client.get_metric_history(found.info.run_id, "learners/east/a/1199/loss")
    assert [(one.step, one.timestamp) for one in history] == [(n, (1_700_000_000 + n) * 1000) for n in (10, 20, 30)]


def test_a_run_of_wandb_has_the_curves_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    made = WandbRun(WeightsAndBiases(project="p"), run(tmp_path))
    assert made.last is None
    for step in (10, 20):
        made.log(step, 1.7e9 + step, {"job/eval_loss": step / 10})
    made.close(over=True)
    (folder,) = (tmp_path / "wandb").glob("offline-run-*-0123456789abcdef")
    rows = history(folder / "run-0123456789abcdef.wandb")
    assert [(row["merged_tokens"], row["job/eval_loss"], row["_step"]) for row in rows] == [
        (10, 1.0, 10),
        (20, 2.0, 20),
    ]
    assert not list((folder / "files").iterdir())


def history(file: Path) -> list[dict[str, Any]]:
    """The rows of a file that `wandb sync` sends: after 7 bytes, records with their length at bytes 4 and 5 of 7."""
    data, at, rows = file.read_bytes(), 7, []
    assert len(data) < 32768, "a block: no record is in parts"
    while at < len(data):
        size = int.from_bytes(data[at + 4 : at + 6], "little")
        record = Record.FromString(data[at + 7 : at + 7 + size])
        at += 7 + size
        if record.HasField("history"):
            items = record.history.item
            rows.append({one.key or "/".join(one.nested_key): json.loads(one.value_json) for one in items})
    return rows
