"""What a tape says of the time after the checkpoint, and when it is not believed."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from diloco.core.buffers import bytes_of
from diloco.core.engine.snapshot import check
from diloco.core.proof import proof_of
from diloco.spec import DiLoCoJob
from diloco.spec.outer_choice import DILOCO
from diloco.syncer.prepare import prepare
from diloco.syncer.recovery.tape_tail import TapeTail, read_tail
from diloco.syncer.store import digest_of
from diloco.tape.keeper import TapeLimits
from diloco.tape.segments import find_tapes
from tests.support.small_job import named_job, small_job
from tests.unit.syncer.recorded_run import RecordedRun

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def make_job(learners: int = 2, **sync: Any) -> DiLoCoJob:
    plain = {"fragments": 4, "interval": 4, "outerOptimizer": DILOCO.model_dump()}
    return named_job("small", small_job(learners=learners, sync=plain | sync))


def tail_of(directory: Path, job: DiLoCoJob, name: str = "small") -> TapeTail | None:
    return read_tail(directory / "tape", name, prepare(job, directory / "checkpoints"))


def known(directory: Path, job: DiLoCoJob) -> TapeTail:
    found = tail_of(directory, job)
    assert found is not None
    return found


def killed(directory: Path, job: DiLoCoJob, after: int = 24, **more: Any) -> RecordedRun:
    """A run that was killed some merges after its checkpoint."""
    run = RecordedRun(directory, job, **more)
    run.train(6)
    run.checkpoint()
    run.train(after)
    run.tape.close()
    return run


@pytest.fixture
def job() -> DiLoCoJob:
    return make_job()


@pytest.mark.parametrize("segment_bytes", [1 << 30, 20_000])
def test_the_engine_at_the_end_and_every_newer_version(tmp_path: Path, segment_bytes: int) -> None:
    job = make_job()
    run = killed(tmp_path, job, limits=TapeLimits(segment_bytes=segment_bytes, kept_bytes=None))
    assert (len(find_tapes(tmp_path / "tape")[0].segments) > 2) == (segment_bytes == 20_000)
    start = prepare(job, tmp_path / "checkpoints")
    found = known(tmp_path, job)
    for fragment, made in enumerate(found.tail.made):
        numbers = [one.version for one in made]
        assert numbers == list(range(start.store.versions[fragment] + 1, run.engine.versions[fragment] + 1))
        assert [one.steps for one in made] == list(range(1, len(made) + 1))
        parameters = run.store.current(fragment).parameters
        assert made[-1].digest == digest_of(parameters).hex()
        assert made[-1].proof == proof_of(bytes_of(parameters))
        assert set(found.provable()[fragment]) == set(numbers)
    assert found.tail.snapshot(run.engine.versions) == run.engine.snapshot(run.now)
    assert found.tail.present == set(job.spec.learner_ids)
    assert found.tail.seconds > 0


def test_without_its_newest_merges_the_counts_are_lower_and_whole(tmp_path: Path, job: DiLoCoJob) -> None:
    run = killed(tmp_path, job)
    start = prepare(job, tmp_path / "checkpoints")
    found = known(tmp_path, job)
    assert start.engine is not None
    back = list(run.engine.versions)
    back[0], back[1] = back[0] - 1, start.store.versions[1]
    taken = found.tail.snapshot(back)
    check(run.engine._state.options, taken)
    end = run.engine.snapshot(run.now)
    assert taken["versions"] == back
    assert taken["fragment_tokens"][1] == start.engine["fragment_tokens"][1]
    assert start.engine["fragment_tokens"][0] < taken["fragment_tokens"][0] < end["fragment_tokens"][0]
    assert taken["fragment_tokens"][2:] == end["fragment_tokens"][2:]
    shares = start.layout.shares
    merged = sum(share * tokens for share, tokens in zip(shares, taken["fragment_tokens"], strict=True))
    # What was merged before the learners' speeds were compared counts for the job in part only.
    withheld = sum(share * tokens for share, tokens in zip(shares, taken["withheld"], strict=True))
    found = sum(one["merged_tokens"] for one in taken["learners"].values())
    assert merged <= found <= merged + withheld + 200.0, (merged, withheld)


@pytest.mark.slow
def test_of_a_job_that_was_over_the_end_is_kept_only_with_all_merges(tmp_path: Path) -> None:
    job = make_job()
    run = killed(tmp_path, job, after=2000)
    assert run.engine.finished
    found = known(tmp_path, job)
    assert found.tail.snapshot(run.engine.versions)["phase"] == "Complete"
    assert found.tail.snapshot([version - 1 for version in run.engine.versions])["phase"] == "Training"


def test_nothing_was_merged_after_the_checkpoint(tmp_path: Path, job: DiLoCoJob) -> None:
    run = RecordedRun(tmp_path, job)
    run.train(6)
    run.checkpoint()
    run.tape.close()
    assert tail_of(tmp_path, job) is None


def test_a_new_job_has_no_tape(tmp_path: Path, job: DiLoCoJob) -> None:
    assert tail_of(tmp_path, job) is None


def test_a_torn_or_damaged_end_counts_up_to_the_damage(tmp_path: Path, job: DiLoCoJob) -> None:
    run = killed(tmp_path, job)
    whole = known(tmp_path, job)
    (path,) = find_tapes(tmp_path / "tape")[0].segments
    lines = path.read_bytes().splitlines(keepends=True)
    merges = [number for number, line in enumerate(lines) if b'"type":"Merged"' in line]
    path.write_bytes(b"".join(lines[: merges[-1]]) + lines[merges[-1]][:-20])
    torn = known(tmp_path, job)
    path.write_bytes(b"".join(lines[: merges[-2]]) + bytes(4096))  # as after a loss of power
    damaged = known(tmp_path, job)
    counts = [sum(len(made) for made in tail.tail.made) for tail in (whole, torn, damaged)]
    assert counts == [counts[0], counts[0] - 1, counts[0] - 2]
    assert sum(run.engine.versions) == run.engine.progress.merges


def test_a_version_without_its_proof_is_known_but_not_provable(tmp_path: Path, job: DiLoCoJob) -> None:
    """The syncer was killed between a version's release and its proof."""
    killed(tmp_path, job)
    whole = known(tmp_path, job)
    (path,) = find_tapes(tmp_path / "tape")[0].segments
    lines = path.read_bytes().splitlines(keepends=True)
    (*_, last) = (number for number, line in enumerate(lines) if b'"type":"Proved"' in line)
    event = json.loads(lines[last])["event"]
    path.write_bytes(b"".join(lines[:last]))
    found = known(tmp_path, job)
    made = [[one.version for one in versions] for versions in found.tail.made]
    assert made == [[one.version for one in versions] for versions in whole.tail.made]
    provable = whole.provable()
    del provable[event["fragment"]][event["version"]]
    assert found.provable() == provable


