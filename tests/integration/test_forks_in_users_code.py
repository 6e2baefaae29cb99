"""Code of a user's own forks while its learner sends and receives; and a loop's data goes on where the steps do."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from diloco.spec.job import API_VERSION, KIND
from testbed import fork_server
from tests.support.local_run import LocalRun, write_job

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]
LEARNERS = "here/cpu/0", "here/cpu/1"
CODE = "tests.support.forking_code"


@pytest.fixture(scope="module")
def frameworks_loaded_once() -> Iterator[None]:
    with fork_server.loading("transformers.trainer", "pytorch_lightning"):
        yield


def job(folder: Path, loop: str, tokens: int, **arguments: Any) -> Path:
    spec = {
        "model": {"entrypoint": f"{CODE}:Line"},
        "loop": {"entrypoint": f"{CODE}:{loop}", "arguments": arguments},
        "training": {"tokens": tokens, "sequenceLength": 1, "batchSize": 4, "checkpointEverySteps": 1000},
        "sync": {"fragments": 2, "interval": 2},
        "regions": [{"name": "here", "pools": [{"name": "cpu", "learners": 2}]}],
    }
    path = folder / "job.yaml"
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "forks"}, "spec": spec}
    path.write_text(yaml.safe_dump(document))
    return path


def nothing_died(run: LocalRun, starts: int = 1) -> None:
    """Check that no forked process was aborted, nor a learner restarted for it."""
    logs = {name: run.log(name) for name in LEARNERS}
    assert not [
        line for text in logs.values() for line in text.splitlines() if re.search("mutex.cc|unexpectedly", line)
    ]
    assert [run.starts(name) for name in LEARNERS] == [starts, starts], logs


def test_workers_live_and_no_batch_is_twice_or_lost_over_a_kill(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    with LocalRun(job(tmp_path, "train", 480, notes=str(notes)), "--chaos", "kill:*@step=20") as run:
        done = run.ended()
    assert done.returncode == 0, done.stderr
    nothing_died(run, starts=2)
    for name in LEARNERS:
        files = sorted(notes.glob(f"{name.replace('/', '.')}.*"), key=lambda path: path.stat().st_ctime_ns)
        first, second = ([tuple(map(int, line.split())) for line in one.read_text().splitlines()] for one in files)
        assert all(step == batch for step, batch in first + second)
        # What the syncer has not heard of is lost with its work, and is made again: a few steps, not all since the last
        # checkpoint, of which there is none.
        assert len(first) >= 20
        assert second[0][0] in range(10, len(first) + 1)
        assert [step for step, _ in second] == list(range(second[0][0], second[-1][0] + 1))


@pytest.mark.usefixtures("frameworks_loaded_once")
@pytest.mark.parametrize("loop", ["train_by_trainer", "train_by_lightning"])
def test_workers_of_a_framework_live(tmp_path: Path, loop: str) -> None:
    with LocalRun(job(tmp_path, loop, 240)) as run:
        done = run.ended()
    assert done.returncode == 0, done.stderr
    nothing_died(run)
    learners = run.summary()["learners"]
    assert [one["tokens"] for one in learners] == [4 * one["steps"] for one in learners]


def test_processes_of_a_data_source_live(tmp_path: Path) -> None:
    manifest = write_job(
        tmp_path,
        tokens=1280,
        pools={"here/cpu": 2},
        model={"builtin": {"preset": "pico", "vocabularySize": 257}},
        data={"entrypoint": f"{CODE}:open_forked"},
        sync={"fragments": 2, "interval": 8},
    )
    with LocalRun(manifest) as run:
        done = run.ended()
    assert done.returncode == 0, done.stderr
    nothing_died(run)
