"""What a syncer's parts do together while a job trains: in this process, in virtual time, on a real disk."""

import asyncio
import json
import os
import threading
from functools import partial
from pathlib import Path

import pytest

from diloco.local.status_poll import read_status
from diloco.runtime.process.exits import EXIT_OK, EXIT_UNEXPECTED
from diloco.spec import DiLoCoJob, parse_job
from diloco.spec.outer_choice import DILOCO, OuterChoice
from diloco.syncer.disk.checkpoint_names import checkpoint_names
from diloco.syncer.disk.directory import SyncerDirectory
from diloco.syncer.errors import SyncerError
from diloco.syncer.options import SyncerOptions
from diloco.syncer.peers.link_watch import LinkWatch
from diloco.syncer.prepare import prepare, with_first_checkpoint
from diloco.syncer.replay import replay
from diloco.syncer.syncer import Syncer
from diloco.tape.reader import read_header
from diloco.wire.errors import UnavailableError
from diloco.wire.messages import PullRequest, Welcome
from diloco.wire.server.traffic import Kind, Way
from tests.support.machine_limits import block, open_files
from tests.support.syncer_in_process import PEER, NearLearner, life_of, running
from tests.support.syncer_process import SmallJob

pytestmark = [pytest.mark.usefixtures("one_torch_thread"), pytest.mark.virtual_time]


def job_keeping(folder: Path, checkpoints: int) -> SmallJob:
    """A job with a checkpoint a second, of which so many are kept."""
    job = SmallJob(folder, learners=1)
    every = "checkpointEverySeconds: 1"
    job.job = parse_job(job.path.read_text().replace(every, f"{every}, maxCheckpoints: {checkpoints}"), "job.yaml")
    return job


def has_merged(syncer: Syncer, merges: int) -> bool:
    return syncer.status().syncer_step >= merges


async def stopped(syncer: Syncer) -> int:
    """Stop it as SIGTERM does; the exit code."""
    stop = asyncio.Event()
    stop.set()
    return await syncer.until_over(stop)


async def test_it_serves_once_started_with_a_checkpoint_to_fall_back_to(tmp_path: Path) -> None:
    async with life_of(SmallJob(tmp_path), tmp_path / "syncer") as syncer:
        served = [syncer.serving]
        assert checkpoint_names(tmp_path / "syncer/checkpoints") == ["000001"]
        syncer.start()
        served.append(syncer.serving)
        assert served == [False, True]
        status = syncer.status()
        assert (status.job, status.epoch, status.checkpoint.newest) == ("small", 1, "000001")
        assert (syncer.job, syncer.epoch) == ("small", "1")


async def test_a_first_checkpoint_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(SyncerError, match=r"checkpoints: the first checkpoint could not be written \(Not a direct"):
        async with life_of(SmallJob(tmp_path), tmp_path):
            pass


