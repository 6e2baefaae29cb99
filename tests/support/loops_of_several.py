"""Loops of the user's own for learners of several processes, valid and invalid ones."""

import os
import signal
import time
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import diloco
from tests.support.own_loops import Numbers, adamw, loss_of


def _whole(model: nn.Module, _rank: int, _ranks: int) -> nn.Module:
    return model


def _sharded(model: nn.Module, _rank: int, ranks: int) -> nn.Module:
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    return model


def _in_copies(model: nn.Module, _rank: int, ranks: int) -> nn.Module:
    fully_shard(model, mesh=init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("copies", "parts")))
    return model


def _recomputed(model: nn.Module, _rank: int, ranks: int) -> nn.Module:
    """As torchtitan does it, whose wrapper renames parameters."""
    middle = model.get_submodule("middle")
    setattr(model, "middle", checkpoint_wrapper(middle))  # noqa: B010  # for type checkers
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    return model


def _on_a_small_mesh(model: nn.Module, _rank: int, ranks: int) -> nn.Module:
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks, 1), mesh_dim_names=("a", "b"))["b"])
    return model


def _sharded_in_the_first(model: nn.Module, rank: int, ranks: int) -> nn.Module:
    mesh = init_device_mesh("cpu", (ranks,))
    if not rank:
        fully_shard(model, mesh=mesh)
    return model


_HOW = {
    "whole": _whole,
    "DDP": lambda model, _rank, _ranks: DistributedDataParallel(model),
    "sharded": _sharded,
    "in copies": _in_copies,
    "recomputed": _recomputed,
    "small mesh": _on_a_small_mesh,
    "sharded in the first": _sharded_in_the_first,
}


class Rows(Numbers):
    """A process's share of batches of four rows; what it saves differs by process."""

    def __init__(self, rank: int, ranks: int) -> None:
        super().__init__()
        self.rank, self.ranks = rank, ranks

    def take(self) -> torch.Tensor:
        return super().take()[self.rank :: self.ranks]

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "rank": self.rank}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["rank"] == self.rank
        super().load_state_dict(state)


def train(model: nn.Module, how: str, fault: str = "") -> None:
    """Does what ``own_loops.plain`` does, in any number of processes."""
    distributed.init_process_group("gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    wrapped = _HOW[how](model, rank, ranks)
    numbers, optimizer = Rows(rank, ranks), adamw(model)
    held_out = torch.arange(34).view(2, 17)
    if fault == "no session" and rank:
        time.sleep(1000)
    session = diloco.session(model, optimizer, evaluate=lambda model: loss_of(model, held_out))
    session.saved["numbers"] = numbers
    if fault == "not entered" and rank:
        time.sleep(1000)
    if fault == "stopped before others enter":
        _stop_the_first(rank)
    with session:
        _check_that_all_have(numbers.place, ranks)
        goes_on = True
        while goes_on:
            loss = loss_of(wrapped, numbers.take())
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if fault == "other steps" and rank:
                optimizer.step()
            optimizer.zero_grad()
            if fault == "no step" and rank and session.steps == 1:
                time.sleep(1000)
            if fault == "stops by itself" and not rank and session.steps == 1:
                return
            goes_on = session.step(loss.detach())
    distributed.destroy_process_group()


def _stop_the_first(rank: int) -> None:
    """By SIGTERM, which a framework handles there until it waits for the others."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pid = torch.tensor([os.getpid()])
    distributed.broadcast(pid, 0)
    while rank:
        os.kill(int(pid), signal.SIGTERM)
        time.sleep(0.1)


def _check_that_all_have(number: int, ranks: int) -> None:
    every = torch.tensor([number])
    distributed.all_reduce(every)
    assert int(every) == ranks * number


def model_by_rank() -> nn.Module:
    """Another one in each process."""
    return nn.Linear(2, 2 + int(os.environ["RANK"]))