def test_a_tape_that_does_not_continue_the_checkpoint_is_not_used(
    tmp_path: Path, job: DiLoCoJob, caplog: pytest.LogCaptureFixture
) -> None:
    killed(tmp_path / "one", job)
    other = RecordedRun(tmp_path / "other", job)
    other._random.manual_seed(77)
    other.train(4)
    other.checkpoint()
    shutil.rmtree(tmp_path / "one" / "checkpoints")
    shutil.copytree(tmp_path / "other" / "checkpoints", tmp_path / "one" / "checkpoints")
    with caplog.at_level(logging.WARNING):
        assert tail_of(tmp_path / "one", job) is None
    assert "what was merged after checkpoint 000002 is not known" in caplog.text


def test_a_tape_of_an_earlier_start_than_the_checkpoint_is_not_read(tmp_path: Path, job: DiLoCoJob) -> None:
    run = killed(tmp_path, job)
    run.epoch = 2
    run.checkpoint()
    assert tail_of(tmp_path, job) is None


def test_a_tape_of_another_job_is_not_used(tmp_path: Path, job: DiLoCoJob, caplog: pytest.LogCaptureFixture) -> None:
    killed(tmp_path, job)
    with caplog.at_level(logging.WARNING):
        assert tail_of(tmp_path, job, "other") is None
    assert "the tape is of another job or model" in caplog.text


def test_a_decision_that_comes_out_otherwise_is_not_gone_on_from(
    tmp_path: Path, job: DiLoCoJob, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a program whose engine decides otherwise under the same rules."""
    killed(tmp_path, job)
    monkeypatch.setattr("diloco.core.engine.members.accounting.merged", lambda *_: None)
    monkeypatch.setattr("diloco.core.engine.rounds.schedule.Schedule.advanced", lambda *_: 10**6)
    with caplog.at_level(logging.WARNING):
        assert tail_of(tmp_path, job) is None
    assert "on the tape it is" in caplog.text
