"""Runs a loop of the user's own in a process of a learner that is not the first."""

import time

from diloco.learner.checkpoint import CHECKPOINTS_FOLDER
from diloco.learner.exchange.orders import Orders, Wakeup
from diloco.learner.process.ends import exit_code_of
from diloco.learner.process.rank_process import RankOptions
from diloco.learner.session.own_loop import OwnLoop
from diloco.learner.session.peers import Peers
from diloco.learner.training.devices.device import choose_device
from diloco.learner.training.devices.torch_threads import set_torch_threads
from diloco.learner.unit.joining import store_at
from diloco.learner.unit.starting import CAUSE_SECONDS
from diloco.runtime.process.exits import EXIT_OK


def run_loop(options: RankOptions) -> int:
    """Call the loop until the first process ends its session; returns the exit code. The caller sets up logging."""
    set_torch_threads(options.threads)
    # If the cause is another process's end, this one is killed meanwhile, and does not hide it.
    return exit_code_of(lambda: _run(options), lambda: time.sleep(CAUSE_SECONDS))


def _run(options: RankOptions) -> int:
    peers = Peers(
        rank=options.rank,
        ranks=options.ranks,
        processes=options.processes,
        where=options.store,
        checkpoints=options.directory / CHECKPOINTS_FOLDER,
        store=store_at(options.store, options.ranks),
    )
    device = choose_device(options.device, options.rank % options.processes)
    OwnLoop(options, device, Orders(Wakeup()), None, peers).run()
    return EXIT_OK