async def test_momentum_is_not_copied_for_a_first_checkpoint_on_disk(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    with SyncerDirectory(tmp_path / "syncer") as directory:
        start_state = with_first_checkpoint(job.job, directory, prepare(job.job, directory.checkpoints), 1)
        syncer = Syncer(SyncerOptions(job.job, tmp_path), directory, start_state, 1)
        assert start_state.store.target(0).merge.momentum is start_state.store.momentum(0)
        syncer.close()


async def test_bytes_by_region_go_on_from_the_checkpoint(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    for expected in (5, 10):
        async with life_of(job, tmp_path / "syncer") as syncer:
            syncer.start()
            syncer.traffic.count("here/cpu/0", Way.UP, Kind.BULK, 5)
            (here,) = syncer.status().bytes_by_region
            assert (here.region, here.up.bulk, here.down.total) == ("here", expected, 0)
            assert await stopped(syncer) == EXIT_OK


async def test_a_process_leaves_its_last_status_for_the_report(tmp_path: Path) -> None:
    job, folder = SmallJob(tmp_path, learners=1), tmp_path / "syncer"
    async with life_of(job, folder) as syncer:
        syncer.start()
        learner = await NearLearner(syncer, job).begin()
        await learner.train(partial(has_merged, syncer, 1))
        assert await stopped(syncer) == EXIT_OK
    left = read_status(folder)
    assert left.syncer_step >= 1
    assert left.learners[0].steps > 0


async def test_two_recorded_lives_replay_to_the_bit(tmp_path: Path) -> None:
    job, folder = SmallJob(tmp_path, tokens=400, learners=1), tmp_path / "syncer"
    for merges in (3, 6):
        async with life_of(job, folder, record=True, threads=None) as syncer:
            syncer.start()
            learner = await NearLearner(syncer, job).begin()
            await learner.train(partial(has_merged, syncer, merges))
            assert await stopped(syncer) == EXIT_OK
    report = replay(folder)
    assert report.ok, report.problems
    assert [epoch.merges > 0 and epoch.merges_redone == epoch.merges for epoch in report.epochs] == [True, True]
    header = read_header(folder / "tape/000002.jsonl")
    assert header.job == json.loads(OuterChoice.of(job.job.spec).put_into(job.job).model_dump_json(by_alias=True))


async def test_a_job_scaled_while_its_syncer_is_away_keeps_its_outer_optimizer(tmp_path: Path) -> None:
    folder = tmp_path / "syncer"

    async def told(learners: int) -> str:
        job = SmallJob(tmp_path, tokens=208_000, learners=learners)
        job.job = parse_job(job.path.read_text().replace("interval: 4", "interval: 24"), "job.yaml")
        async with life_of(job, folder) as syncer:
            syncer.start()
            assert await stopped(syncer) == EXIT_OK
            return syncer.status().outer_optimizer

    first, second = await told(1), await told(100)
    assert first == second
    assert "learning rate 0.7, momentum 0.9 (Auto: expected merges of each fragment: 135; " in first
    headers = [read_header(folder / f"tape/00000{epoch}.jsonl") for epoch in (1, 2)]
    given = [DiLoCoJob.model_validate(header.job).spec.sync.outer_optimizer for header in headers]
    assert given == [DILOCO, DILOCO]


@pytest.mark.parametrize("record", [True, False])
async def test_what_a_replay_needs_is_kept_only_where_it_is_recorded(tmp_path: Path, *, record: bool) -> None:
    job, folder = job_keeping(tmp_path, 1), tmp_path / "syncer"
    async with running(job, folder, record=record) as (syncer, _):
        learner = await NearLearner(syncer, job).begin()
        await learner.train(lambda: learner.steps == 8)
    names = checkpoint_names(folder / "checkpoints")
    assert len(names) <= 2 + record
    assert ("000001" in names) is record
    assert any(folder.glob("payloads/*/*.bin")) is record


@pytest.mark.parametrize("record", [True, False])
async def test_old_tapes_make_room_only_where_nothing_is_recorded(tmp_path: Path, *, record: bool) -> None:
    old = tmp_path / "syncer/tape/000001.jsonl"
    old.parent.mkdir(parents=True)
    old.write_text("\n")
    os.truncate(old, 128 << 20)  # sparse

    async with life_of(SmallJob(tmp_path, tape="64Mi"), tmp_path / "syncer", record=record):
        pass
    assert old.exists() is record


async def test_a_checkpoint_is_written_when_due_and_only_after_news(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, checkpoint_every=10, learners=1)
    seen: list[tuple[float, str]] = []

    loop = asyncio.get_running_loop()
    async with running(job, tmp_path / "syncer") as (syncer, _):
        began = loop.time()

        async def watch(until: float) -> None:
            while loop.time() - began < until:
                await asyncio.sleep(0.5)
                newest = syncer.status().checkpoint.newest
                if not seen or seen[-1][1] != newest:
                    seen.append((loop.time() - began, newest))

        await watch(15.0)  # nothing has happened
        learner = NearLearner(syncer, job)
        assert isinstance(await learner.join(), Welcome)  # a single event
        await watch(55.0)
        await NearLearner(syncer, job, process="second").begin()
        await watch(65.0)
    # Looked at every half second.
    assert [(round(when), name) for when, name in seen] == [(0, "000001"), (20, "000002"), (60, "000003")]


async def test_a_pool_that_is_scaled_in_the_manifest_has_room_for_all(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, learners=1)
    async with running(job, tmp_path / "syncer", job_file=job.path) as (syncer, _):
        await asyncio.sleep(2.5)
        assert len(syncer.status().learners) == 1
        job.path.write_text(job.path.read_text().replace("learners: 1", "learners: 70"))
        await asyncio.sleep(1.5)
        assert len(syncer.status().learners) == 70
        for index in range(70):
            assert isinstance(await NearLearner(syncer, job, index).join(), Welcome)


async def test_the_status_tells_how_fast_tokens_are_merged(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, learners=1)
    async with running(job, tmp_path / "syncer") as (syncer, _):
        learner = await NearLearner(syncer, job).begin()
        await learner.train(lambda: learner.steps == 9)
        status = syncer.status()
        assert 0 < status.tokens_per_second <= 64
        assert status.learners[0].tokens_per_second == pytest.approx(64, rel=0.2)


async def test_memory_and_waiting_pulls_are_shown_as_they_are(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, learners=1)
    async with life_of(job, tmp_path / "syncer") as syncer:
        syncer.start()
        learner = await NearLearner(syncer, job).begin()
        header, _ = learner.gradient(await learner.wanted())
        syncer.service.accept_push(header, PEER, lambda: None)
        pull = PullRequest(learner.id, learner.incarnation, header.fragment, 1, learner.epoch, posted=True)
        waiting = asyncio.create_task(syncer.service.open_pull(pull, PEER))
        await asyncio.sleep(0)
        page = syncer.metrics.page(syncer.status()).decode().splitlines()
        assert f"diloco_inbox_bytes {float(header.payload_bytes)}" in page
        assert "diloco_posted_pulls 1.0" in page
        syncer.stop_serving()
        assert not syncer.serving
        with pytest.raises(UnavailableError, match="the syncer stops"):
            await waiting


async def test_a_tape_that_waited_for_the_disk_is_written_without_news(tmp_path: Path) -> None:
    tape = tmp_path / "syncer/tape/000001.jsonl"

    async with running(SmallJob(tmp_path), tmp_path / "syncer", spoil=lambda: tape.mkdir(parents=True)) as (syncer, _):
        await asyncio.sleep(0.5)
        assert syncer.status().tape_problem == "the tape waits for the disk: Is a directory"
        tape.rmdir()
        await asyncio.sleep(1.0)
        assert read_header(tape).epoch == 1
        assert syncer.status().tape_problem == ""


async def test_a_payload_that_is_missing_from_the_record_is_told(tmp_path: Path) -> None:
    job, folder = SmallJob(tmp_path, learners=1), tmp_path / "syncer"
    async with life_of(job, folder, record=True) as syncer:
        (folder / "payloads").write_text("in the way")
        syncer.start()
        learner = await NearLearner(syncer, job).begin()
        await learner.train(lambda: syncer.status().syncer_step > 0)
        assert syncer.status().tape_problem == "Not a directory"


async def test_a_stop_keeps_everything_and_takes_in_nothing_more(tmp_path: Path) -> None:
    job, folder = SmallJob(tmp_path, checkpoint_every=1000, learners=1), tmp_path / "syncer"
    async with life_of(job, folder) as syncer:
        syncer.start()
        learner = await NearLearner(syncer, job).begin()
        await learner.train(lambda: syncer.status().syncer_step == 3)
        run = asyncio.create_task(stopped(syncer))
        while syncer.serving:
            assert not run.done()  # before its last checkpoint is written
            await asyncio.sleep(0)
        assert await run == EXIT_OK
        tape = (folder / "tape/000001.jsonl").read_bytes()
        learner.step()
        await asyncio.sleep(5.0)
        assert (folder / "tape/000001.jsonl").read_bytes() == tape
    async with life_of(job, folder) as syncer:
        assert syncer.status().syncer_step == 3


async def test_a_budget_raised_after_the_end_is_for_the_next_process(tmp_path: Path) -> None:
    job, folder = SmallJob(tmp_path, learners=1, tokens=1000), tmp_path / "syncer"
    async with running(job, folder, job_file=job.path) as (syncer, run):
        learner = await NearLearner(syncer, job).begin()
        await learner.train()
        await learner.leave()
        await asyncio.sleep(100.0)
        assert not run.done(), "it serves the finished model's status"
        before = syncer.status()
        SmallJob(tmp_path, learners=1, tokens=int(before.merged_tokens))
        await asyncio.sleep(3.0)
        assert not run.done(), "no more than what is merged"
        job = SmallJob(tmp_path, learners=1, tokens=3000)
        assert await run == EXIT_OK
        assert syncer.status().phase == "Complete"
    async with running(job, folder, job_file=job.path) as (syncer, _):
        assert (syncer.status().phase, syncer.status().budget_tokens) == ("Waiting", 3000)
        assert syncer.status().merged_tokens == before.merged_tokens
        learner = await NearLearner(syncer, job).begin()
        await learner.train()
        await learner.leave()
        assert (syncer.status().phase, syncer.status().merged_tokens >= 3000) == ("Complete", True)


async def test_a_stop_whose_last_checkpoint_fails_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "syncer"
    async with life_of(SmallJob(tmp_path), folder) as syncer:
        syncer.start()
        block(folder / "checkpoints")
        assert await stopped(syncer) == EXIT_UNEXPECTED


async def test_a_fault_in_what_happens_every_second_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(LinkWatch, "look", fail)
    async with running(SmallJob(tmp_path), tmp_path / "syncer") as (_, run):
        with pytest.raises(RuntimeError, match="a fault"):
            await run


async def test_nothing_of_it_is_left_once_it_is_closed(tmp_path: Path) -> None:
    job, folder = SmallJob(tmp_path, learners=1), tmp_path / "syncer"
    threads, files = set(threading.enumerate()), open_files()
    async with running(job, folder, job_file=job.path) as (syncer, _):
        learner = await NearLearner(syncer, job).begin()
        await learner.train(lambda: syncer.status().syncer_step > 2)
    assert set(threading.enumerate()) <= threads
    assert open_files() == files
    tape = (folder / "tape/000001.jsonl").read_bytes()
    learner.step()
    await asyncio.sleep(100.0)  # longer than the lease
    assert (folder / "tape/000001.jsonl").read_bytes() == tape
