"""``diloco run`` on a file system that runs full: training goes on, and files are made up for."""

from pathlib import Path

import pytest

from diloco.runtime.process.exits import EXIT_INTERRUPTED
from tests.support.local_run import GENTLE, LocalRun, of, write_job
from tests.support.machine_limits import Filler, small_disk

pytestmark = [pytest.mark.core, pytest.mark.processes, pytest.mark.timeout(900)]


def test_a_run_whose_disk_is_full_trains_on_and_catches_up_on_files(tmp_path: Path) -> None:
    with small_disk(tmp_path, 65_536) as disk:
        filler = Filler(disk / "filler")
        with LocalRun(write_job(disk), *GENTLE) as run:
            run.wait_until(run.merging)
            run.wait_for(lambda status: filler.fill() and "No space left" in status.checkpoint.problem)
            # A learner that is killed meanwhile comes back without a file of its own.
            known = run.starts("west/old/0")
            run.learner("west/old/0").kill()
            step = run.status().syncer_step
            run.wait_for(lambda status: filler.fill() and status.syncer_step > step + 10)
            run.wait_for(lambda status: filler.fill() and of(status, "west/old/0").state == "Training")
            # It is told to whoever looks at the terminal, in a line every ten seconds.
            shown = run.status().elapsed_seconds
            run.wait_for(lambda status: filler.fill() and status.elapsed_seconds > shown + 12)
            filler.path.unlink()
            run.wait_for(lambda status: not status.checkpoint.problem and not status.tape_problem)
            run.wait_until(lambda: run.starts("west/old/0") == known + 1)
            ended = run.interrupt()
        assert ended.returncode == EXIT_INTERRUPTED, ended.stderr
        assert "No space left on device" in ended.stdout
        assert run.events()[-1][0] == "end"
