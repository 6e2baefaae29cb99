"""Learners of several processes that call a loop of the user's own, and what stands for the learner around them.

A program: torch is loaded once, and each process is forked from it. It prints a line of JSON for each case, with what
each process has ended with.
"""

import json
import os
import signal
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast
from unittest.mock import patch

import torch
import torch._dynamo  # loaded here, as each process would

from diloco.learner.checkpoint import CHECKPOINTS_FOLDER, CheckpointIdentity, CheckpointStore, LearnerCheckpoint
from diloco.learner.exchange.orders import Ending, EndKind, Orders, Wakeup
from diloco.learner.job_training import Training
from diloco.learner.process import loop_process
from diloco.learner.process.ends import exit_code_of
from diloco.learner.process.rank_process import RankOptions
from diloco.learner.session.own_loop import OwnLoop
from diloco.learner.session.peers import Peers
from diloco.learner.unit.joining import store_at
from diloco.learner.unit.nodes.node_link import Meeting, meeting_here
from diloco.runtime.last_error import VARIABLE
from diloco.runtime.log import set_up_logging
from tests.support.small_learner import learner_options

if TYPE_CHECKING:
    from diloco.learner.session.trainer import SessionTrainer

LOOPS: Final = "tests.support.loops_of_several"
ENOUGH: Final = Ending(EndKind.FINISHED, "enough")
STEPS: Final = 8


@dataclass(frozen=True)
class Case:
    """A learner."""

    how: str = "sharded"
    """How its processes have the model."""
    ranks: int = 2
    fault: str = ""
    spec: dict[str, Any] = field(default_factory=dict)
    lives: tuple[int, ...] = (STEPS,)
    """After how many steps the learner ends, once or more often; each but the first resumes."""
    starts_over: bool = False
    """Whether it drops the optimizers' state of the checkpoint that it has taken up."""
    awaited: tuple[int, ...] = ()
    """Ranks whose end is awaited, before all others are killed; none: those of all."""

    def options(self, folder: Path) -> Any:
        spec = {
            "model": {"entrypoint": "tests.support.entrypoints:tiny_model"},
            "data": {},
            "loop": {"entrypoint": f"{LOOPS}:train", "arguments": {"how": self.how, "fault": self.fault}},
            "training": {"tokens": 100_000, "sequenceLength": 16, "batchSize": 4},
            "sync": {"fragments": 2, "startupSeconds": 1 if self.fault else 600},
            "failurePolicy": {"stuckSeconds": 1 if self.fault else 300},
        }
        return learner_options(folder, spec | self.spec, device="cpu", processes=self.ranks)


CASES: Final = {
    "alone": Case("whole", 1),
    "DDP": Case("DDP"),
    "sharded": Case(),
    "in copies": Case("in copies", 4),
    "recomputed": Case("recomputed"),
    "resumed alone": Case("whole", 1, lives=(4, STEPS)),
    "resumed DDP": Case("DDP", lives=(4, STEPS)),
    "resumed sharded": Case(lives=(4, STEPS)),
    "resumed in copies": Case("in copies", 4, lives=(4, STEPS)),
    "stopped before it went on": Case(lives=(4, 4, STEPS)),
    "starts over": Case(lives=(4, STEPS), starts_over=True),
    "other processes": Case(lives=(4, 0)),
    "no session": Case(fault="no session", awaited=(0,)),
    "not entered": Case(fault="not entered", awaited=(0,)),
    "no step": Case(fault="no step", awaited=(0,)),
    "other steps": Case(fault="other steps"),
    "not averaged": Case("whole"),
    "small mesh": Case("small mesh"),
    "sharded in the first": Case("sharded in the first", awaited=(1,)),
    "other models": Case("whole", spec={"model": {"entrypoint": f"{LOOPS}:model_by_rank"}}, awaited=(1,)),
    "stopped before others enter": Case(
        fault="stopped before others enter", spec={"sync": {"fragments": 2, "startupSeconds": 600}}, awaited=(0,)
    ),
    "stops by itself": Case(fault="stops by itself", awaited=(0,)),
}


