"""Runs a process of a learner that is not the first, until the first ends it."""

import time
from dataclasses import dataclass
from pathlib import Path

from diloco.learner.data.opening import open_data, open_task
from diloco.learner.ends import exit_code_of
from diloco.learner.job_training import TOKENS_FOLDER
from diloco.learner.training.device import choose_device
from diloco.learner.training.torch_threads import set_torch_threads
from diloco.learner.unit.follower import follow
from diloco.learner.unit.joining import facts_of, file_store, joined
from diloco.learner.unit.rank import Rank
from diloco.learner.unit.sharding import parted_model
from diloco.learner.unit.starting import CAUSE_SECONDS
from diloco.model.build import layout_of_job
from diloco.runtime.process.exits import EXIT_OK
from diloco.spec import DiLoCoJob


@dataclass(frozen=True, slots=True)
class RankOptions:
    """How to run one process of a learner."""

    job: DiLoCoJob
    learner: str
    rank: int
    ranks: int
    store: Path
    """Where the processes meet."""
    directory: Path
    """The learner's."""
    device: str
    threads: int


def run_rank(options: RankOptions) -> int:
    """Do what the first process tells; returns the exit code. The caller sets up logging."""
    set_torch_threads(options.threads)
    # If the cause is another process's end, this one is killed meanwhile, and does not hide it.
    return exit_code_of(lambda: _run(options), lambda: time.sleep(CAUSE_SECONDS))


def _run(options: RankOptions) -> int:
    spec, learner = options.job.spec, options.learner
    device, layout = choose_device(options.device, options.rank), layout_of_job(spec)
    store = file_store(options.store, options.ranks)
    world = joined(store, options.rank, options.ranks, device, facts_of(spec, layout))
    # The first process has tokenized documents by now.
    task = open_task(spec, options.directory / TOKENS_FOLDER)
    parted = parted_model(spec, spec.pool_of(learner), world, None)
    follow(Rank(spec, parted, layout, open_data(spec, learner, task), world))
    world.leave()
    return EXIT_OK
