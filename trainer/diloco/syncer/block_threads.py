"""Threads that share the blocks of a merge, without waiting for one another at every operation.

torch's own threads meet after each of the thousands of operations of a merge; where the machine is busy with something
else, each meeting waits for whichever thread is not running (measured: 5 to 30 times as long). These take the next
block when they are done with one, and meet three times a merge. It must not know what is done with a block.
"""

from concurrent.futures import ThreadPoolExecutor, wait

import torch

from diloco.core.merge import Pass


class BlockThreads:
    """A ``BlockRunner`` on threads of its own, each with one torch thread. Serves one merge at a time."""

    def __init__(self, threads: int) -> None:
        """``threads``: how many, at least one."""
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "merge-block", torch.set_num_threads, (1,))

    def __call__(self, one_pass: Pass, blocks: range) -> None:
        """Go over the blocks; whatever a thread raises is raised once all have ended."""
        shared = iter(blocks)  # taking the next number of a range is one step under the interpreter's lock
        running = [self._pool.submit(one_pass, shared) for _ in range(min(self._threads, len(blocks)))]
        wait(running)
        for future in running:
            future.result()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()