class First:
    """Stands for the learner in the first process."""

    def __init__(self, case: Case, life: int, folder: Path) -> None:
        self.case, self.steps, self.folder = case, case.lives[life], folder
        self.options = case.options(folder)
        self.told: dict[str, Any] = {"losses": [], "evaluations": [], "logged": []}
        self.orders = Orders(Wakeup())
        self.trainer: SessionTrainer = cast("Any", None)

    def run(self, peers: Peers) -> int:
        OwnLoop(self.options, torch.device("cpu"), self.orders, cast("Any", self._begin), peers).run()
        return 0

    def _begin(self, training: Training) -> Any:
        self.training, trainer = training, cast("SessionTrainer", training.trainer)
        self.trainer = trainer
        identity = CheckpointIdentity("small", self.options.learner, trainer.layout.digest, trainer.optimizer_identity)
        self.store = CheckpointStore(self.options.directory / CHECKPOINTS_FOLDER, identity, trainer.others)
        self.found = self.store.load()
        loop = SimpleNamespace(begin=self._loop_begins, after_step=self._stepped, ending=lambda: None)
        return SimpleNamespace(start=lambda: None, loop=loop, finish=self._finish)

    def _loop_begins(self) -> Ending | None:
        trainer = self.trainer
        self.told["resumes after"] = None if self.found is None else self.found.state.steps
        if self.found is not None:
            trainer.load_state(self.found.state)
            if self.case.starts_over:
                trainer.start_over()
            for fragment in range(2):
                values = torch.from_file(
                    str(self.folder / f"{fragment}"), size=trainer.layout.fragments[fragment].numel
                )
                trainer.apply(fragment, 1, values.clone())
        return None if trainer.steps < self.steps else ENOUGH

    def _stepped(self, result: Any) -> Ending | None:
        trainer = self.trainer
        self.told["losses"].append(result.loss)
        if trainer.steps % 2 == 0:
            fragment = trainer.steps // 2 % 2
            capture = trainer.capture(fragment)
            trainer.apply(fragment, trainer.steps, capture._anchor - 0.7 * capture.delta)
            self.told["evaluations"].append(trainer.evaluate())
        if trainer.steps == STEPS // 2:  # as one does that resumes there
            for fragment in range(2):
                trainer.apply(fragment, 1, trainer.capture(fragment)._values)
        if self.case.fault == "stops by itself":
            self.orders.stop("SIGTERM")
        return ENOUGH if trainer.steps == self.steps else None

    def _finish(self, _: Ending) -> None:
        trainer = self.trainer
        values = [trainer.capture(fragment)._values for fragment in range(len(trainer.layout.fragments))]
        self.told["values"] = torch.cat(values).tolist()
        for fragment, one in enumerate(values):
            one.numpy().tofile(self.folder / f"{fragment}")
        self.store.save(LearnerCheckpoint(trainer.state(), {}))
        self.training.end()


def rank_of(first: First, rank: int, ranks: int, met: Meeting) -> dict[str, Any]:
    """What a process ends with."""
    told: dict[str, Any] = {}
    folder = first.folder
    os.environ[VARIABLE] = str(folder / f"error-{rank}")
    set_up_logging(process=f"rank {rank}")
    torch.set_num_threads(1)
    options = first.options
    if rank == 0:
        signal.signal(signal.SIGTERM, lambda *_: first.orders.stop("SIGTERM"))
        store = store_at(met.url, ranks, met.listening)
        peers = Peers(0, ranks, ranks, met.url, options.directory / CHECKPOINTS_FOLDER, store)
        told["code"] = exit_code_of(lambda: first.run(peers))
        told |= first.told
    else:
        where = options.job, options.learner, rank, ranks, ranks, met.url, options.directory
        told["code"] = loop_process.run_loop(RankOptions(*where, "cpu", 1))
    error = Path(os.environ[VARIABLE])
    return told | {"error": error.read_text() if error.exists() else ""}


def alone(first: First) -> dict[str, Any]:
    """What a learner of one process ends with, whose loop finds a group of one."""
    variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    with patch.dict(os.environ, variables):
        code = exit_code_of(lambda: first.run(cast("Any", None)))
    return {"code": code, "error": "", **first.told}


def forked(first: First, rank: int, ranks: int, met: Meeting) -> int:
    """A process that writes down what it ends with."""
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            told = alone(first) if ranks == 1 else rank_of(first, rank, ranks, met)
            (first.folder / f"result-{rank}").write_text(json.dumps(told))
        os._exit(0)
    return pid


def ends(case: Case) -> list[list[dict[str, Any]]]:
    """What the processes of each life end with; those that were still running are killed, and have ``{}``."""
    with tempfile.TemporaryDirectory() as name:
        folder, every = Path(name), []
        for life in range(len(case.lives)):
            ranks = case.ranks if life == 0 or case.lives[life] else 1 + case.ranks
            results = [folder / f"result-{rank}" for rank in range(ranks)]
            met, first = meeting_here(), First(case, life, folder)
            pids = [forked(first, rank, ranks, met) for rank in range(ranks)]
            assert met.listening is not None
            met.listening.close()
            awaited = [pids[rank] for rank in case.awaited] or pids
            for pid in (*awaited, *(set(pids) - set(awaited))):
                if pid not in awaited:
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            every.append([json.loads(one.read_text()) if one.exists() else {} for one in results])
            for one in results:
                one.unlink(missing_ok=True)
    return every


def main() -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for case in sys.argv[1:] or CASES:
        print(json.dumps([case, ends(CASES[case])]), flush=True)


if __name__ == "__main__":
    main()
