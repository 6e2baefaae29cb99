"""How a syncer ends a job and then itself: in virtual time, on a real disk."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from diloco.runtime.exits import EXIT_JOB_FAILED, EXIT_OK
from diloco.spec import parse_job
from diloco.syncer.syncer import Syncer
from tests.support.syncer_in_process import NearLearner, life_of
from tests.support.syncer_process import SmallJob
from tests.support.virtual_time import in_virtual_time

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def now() -> float:
    return asyncio.get_running_loop().time()


class Game:
    """A job of one learner that is over after about nine seconds."""

    def __init__(self, folder: Path) -> None:
        self.job = SmallJob(folder, tokens=300, checkpoint_every=1000, learners=1)
        self.folder = folder / "syncer"

    def play(self, script: Callable[[Syncer, "asyncio.Task[int]"], Coroutine[Any, Any, None]], **options: Any) -> None:
        """A life of the syncer, in which ``script`` is what the test does."""

        async def life() -> None:
            async with life_of(self.job, self.folder, **{"exit_when_finished": True} | options) as syncer:
                syncer.start()
                await script(syncer, asyncio.create_task(syncer.until_over(asyncio.Event())))

        in_virtual_time(life())

    def block_checkpoints(self) -> None:
        (self.folder / "checkpoints").rename(self.folder / "away")
        (self.folder / "checkpoints").write_text("in the way")

    def unblock_checkpoints(self) -> None:
        (self.folder / "checkpoints").unlink()
        (self.folder / "away").rename(self.folder / "checkpoints")


@pytest.fixture
def game(tmp_path: Path) -> Game:
    return Game(tmp_path)


def ended_at(syncer: Syncer) -> float:
    """When the job was over: the first learner joined as the life began."""
    return 1000.0 + syncer.status().elapsed_seconds


def test_it_exits_three_seconds_after_the_last_learner_has_left(game: Game) -> None:
    async def script(syncer: Syncer, run: "asyncio.Task[int]") -> None:
        learner = await NearLearner(syncer, game.job).begin()
        await learner.train()
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

    game.play(script)
    assert (game.folder / "model.safetensors").exists()


def test_a_learner_that_does_not_leave_is_waited_for_a_minute(game: Game) -> None:
    async def script(syncer: Syncer, run: "asyncio.Task[int]") -> None:
        learner = await NearLearner(syncer, game.job).begin()
        await learner.train()
        staying = asyncio.create_task(learner.stay())
        assert await run == EXIT_OK
        assert now() - ended_at(syncer) == 60.0
        staying.cancel()

    game.play(script)


def test_without_the_wish_to_exit_it_serves_the_status_on(game: Game) -> None:
    async def script(syncer: Syncer, run: "asyncio.Task[int]") -> None:
        learner = await NearLearner(syncer, game.job).begin()
        await learner.train()
        await learner.leave()
        before = syncer.status()
        assert before.phase == "Complete"
        await asyncio.sleep(200.0)
        assert not run.done()
        after = syncer.status()
        assert (after.elapsed_seconds, after.merged) == (before.elapsed_seconds, before.merged)
        run.cancel()

    game.play(script, exit_when_finished=False)


def test_after_the_end_a_restarted_one_stays_for_fifteen_seconds(game: Game) -> None:
    async def first(syncer: Syncer, run: "asyncio.Task[int]") -> None:
        learner = await NearLearner(syncer, game.job).begin()
        await learner.train()
        await learner.leave()
        assert await run == EXIT_OK

    async def second(syncer: Syncer, run: "asyncio.Task[int]") -> None:
        began = now()
        assert not syncer.status().model_exported
        assert await run == EXIT_OK
        assert now() - began == 15.0
        assert syncer.status().model_exported

    game.play(first)
    (game.folder / "model.safetensors").unlink()
    game.play(second)
    assert (game.folder / "model.safetensors").exists()


def test_a_job_that_failed_has_an_exit_code_of_its_own(game: Game) -> None:
    policy = "  failurePolicy: {maxRestartsPerLearner: 0}\n"
    game.job.job = parse_job(game.job.path.read_text() + policy, "job.yaml")

    async def script(syncer: Syncer, run: "asyncio.Task[int]") -> None:
        await (await NearLearner(syncer, game.job).begin()).hang_up()
        await asyncio.sleep(100.0)
        again = NearLearner(syncer, game.job, process="another")
        await again.join()
        began = now()
        assert await run == EXIT_JOB_FAILED
        assert now() - began == 3.0

    game.play(script)


def test_it_does_not_exit_before_the_model_is_written(game: Game) -> None:
    in_the_way = game.folder / "model.safetensors/in-the-way"
    in_the_way.mkdir(parents=True)

    async def script(syncer: Syncer, run: "asyncio.Task[int]") -> None:
        learner = await NearLearner(syncer, game.job).begin()
        await learner.train()
        await learner.leave()
        await asyncio.sleep(100.0)
        assert not run.done()
        in_the_way.rmdir()
        in_the_way.parent.rmdir()
        assert await run == EXIT_OK
        assert in_the_way.parent.is_file()

    game.play(script)


def test_learners_learn_of_the_end_once_it_is_on_disk(game: Game) -> None:
    async def script(syncer: Syncer, run: "asyncio.Task[int]") -> None:
        learner = await NearLearner(syncer, game.job).begin()
        await learner.train(lambda: learner.steps == 2)
        game.block_checkpoints()
        await learner.train(lambda: now() - 1000.0 > 30.0)
        assert syncer.status().phase == "Complete"
        assert learner.finished is None
        await learner.leave()
        await asyncio.sleep(20.0)
        assert not run.done()
        game.unblock_checkpoints()
        assert await run == EXIT_OK

    async def again(syncer: Syncer, run: "asyncio.Task[int]") -> None:
        assert syncer.status().phase == "Complete"
        run.cancel()

    game.play(script)
    game.play(again)


def test_the_end_is_told_after_two_minutes_without_a_disk(game: Game) -> None:
    async def script(syncer: Syncer, run: "asyncio.Task[int]") -> None:
        learner = await NearLearner(syncer, game.job).begin()
        await learner.train(lambda: learner.steps == 2)
        game.block_checkpoints()
        await learner.train()
        assert learner.finished is not None
        assert now() - ended_at(syncer) in (120.0, 121.0)  # the learner looks every second
        run.cancel()

    game.play(script)


def test_attempts_to_write_the_end_stop_when_it_is_closed(game: Game) -> None:
    async def main() -> None:
        async with life_of(game.job, game.folder) as syncer:
            syncer.start()
            learner = await NearLearner(syncer, game.job).begin()
            await learner.train(lambda: learner.steps == 2)
            game.block_checkpoints()
            (game.folder / "model.safetensors").mkdir()
            (game.folder / "model.safetensors/in-the-way").mkdir()
            await learner.train(lambda: syncer.status().phase == "Complete")
            await learner.leave()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    in_virtual_time(main())
