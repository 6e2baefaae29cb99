"""How a syncer ends a job and then itself: in virtual time, on a real disk."""

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from diloco.core.engine.actions import Refusal
from diloco.runtime.process.exits import EXIT_JOB_FAILED, EXIT_OK
from diloco.spec import parse_job
from diloco.syncer.peers.dealing import read_record
from diloco.syncer.syncer import Syncer
from diloco.wire.messages import Refused
from tests.support.machine_limits import block, unblock
from tests.support.syncer_in_process import NearLearner, life_of, running
from tests.support.syncer_process import SmallJob

pytestmark = [pytest.mark.usefixtures("one_torch_thread"), pytest.mark.virtual_time]


def now() -> float:
    return asyncio.get_running_loop().time()


class Game:
    """A job of one learner that is over after about nine seconds."""

    def __init__(self, folder: Path) -> None:
        self.job = SmallJob(folder, tokens=300, checkpoint_every=1000, learners=1)
        self.folder = folder / "syncer"

    def life(self, **options: Any) -> AbstractAsyncContextManager[tuple[Syncer, "asyncio.Task[int]"]]:
        return running(self.job, self.folder, **{"exit_when_finished": True} | options)

    async def trained(self, syncer: Syncer, steps: int | None = None) -> NearLearner:
        """A learner that has made so many steps; default: that has trained to the end of the job."""
        learner = await NearLearner(syncer, self.job).begin()
        await learner.train(lambda: learner.steps == steps)
        return learner


@pytest.fixture
def game(tmp_path: Path) -> Game:
    return Game(tmp_path)


def ended_at(syncer: Syncer) -> float:
    """When the job was over: the first learner joined as the life began."""
    return 1000.0 + syncer.status().elapsed_seconds


async def test_it_exits_three_seconds_after_the_last_learner_has_left(game: Game) -> None:
    async with game.life() as (syncer, run):
        learner = await game.trained(syncer)
        assert learner.finished is not None
        assert learner.finished.complete
        staying = asyncio.create_task(learner.stay())
        await asyncio.sleep(20.0)
        staying.cancel()
        await learner.leave()
        left = now()
        assert await run == EXIT_OK
        assert now() - left == 3.0
        assert syncer.status().model_exported
    assert (game.folder / "model.safetensors").exists()


async def test_what_was_not_dealt_at_the_end_is_not_told_as_lost(game: Game) -> None:
    async with game.life() as (syncer, run):
        syncer._dealing.dealer.recorded(100)
        learner = await game.trained(syncer)
        await learner.leave()
        assert await run == EXIT_OK
    assert read_record(game.folder / "dealt.json")[:2] == (100, [(0, 100)])


async def test_a_learner_that_does_not_leave_is_waited_for_a_minute(game: Game) -> None:
    async with game.life() as (syncer, run):
        learner = await game.trained(syncer)
        staying = asyncio.create_task(learner.stay())
        assert await run == EXIT_OK
        assert now() - ended_at(syncer) == 60.0
        staying.cancel()


async def test_without_the_wish_to_exit_it_serves_the_status_on(game: Game) -> None:
    async with game.life(exit_when_finished=False) as (syncer, run):
        learner = await game.trained(syncer)
        await learner.leave()
        before = syncer.status()
        assert before.phase == "Complete"
        await asyncio.sleep(200.0)
        assert not run.done()
        after = syncer.status()
        assert (after.elapsed_seconds, after.merged) == (before.elapsed_seconds, before.merged)


async def test_after_the_end_a_restarted_one_stays_for_fifteen_seconds(game: Game) -> None:
    async with game.life() as (syncer, run):
        learner = await game.trained(syncer)
        await learner.leave()
        assert await run == EXIT_OK
    (game.folder / "model.safetensors").unlink()
    async with game.life() as (syncer, run):
        began = now()
        assert not syncer.status().model_exported
        assert await run == EXIT_OK
        assert now() - began == 15.0
        assert syncer.status().model_exported
    assert (game.folder / "model.safetensors").exists()


