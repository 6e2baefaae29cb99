"""Sets how many torch threads the inner step uses, and keeps other threads from taking its cores.

torch keeps the number per thread, but only once that thread has read it; before, a thread follows the last number that
any thread has set.
"""

import threading
from collections.abc import Callable

import torch


def set_torch_threads(threads: int | None) -> int:
    """Set the calling thread's number of torch threads for good (None: torch's own choice); returns it."""
    torch.set_num_threads(threads or torch.get_num_threads())
    return torch.get_num_threads()


def start_worker(name: str, body: Callable[[], None], on_failure: Callable[[BaseException], None]) -> threading.Thread:
    """Run ``body`` on a daemon thread with one torch thread; an exception is passed to ``on_failure``."""

    def run() -> None:
        torch.set_num_threads(1)  # more would take cores from the inner step
        try:
            body()
        except BaseException as error:  # noqa: BLE001  # the inner loop raises it, which ends the process
            on_failure(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
