"""Does something again and again beside something else."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeating(action: Callable[[], object], pause_seconds: float) -> Iterator[None]:
    """Meanwhile a thread does it, with a pause before each time. It has ended when this does."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(pause_seconds):
            action()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
