"""Runs a process of a learner that is not the first, until the first ends it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from diloco.learner.checkpoint import CHECKPOINTS_FOLDER
from diloco.learner.data.opening import open_data, open_task
from diloco.learner.job_training import TOKENS_FOLDER
from diloco.learner.options import LearnerOptions
from diloco.learner.process.ends import exit_code_of
from diloco.learner.training.devices.device import choose_device, set_up
from diloco.learner.training.devices.torch_threads import set_torch_threads
from diloco.learner.unit.checkpoints import RankCheckpoints
from diloco.learner.unit.follower import follow
from diloco.learner.unit.joining import facts_of, joined, store_at
from diloco.learner.unit.nodes.node_link import OtherNode
from diloco.learner.unit.nodes.nodes import asked_to_stop, node_pages
from diloco.learner.unit.rank import Rank
from diloco.learner.unit.sharding import parted_model
from diloco.learner.unit.starting import CAUSE_SECONDS, Unit
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
    processes: int
    """Of them, on this machine."""
    store: str
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


def run_node(options: LearnerOptions, unit: Unit, run: Callable[[RankOptions], int] = run_rank) -> int:
    """Run the first process of a node that is not the learner's first; returns the exit code.

    Once the processes have ended in order it waits until the first one's has ended as well: after the job's end that
    one stays. SIGTERM has the processes of all nodes end in order. Call it in the main thread. ``run``: for a loop of
    the user's own.
    """
    nodes = unit.nodes
    assert nodes is not None, "it is one node"
    assert isinstance(nodes.link, OtherNode), "it is the first"
    if nodes.http is not None:
        nodes.http.serve(node_pages("following the first node of this learner"))
    threads = options.threads_of_process
    with asked_to_stop(nodes.link.stop):
        code = run(
            RankOptions(
                job=options.job,
                learner=options.learner,
                rank=unit.rank,
                ranks=unit.ranks,
                processes=options.processes_here,
                store=unit.store,
                directory=options.directory,
                device=options.device_of(0),
                threads=threads or 1,
            )
        )
        if code == EXIT_OK:
            unit.end(lambda: None)
            nodes.link.wait_until_gone()
    return code


def _run(options: RankOptions) -> int:
    spec, learner = options.job.spec, options.learner
    place = options.rank % options.processes
    device, layout = choose_device(options.device, place), layout_of_job(spec)
    set_up(spec.training, device, options.directory)
    tokens = options.directory / TOKENS_FOLDER
    # The first of this machine tokenizes documents, while the others wait for all.
    task = open_task(spec, tokens) if place == 0 else None
    store = store_at(options.store, options.ranks)
    world = joined(store, options.rank, options.ranks, device, facts_of(spec, layout))
    data = open_data(spec, learner, open_task(spec, tokens) if task is None else task)
    rank = Rank(spec, parted_model(spec, spec.pool_of(learner), world, None), layout, data, world)
    folder = options.directory / CHECKPOINTS_FOLDER
    follow(rank, RankCheckpoints(folder, rank.inner.optimizer, rank.world, options.processes))
    world.leave()
    return EXIT_OK
