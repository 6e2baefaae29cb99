"""A real learner process, started as a supervisor starts it."""

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from diloco.spec import DiLoCoJob
from diloco.spec.job import API_VERSION, KIND
from diloco.wire.tls.tls import ClientTls, ServerTls
from testbed.fork_server import Popen
from tests.support.small_job import small_job, write_text

_EXIT_SECONDS = 240.0
"""For anything to happen at all: reached only where something is broken, however busy the machine is."""


def make_job(folder: Path, learners: int = 2, name: str = "small", **changes: Any) -> DiLoCoJob:
    """A small job whose manifest lies at ``folder/job.json``."""
    spec = small_job(write_text(folder), learners, **changes)
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": spec.model_dump(mode="json", by_alias=True, exclude_defaults=True),
    }
    (folder / "job.json").write_text(json.dumps(document))
    return DiLoCoJob.model_validate(document)


def tls_flags(tls: ClientTls | ServerTls) -> list[str]:
    """The flags of a learner or a syncer with these certificates."""
    return [f"--tls-ca={tls.ca}", f"--tls-cert={tls.certificate}", f"--tls-key={tls.key}"]


class LearnerProcess:
    """Started on entering a ``with``, killed on leaving it if it still runs."""

    def __init__(
        self, folder: Path, address: str | Path, *flags: str, learner: str = "here/cpu/0", job: Path | None = None
    ) -> None:
        """``address``: of the syncer, or a file that contains it. ``job``: its manifest, if it is not in the folder."""
        way = "--syncer" if isinstance(address, str) else "--syncer-address-file"
        self.directory = folder / "learner"
        self._log_path = folder / f"{learner.replace('/', '.')}.log"
        self._command = [
            *(sys.executable, "-m", "diloco.cli.entry", "learner", "--job", str(job or folder / "job.json")),
            *("--learner", learner, way, str(address), "--directory", str(self.directory), "--threads", "1"),
            *flags,
        ]
        self._process: Popen | None = None

    def __enter__(self) -> Self:
        with self._log_path.open("ab") as log:
            self._process = Popen(self._command, stdout=log, stderr=log, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @property
    def runs(self) -> bool:
        assert self._process is not None
        return self._process.poll() is None

    @property
    def log(self) -> str:
        """What it has logged."""
        return self._log_path.read_text()

    @property
    def http_address(self) -> str:
        """The address at which it serves HTTP."""
        self.wait_for("serving /metrics")
        return self.log.split("at http://")[1].split()[0]

    def wait_for(self, text: str) -> None:
        """Wait for a line of its log."""
        self._wait_until(lambda: text in self.log)

    def wait_for_file(self, pattern: str) -> None:
        """Wait for a file in its directory."""
        self._wait_until(lambda: any(self.directory.glob(pattern)))

    def _wait_until(self, true: Callable[[], bool]) -> None:
        """Fail if the process ends first."""
        until = time.monotonic() + _EXIT_SECONDS
        while not true():
            assert self.runs, self.log
            assert time.monotonic() < until, self.log
            time.sleep(0.02)

    def limit_file_size(self, size_bytes: int) -> None:
        """Limit the size of every file that it writes from now on, as on a full disk."""
        assert self._process is not None
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))

    def terminate(self) -> None:
        """SIGTERM."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Wait for its end; returns the exit code."""
        assert self._process is not None
        return self._process.wait(_EXIT_SECONDS)
