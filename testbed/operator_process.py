"""The operator as a process of its own, with access to its probes and metrics."""

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from testbed.fork_server import Popen

PATIENCE_SECONDS = 90.0
PROGRAM = ("-m", "diloco_operator.main")
"""The program that Python runs."""
WRITES = ("create", "update", "patch", "delete")
_ADDRESS = re.compile(r"metrics on port (\d+)")
_SAMPLE = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")


class OperatorProcess:
    """``diloco-operator`` with a kubeconfig, within a ``with``."""

    def __init__(self, kubeconfig: Path, log: Path, *flags: str, program: Sequence[str] = PROGRAM) -> None:
        self._log = log
        command = [sys.executable, *program, f"--kubeconfig={kubeconfig}"]
        with log.open("ab") as output:
            self._process = Popen(
                [*command, "--health-address=127.0.0.1:0", *flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={name: value for name, value in os.environ.items() if not name.startswith("DILOCO_OPERATOR")},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    @property
    def address(self) -> str:
        """Where its pages are; empty until it serves them."""
        found = _ADDRESS.search(self.log)
        return f"127.0.0.1:{found[1]}" if found else ""

    def get(self, path: str) -> tuple[int, str]:
        """(status, text) of one of its pages; 0 if there is no answer."""
        if not (address := self.address):
            return 0, ""
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    @property
    def works(self) -> bool:
        status, text = self.get("/readyz")
        return status == 200 and text.startswith("working")

    @property
    def stands_by(self) -> bool:
        status, text = self.get("/readyz")
        return status == 200 and text.startswith("standing by")

    def metric(self, name: str, *labels: str, without: str = "\0") -> float:
        """The sum over all samples of a metric that have every one of these ``label="value"`` and not `without`."""
        samples = filter(None, map(_SAMPLE.match, self.get("/metrics")[1].splitlines()))
        fitting = [
            sample
            for sample in samples
            if sample["name"] == f"diloco_operator_{name}"
            and all(label in (sample["labels"] or "") for label in labels)
            and without not in (sample["labels"] or "")
        ]
        return sum(float(sample["value"]) for sample in fitting)

    @property
    def reconciles(self) -> float:
        return self.metric("reconcile_seconds_count")

    @property
    def writes(self) -> float:
        """Number of requests that change something, without renewals of the lease."""
        return self.requests("home", *WRITES, without="leases")

    def requests(self, cluster: str, *verbs: str, without: str) -> float:
        """Number of requests to ``home`` or ``other`` clusters."""
        label = f'cluster="{cluster}"'
        return sum(self.metric("api_requests_total", label, f'verb="{verb}"', without=without) for verb in verbs)

    def stop(self) -> int:
        """SIGTERM. Returns the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def wait(self) -> int:
        """Wait for its own end; returns the exit code."""
        return self._process.wait(PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.exit_code is None:
            self.kill()
