"""How many torch threads the inner step has, and that the other threads do not take its cores.

torch keeps the number for each thread, but only once that thread has asked for it; before, it follows whatever was set
last anywhere.
"""

import threading
from collections.abc import Callable

import torch


def settle_torch_threads(threads: int | None) -> int:
    """Give the calling thread its number for good (None: torch's own choice); returns it."""
    torch.set_num_threads(threads or torch.get_num_threads())
    return torch.get_num_threads()


def use_one_torch_thread() -> None:
    """For a thread beside the inner loop's: work on as many cores as the inner step has would slow the step down."""
    torch.set_num_threads(1)


def start_worker(name: str, body: Callable[[], None], on_failure: Callable[[BaseException], None]) -> threading.Thread:
    """Run ``body`` on a daemon thread with one torch thread; an exception goes to ``on_failure``, not to nowhere."""

    def run() -> None:
        use_one_torch_thread()
        try:
            body()
        except BaseException as error:  # noqa: BLE001  # the inner loop raises it where it ends the process
            on_failure(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