async def test_a_job_that_failed_has_an_exit_code_of_its_own(game: Game) -> None:
    policy = "  failurePolicy: {maxRestartsPerLearner: 0}\n"
    game.job.job = parse_job(game.job.path.read_text() + policy, "job.yaml")
    async with game.life() as (syncer, run):
        await (await NearLearner(syncer, game.job).begin()).hang_up()
        await asyncio.sleep(100.0)
        again = NearLearner(syncer, game.job, process="another")
        await again.join()
        began = now()
        assert await run == EXIT_JOB_FAILED
        assert now() - began == 3.0


async def test_it_does_not_exit_before_the_model_is_written(game: Game) -> None:
    in_the_way = game.folder / "model.safetensors/in-the-way"
    in_the_way.mkdir(parents=True)
    async with game.life() as (syncer, run):
        learner = await game.trained(syncer)
        await learner.leave()
        await asyncio.sleep(100.0)
        assert not run.done()
        in_the_way.rmdir()
        in_the_way.parent.rmdir()
        assert await run == EXIT_OK
        assert in_the_way.parent.is_file()


async def test_learners_learn_of_the_end_once_it_is_on_disk(game: Game) -> None:
    async with game.life() as (syncer, run):
        learner = await game.trained(syncer, steps=2)
        block(game.folder / "checkpoints")
        await learner.train(lambda: now() - 1000.0 > 30.0)
        assert syncer.status().phase == "Complete"
        assert learner.finished is None
        await learner.leave()
        await asyncio.sleep(20.0)
        assert not run.done()
        unblock(game.folder / "checkpoints")
        assert await run == EXIT_OK
    async with game.life() as (syncer, _):
        assert syncer.status().phase == "Complete"


async def test_who_joins_at_the_end_learns_of_it_once_it_is_on_disk(game: Game) -> None:
    async with game.life() as (syncer, _):
        learner = await game.trained(syncer, steps=2)
        block(game.folder / "checkpoints")
        await learner.train(lambda: syncer.status().phase == "Complete")
        await learner.hang_up()
        joining = asyncio.create_task(learner.join())
        again = asyncio.create_task(NearLearner(syncer, game.job, process="another").join())
        await asyncio.sleep(20.0)
        assert not joining.done()
        assert not again.done()
        unblock(game.folder / "checkpoints")
        for answer in (await joining, await again):
            assert isinstance(answer, Refused)
            assert answer.refusal == Refusal.FINISHED
    async with game.life() as (syncer, _):
        assert syncer.status().phase == "Complete"


async def test_who_learns_of_the_end_late_is_waited_for_from_then_on(game: Game) -> None:
    async with game.life() as (syncer, run):
        learner = await game.trained(syncer, steps=2)
        block(game.folder / "checkpoints")
        await learner.train(lambda: now() - 1000.0 > 90.0)
        unblock(game.folder / "checkpoints")
        await learner.train()
        told, staying = now(), asyncio.create_task(learner.stay())
        assert told > ended_at(syncer) + 60.0
        assert await run == EXIT_OK
        assert now() - told in (59.0, 60.0)  # the learner looks every second
        staying.cancel()


async def test_the_end_is_told_after_two_minutes_without_a_disk(game: Game) -> None:
    async with game.life() as (syncer, _):
        learner = await game.trained(syncer, steps=2)
        block(game.folder / "checkpoints")
        await learner.train()
        assert learner.finished is not None
        assert now() - ended_at(syncer) in (120.0, 121.0)  # the learner looks every second


async def test_attempts_to_write_the_end_stop_when_it_is_closed(game: Game) -> None:
    async with life_of(game.job, game.folder) as syncer:
        syncer.start()
        learner = await game.trained(syncer, steps=2)
        block(game.folder / "checkpoints")
        (game.folder / "model.safetensors/in-the-way").mkdir(parents=True)
        await learner.train(lambda: syncer.status().phase == "Complete")
        await learner.leave()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
