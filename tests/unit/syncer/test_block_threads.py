from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Barrier, get_ident
from threading import enumerate as enumerate_threads

import pytest
import torch

from diloco.syncer.block_threads import BlockThreads


@contextmanager
def block_threads(count: int) -> Iterator[BlockThreads]:
    threads = BlockThreads(count)
    try:
        yield threads
    finally:
        threads.close()


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("blocks", [0, 1, 3, 100])
def test_every_block_is_gone_over_once(count: int, blocks: int) -> None:
    seen: list[int] = []
    with block_threads(count) as threads:
        threads(seen.extend, range(blocks))
    assert sorted(seen) == list(range(blocks))


def test_threads_work_at_once() -> None:
    both = Barrier(2, timeout=60)

    def meet(blocks: Iterable[int]) -> None:
        for _ in blocks:
            both.wait()

    with block_threads(2) as threads:
        threads(meet, range(2))


def test_each_has_one_torch_thread_and_no_more_work_than_there_are_blocks() -> None:
    torch_threads: list[int] = []
    with block_threads(3) as threads:
        threads(lambda _: torch_threads.append(torch.get_num_threads()), range(2))
        assert torch_threads == [1, 1]
        threads(lambda _: torch_threads.append(torch.get_num_threads()), range(100))
    assert torch_threads == [1] * (2 + 3)


def test_a_single_block_stays_in_the_calling_thread() -> None:
    seen: list[tuple[int, int]] = []
    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with block_threads(3) as threads:
            threads(lambda _: seen.append((get_ident(), torch.get_num_threads())), range(1))
        assert seen == [(get_ident(), 1)]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(usual)


def test_closing_ends_the_threads() -> None:
    seen: list[int] = []
    before = set(enumerate_threads())
    with block_threads(2) as threads:
        threads(seen.extend, range(10))
        assert set(enumerate_threads()) > before
    assert set(enumerate_threads()) <= before


def test_an_error_is_raised_once_all_have_ended() -> None:
    done: list[int] = []

    def fail_at_first(blocks: Iterable[int]) -> None:
        for block in blocks:
            if block == 0:
                raise ValueError("block 0")
            done.append(block)

    with block_threads(2) as threads:
        with pytest.raises(ValueError, match="block 0"):
            threads(fail_at_first, range(50))
        threads(done.extend, range(50, 60))
    assert set(range(50, 60)) <= set(done)
