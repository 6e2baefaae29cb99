"""A benchmark that is killed leaves nothing running: neither workers, nor processes, nor programs."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from testbed.kind.waiting import wait_until

pytestmark = pytest.mark.processes

BENCHMARK = """
import sys, time
from support.processes import process, started, workers

if __name__ == "__main__":
    process(time.sleep, 600.0).start()
    pool = workers(1)
    pool.submit(time.sleep, 600.0)
    started([sys.executable, "-c", "import time; time.sleep(600.0)"])
    print("started", flush=True)
    time.sleep(600.0)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_benchmark_that_is_killed_leaves_nothing_running(tmp_path: Path, how: signal.Signals) -> None:
    script = tmp_path / "benchmark.py"
    script.write_text(BENCHMARK)
    environment = {"PYTHONPATH": str(Path(__file__).parents[2] / "benchmarks")}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, env=environment) as benchmark:
        assert benchmark.stdout is not None
        assert benchmark.stdout.readline() == b"started\n"
        # Those of multiprocessing beside them end by themselves.
        children = psutil.Process(benchmark.pid).children(recursive=True)
        assert len(children) >= 3
        benchmark.send_signal(how)
    wait_until(lambda: not any(child.is_running() for child in children), "all have ended")
