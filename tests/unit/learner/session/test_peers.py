"""The processes of a loop wait for each other, and name those that do not come."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]  # documented

from diloco.learner.session.peers import LateError, SessionWorld

RANKS = 3


@pytest.fixture
def store() -> HashStore:
    return HashStore()


@pytest.fixture
def worlds(store: HashStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[SessionWorld]]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with ThreadPoolExecutor(RANKS) as threads:
        yield list(threads.map(lambda rank: SessionWorld(store, rank, RANKS, torch.device("cpu")), range(RANKS)))


def after(seconds: float, world: SessionWorld, patience: float) -> Callable[[], list[list[int]]]:
    def come() -> list[list[int]]:
        time.sleep(seconds)
        return world.every([world.rank], patience)

    return come


def test_only_those_that_have_not_come_are_named(worlds: list[SessionWorld]) -> None:
    with ThreadPoolExecutor(RANKS) as threads:
        first, second = (threads.submit(after(seconds, worlds[rank], 1.0)) for rank, seconds in enumerate((0.0, 0.7)))
        for waits in (first, second):
            with pytest.raises(LateError, match=r"^rank 2$"):
                waits.result()
        assert worlds[2].every([2], 60.0) == [[0], [1], [2]]  # no group ends before its calls


def test_what_a_process_has_said_while_it_waited_is_taken_back(store: HashStore, worlds: list[SessionWorld]) -> None:
    with ThreadPoolExecutor(RANKS) as threads:
        keys = []
        for seconds in (0.6, 0.0):
            waits = [threads.submit(after(seconds * (rank == 2), world, 60.0)) for rank, world in enumerate(worlds)]
            assert [one.result() for one in waits] == [[[0], [1], [2]]] * RANKS
            keys.append(store.num_keys())
    assert keys[0] - keys[1] == 2
