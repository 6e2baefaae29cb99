"""A learner's batch size: as the job says, or as found and kept."""

import json
from pathlib import Path

import pytest
import torch

from diloco.learner.data.opening import open_data, open_task
from diloco.learner.found_batch import FILE, FoundBatch, found_batch
from diloco.learner.options import LearnerOptions
from diloco.learner.training.devices import memory
from diloco.learner.training.devices.fitting_batch import BatchError
from diloco.model.build import build_model
from diloco.model.fragments import layout_of
from tests.support.small_learner import learner_options

CPU = torch.device("cpu")


def options_of(folder: Path, pool: dict[str, object]) -> LearnerOptions:
    (folder / "learner").mkdir(exist_ok=True)
    regions = [{"name": "here", "pools": [{"name": "cpu", "learners": 2, **pool}]}]
    return learner_options(folder, {"regions": regions})


def started(options: LearnerOptions) -> FoundBatch:
    """What a process of the learner finds when it starts."""
    spec = options.job.spec
    module = build_model(spec).train()
    return found_batch(options, module, open_task(spec), layout_of(module, spec.sync.fragments).digest, CPU)


def found(options: LearnerOptions) -> int:
    return started(options).size


def proven(options: LearnerOptions) -> int:
    batch = started(options)
    for _ in range(2):
        batch.checkpoint_begun()
    return batch.size


@pytest.fixture
def auto(tmp_path: Path) -> LearnerOptions:
    return options_of(tmp_path, {"batchSize": "Auto"})


def kept(options: LearnerOptions) -> dict[str, object]:
    content: dict[str, object] = json.loads((options.directory / FILE).read_text())
    return content


def keep(options: LearnerOptions, **changes: object) -> None:
    (options.directory / FILE).write_text(json.dumps(kept(options) | changes))


@pytest.mark.parametrize(("pool", "size"), [({}, 4), ({"batchSize": 3}, 3)])
def test_a_number_is_taken_as_it_is(tmp_path: Path, pool: dict[str, object], size: int) -> None:
    options = options_of(tmp_path, pool)
    assert found(options) == size
    assert not (options.directory / FILE).exists()


def test_with_enough_memory_it_is_the_jobs(auto: LearnerOptions, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert found(auto) == auto.job.spec.training.batch_size == 4
    assert "batchSize Auto: 4 of at most 4 sequences; they need " in caplog.text
    data = open_data(auto.job.spec, auto.learner, batch_size=2)
    assert len(data.sampler.next_numbers()) == 2


def test_what_was_found_is_kept_for_the_next_process(auto: LearnerOptions, caplog: pytest.LogCaptureFixture) -> None:
    proven(auto)
    keep(auto, found=2)
    caplog.set_level("INFO")
    for _ in range(4):
        assert found(auto) == 2
    assert "2 of at most 4 sequences, as before" in caplog.text


def test_with_other_memory_it_is_found_anew(auto: LearnerOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    proven(auto)
    keep(auto, found=2)
    twice = memory.ProcessMemory()
    twice.limit_bytes *= 2
    monkeypatch.setattr("diloco.learner.found_batch.memory_of", lambda _: twice)
    assert found(auto) == 4
    assert kept(auto)["found"] == 4


def test_a_size_in_whose_trial_two_processes_ended_is_not_taken_again(
    auto: LearnerOptions, caplog: pytest.LogCaptureFixture
) -> None:
    assert found(auto) == 4
    keep(auto, found=None, trying=4, ended=0)  # as after a kill in the trial itself
    assert found(auto) == 4
    assert found(auto) == 2
    assert "processes ended with 4 sequences; smaller ones are tried" in caplog.text
    assert found(auto) == 2
    assert found(auto) == 1
    assert [found(auto) for _ in range(4)] == [1, 1, 1, 1]


def test_a_process_that_ends_as_it_should_says_nothing_of_the_size(auto: LearnerOptions) -> None:
    for _ in range(5):
        batch = started(auto)
        assert batch.size == 4
        batch.checkpoint_begun()
        batch.ended_well()
    assert proven(auto) == 4
    assert [found(auto) for _ in range(5)] == [4] * 5


def test_memory_that_cannot_be_measured_is_one_line(auto: LearnerOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: object) -> memory.Memory:
        raise FileNotFoundError("no /proc/meminfo")

    monkeypatch.setattr("diloco.learner.found_batch.memory_of", unknown)
    with pytest.raises(BatchError, match=r"Auto cannot measure the memory of cpu .*; use a number$"):
        found(auto)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"found": -1}', "null"])
def test_a_damaged_file_is_ignored_with_a_line(
    auto: LearnerOptions, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (auto.directory / FILE).write_text(text)
    assert found(auto) == 4
    assert f"ignoring {auto.directory / FILE}: it is damaged" in caplog.text


def test_a_file_that_cannot_be_written_stops_nobody(auto: LearnerOptions, caplog: pytest.LogCaptureFixture) -> None:
    (auto.directory / FILE).mkdir()
    assert found(auto) == 4
    assert "cannot write" in caplog.text
