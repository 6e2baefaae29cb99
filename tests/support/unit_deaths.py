"""Learners of two processes whose second one ends in a chosen way, inside of a chosen order.

A program: torch is loaded once, and each process is forked from it. It prints a line of JSON for each learner.
"""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import torch
import torch._dynamo  # loaded here, as each learner would

from diloco.core.dealing.pieces import Piece
from diloco.learner.checkpoint import CHECKPOINTS_FOLDER, CheckpointIdentity, CheckpointStore, LearnerCheckpoint
from diloco.learner.exchange.orders import Orders, Wakeup
from diloco.learner.job_training import training_of
from diloco.learner.options import LearnerOptions
from diloco.learner.process import rank_process
from diloco.learner.process.ends import exit_code_of
from diloco.learner.process.rank_process import RankOptions, run_rank
from diloco.learner.training.steps import InnerSteps
from diloco.learner.unit import starting
from diloco.learner.unit.checkpoints import RankCheckpoints
from diloco.learner.unit.collectives.world import World
from diloco.learner.unit.rank import Rank
from diloco.runtime.last_error import VARIABLE
from diloco.runtime.log import set_up_logging
from diloco.runtime.process.die_with_parent import die_with_parent
from diloco.runtime.process.exits import EXIT_OK
from tests.support.small_learner import learner_options

RANKS: Final = 2


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_out_of_memory(*_: object) -> None:
    torch.empty(1 << 60, dtype=torch.uint8)


def fail(*_: object) -> None:
    raise MemoryError


ORDERS: Final[dict[str, tuple[type, str]]] = {
    "STEP": (InnerSteps, "begin"),
    "CAPTURE": (Rank, "give"),
    "APPLY": (Rank, "receive"),
    "EVALUATE": (Rank, "evaluate"),
    "START_OVER": (InnerSteps, "start_over"),
    "SAVE": (RankCheckpoints, "save"),
    "LOAD": (RankCheckpoints, "load"),
    "END": (World, "leave"),
}
"""What a process calls for each."""


def replaced(owner: Any, name: str, value: object) -> Callable[[], None]:
    """Replaces an attribute once it is called."""
    return lambda: setattr(owner, name, value)


CASES: Final[dict[str, Callable[[], None]]] = {
    **{order: replaced(*place, die) for order, place in ORDERS.items()},
    "joining": replaced(rank_process, "joined", die),
    "writing": replaced(RankCheckpoints, "_write_part", die),
    "no memory": replaced(Rank, "give", run_out_of_memory),
    "MemoryError": replaced(InnerSteps, "begin", fail),
    "another version": replaced(
        rank_process, "facts_of", lambda *_: {"diloco": "0.0.9", "torch": "1", "layout": "other"}
    ),
    "another number": lambda: None,
    "nothing": lambda: None,
}


class Forked:
    """Stands for ``subprocess.Popen``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self, options: int = os.WNOHANG) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, options)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self, _: float = 0.0) -> int | None:
        return self.poll(0)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def follower(case: str, options: RankOptions, error_file: Path) -> int:
    os.environ[VARIABLE] = str(error_file)
    set_up_logging(process="rank 1")
    CASES[case]()
    return run_rank(options)


class ForkingUnit(starting.Unit):
    """Forks the other process."""

    case: str

    def _start(self, process: int, options: LearnerOptions) -> Any:
        parent, ranks = os.getpid(), RANKS + (self.case == "another number")
        pid = os.fork()
        if pid == 0:
            with suppress(BaseException):
                die_with_parent(parent)
                where = options.job, options.learner, process, ranks, RANKS, self.store, options.directory
                os._exit(follower(self.case, RankOptions(*where, "cpu", 1), self._error_file(process)))
            os._exit(99)
        return Forked(pid)


def train(unit: starting.Unit, options: LearnerOptions) -> int:
    """Let a learner give each order."""
    wakeup = Wakeup()
    training = training_of(options, Orders(wakeup), wakeup, unit)
    trainer, step = training.trainer, training.step
    assert step is not None
    trainer.hand.put(Piece(0, 0, 1000))
    step(0.0)
    trainer.apply(0, 1, trainer.capture(0).delta)
    trainer.evaluate()
    trainer.start_over()
    step(0.0)
    identity = CheckpointIdentity("small", options.learner, trainer.layout.digest, trainer.optimizer_identity)
    store = CheckpointStore(options.directory / CHECKPOINTS_FOLDER, identity, trainer.others)
    store.save(LearnerCheckpoint(trainer.state(), {}))
    assert store.load() is not None
    training.end()
    return EXIT_OK


def learner(case: str, folder: Path) -> int:
    os.environ[VARIABLE] = str(folder / "error")
    set_up_logging(process="rank 0")
    ForkingUnit.case = case
    options = learner_options(folder, processes=RANKS, device="cpu")
    unit = ForkingUnit(options)
    code = exit_code_of(lambda: train(unit, options), unit.await_cause)
    unit.close()
    return code


def main() -> None:
    torch.set_num_threads(1)
    for case in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            pid = os.fork()
            if pid == 0:
                with suppress(BaseException):
                    os._exit(learner(case, folder))
                os._exit(98)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            told = (folder / "error").read_text() if (folder / "error").exists() else ""
            print(json.dumps([case, code, told]), flush=True)


if __name__ == "__main__":
    main()
