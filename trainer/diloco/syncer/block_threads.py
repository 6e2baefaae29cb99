"""Threads that share the blocks of a merge, without waiting for one another at every operation.

torch's own threads synchronize after each of the thousands of operations of a merge; on a busy machine each time waits
for whichever thread is not running (measured: 5 to 30 times as long). These threads take another block whenever they
have finished one, and synchronize three times per merge.
"""

from concurrent.futures import ThreadPoolExecutor, wait

import torch

from diloco.core.merge.fragment_merge import Pass


class BlockThreads:
    """A ``BlockRunner`` on threads of its own, each with one torch thread. Runs one merge at a time."""

    def __init__(self, threads: int) -> None:
        """``threads``: how many, at least one."""
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "merge-block", torch.set_num_threads, (1,))

    def __call__(self, one_pass: Pass, blocks: range) -> None:
        """Process the blocks; an exception in a thread is raised once all threads have ended."""
        shared = iter(blocks)  # taking the next number of a range is atomic under the interpreter's lock
        running = [self._pool.submit(one_pass, shared) for _ in range(min(self._threads, len(blocks)))]
        for future in wait(running).done:
            future.result()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()
