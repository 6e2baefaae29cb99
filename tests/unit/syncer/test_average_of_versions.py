"""The final model is the mean of the last versions on the tape, also after a kill among them, and it replays."""

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from diloco.core.engine.actions import Action, Merge
from diloco.core.merge.running_mean import running_mean
from diloco.model.fragments import whole_tensors
from diloco.model.tensor_file import write_tensor_file
from diloco.runtime.files import UnusableFileError, sha256_bytes
from diloco.syncer.disk.checkpoint import load_checkpoint
from diloco.syncer.replay import replay
from tests.unit.syncer.recorded_run import RecordedRun, only_problem, recorded_job

pytestmark = pytest.mark.usefixtures("one_torch_thread")


class Followed(RecordedRun):
    """Keeps every version that is averaged."""

    versions: dict[int, list[torch.Tensor]]

    def _carry_out(self, action: Action) -> None:
        super()._carry_out(action)
        if isinstance(action, Merge) and action.members and action.averaged:
            self.versions[action.fragment].append(self.store.current(action.fragment).parameters.clone())


def run_to_the_end(run: Followed) -> None:
    run.train(60)
    run.checkpoint()
    run.end()


@pytest.mark.parametrize("downlink", ["F32", "Int8"])
def test_killed_among_them_its_mean_is_that_of_all_on_the_tapes(tmp_path: Path, downlink: str) -> None:
    job = recorded_job(averageLast=0.5, downlink=downlink)
    first = Followed(tmp_path / "syncer", job)
    first.versions = defaultdict(list)
    first.train(32)
    assert max(map(len, first.versions.values())) > 1
    first.checkpoint()
    kept = first.versions
    first.versions = defaultdict(list)
    first.train(3, after=32)  # which is lost
    second = Followed(tmp_path / "syncer", job, epoch=2)
    second.versions = defaultdict(list)
    run_to_the_end(second)
    assert max(map(len, second.versions.values())) > 1
    means = []
    for fragment in range(4):
        mean = None
        for count, version in enumerate((*kept[fragment], *second.versions[fragment]), start=1):
            mean = running_mean(mean, version, count)
        assert mean is not None
        means.append(mean)
        assert second.store.mean(fragment) is None
    assert all(map(torch.equal, second.parameters, means))
    exported = load_file(tmp_path / "syncer" / "model.safetensors")
    expected = whole_tensors(second.layout, means)
    assert exported.keys() <= expected.keys()
    assert all(torch.equal(values, expected[name]) for name, values in exported.items())
    report = replay(tmp_path / "syncer")
    assert report.ok, report.problems
    assert all(epoch.merges == epoch.merges_redone > 0 for epoch in report.epochs)


@pytest.fixture
def stopped(tmp_path: Path) -> Followed:
    """A run that was stopped among its last versions, a little after a checkpoint."""
    run = Followed(tmp_path, recorded_job(averageLast=0.5))
    run.versions = defaultdict(list)
    run.train(32)
    run.checkpoint()
    run.train(3, after=32)
    return run


def with_mean(run: Followed, change: Callable[[dict[str, torch.Tensor]], object]) -> tuple[Path, str]:
    """Change the file of fragment 1 in the newest checkpoint, and the digests that go with it."""
    manifest = max((run.directory / "checkpoints").glob("*/manifest.json"))
    plain = json.loads(manifest.read_text())["manifest"]
    file, of_file = manifest.with_name("00001.safetensors"), plain["files"]["00001.safetensors"]
    there = {name: values.clone() for name, values in load_file(file).items()}
    change(there)
    of_file["sha256"] = write_tensor_file(file, there)
    digest = sha256_bytes(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())
    manifest.write_text(json.dumps({"sha256": digest, "manifest": plain}))
    return manifest.parent.parent, manifest.parent.name


def test_a_checkpoint_without_a_mean_that_its_engine_counts_is_refused(stopped: Followed) -> None:
    folder, name = with_mean(stopped, lambda tensors: tensors.pop("mean"))
    with pytest.raises(UnusableFileError, match=r"00001.safetensors: it lacks the mean of its last versions"):
        load_checkpoint(folder, name, stopped.layout, stopped.job.metadata.name)


def test_a_mean_that_is_not_finite_is_refused(stopped: Followed) -> None:
    folder, name = with_mean(stopped, lambda tensors: tensors["mean"].fill_(float("nan")))
    with pytest.raises(UnusableFileError, match=r"00001.safetensors: mean: "):
        load_checkpoint(folder, name, stopped.layout, stopped.job.metadata.name)


def test_a_mean_that_was_changed_is_found_by_the_replay(stopped: Followed) -> None:
    assert replay(stopped.directory).ok
    with_mean(stopped, lambda tensors: tensors["mean"].add_(1))
    assert "00001.safetensors: fragment 1 at version" in only_problem(replay(stopped.directory))
