import subprocess
import sys

_ROUNDS = """
import resource, sys, threading
from diloco.runtime.process.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    blocks = [b"x" * (16 << 20) for _ in range(4)]
    del blocks
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

if sys.argv[1] == "kept":
    keep_freed_memory()
    keep_freed_memory()
counts = [faults()]
thread = threading.Thread(target=lambda: counts.extend(faults() for _ in range(3)))
thread.start()
thread.join()
print(*counts)
"""


def faults(how: str) -> list[int]:
    """Page faults of four rounds, the later ones in another thread, each of 16,384 pages."""
    program = [sys.executable, "-c", _ROUNDS, how]
    return [int(count) for count in subprocess.run(program, capture_output=True, check=True, text=True).stdout.split()]


def test_freed_memory_serves_every_thread_without_new_pages() -> None:
    first, *later = faults("kept")
    assert first > 16_000
    assert max(later) < 100
    assert max(faults("by default")[1:]) > 16_000  # this test sees a difference
