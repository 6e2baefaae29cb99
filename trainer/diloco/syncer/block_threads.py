"""Threads that share the blocks of a merge, without waiting for one another at every operation.

torch's own threads synchronize after each of the thousands of operations of a merge; on a busy machine each time waits
for whichever thread is not running (measured: 5 to 30 times as long). These threads take another block whenever they
have finished one, and synchronize three times per merge.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

import torch

from diloco.core.merge.fragment_merge import Pass


class BlockThreads:
    """A ``BlockRunner`` on the calling thread and threads of its own, each with one torch thread.

    Runs one merge at a time. The caller takes blocks too because handing a small fragment over costs more than merging
    it (measured: 0.2 ms for each pass).
    """

    def __init__(self, threads: int) -> None:
        """``threads``: how many, at least one, with the caller's."""
        self._threads = threads
        self._pool = ThreadPoolExecutor(max(1, threads - 1), "merge-block", torch.set_num_threads, (1,))

    def __call__(self, one_pass: Pass, blocks: range) -> None:
        """Process the blocks; an exception in a thread is raised once all threads have ended."""
        shared = iter(blocks)  # taking the next number of a range is atomic under the interpreter's lock
        running = [self._pool.submit(one_pass, shared) for _ in range(min(self._threads, len(blocks)) - 1)]
        try:
            with _one_torch_thread():
                one_pass(shared)
        finally:
            wait(running)
        for future in running:
            future.result()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """In this thread only."""
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)
