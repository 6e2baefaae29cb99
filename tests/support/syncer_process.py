"""A real syncer process for tests: started like by a supervisor, watched through its log, killed in every way."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from diloco.model.build import build_model
from diloco.model.fragments import layout_of
from diloco.spec import DiLoCoJob, parse_job
from diloco.spec.status.syncer import SyncerStatus
from diloco.syncer.replay import ReplayReport, replay
from testbed.fork_server import Popen

if TYPE_CHECKING:
    from diloco.core.fragments import Layout

WAIT_SECONDS = 240.0

MANIFEST = """
apiVersion: diloco.dev/v1alpha1
kind: DiLoCoJob
metadata: {{name: {name}}}
spec:
  model: {{builtin: {{preset: {preset}}}}}
  data: {{text: {{}}}}
  training: {{tokens: {tokens}, sequenceLength: 16, batchSize: 4, checkpointEverySteps: {checkpoint_steps}}}
  sync:
    {{fragments: 4, interval: 4, quorum: {quorum}, compression: None, downlink: {downlink}, anchor: {anchor},
      leaseSeconds: {lease_seconds}, startupSeconds: {startup_seconds}}}
  syncer: {{checkpointEverySeconds: {checkpoint_every}, tape: {{maxSize: {tape}}}, backup: {backup}}}
  initFrom: {init_from}
  regions: [{{name: here, pools: [{{name: cpu, learners: {learners}, nodesPerLearner: {nodes}}}]}}]
"""
_DEFAULTS: dict[str, Any] = {
    "name": "small",
    "preset": "pico",
    "tokens": 20_000,
    "quorum": 1,
    "anchor": "Received",
    "downlink": "F32",
    "checkpoint_every": 1,
    "tape": "1Gi",
    "learners": 2,
    "checkpoint_steps": 1000,
    "nodes": 1,
    "lease_seconds": 30,
    "startup_seconds": 600,
    "backup": "null",
    "init_from": "null",
}


class SmallJob:
    """A small job: its manifest on disk and its layout."""

    def __init__(self, directory: Path, **changes: Any) -> None:
        self.path = directory / "job.yaml"
        self.path.write_text(MANIFEST.format(**_DEFAULTS | changes))
        self.job: DiLoCoJob = parse_job(self.path.read_text(), str(self.path))
        self.layout: Layout = layout_of(build_model(self.job.spec), self.job.spec.sync.fragments)

    @property
    def name(self) -> str:
        return self.job.metadata.name


class SyncerProcess:
    """One process of a syncer."""

    def __init__(self, job: SmallJob, directory: Path, *flags: str, before: Sequence[str] = ()) -> None:
        self.directory = directory
        command = [*before, sys.executable, "-m", "diloco.cli.entry", "syncer", "--job", str(job.path)]
        command += ["--directory", str(directory), "--threads", "1", *flags]
        if "--listen" not in flags:
            command += ["--listen", "127.0.0.1:0"]
        self._process = Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def log(self) -> str:
        with self._news:
            return "".join(self._lines)

    @property
    def pid(self) -> int:
        return self._process.pid

    def serving(self) -> Self:
        """Wait until it serves."""
        self.wait_for("serving job")
        return self

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait for a line of its log; fail if the process ends first."""
        with self._news:
            self._news.wait_for(lambda: self._ended or self._count(text) >= times, WAIT_SECONDS)
            assert self._count(text) >= times, f"no {text!r} in the log:\n" + "".join(self._lines)

    @property
    def address(self) -> str:
        return str(self._endpoint()["sync"])

    @property
    def http_address(self) -> str:
        return str(self._endpoint()["http"])

    def page(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.http_address}{path}", timeout=WAIT_SECONDS) as answer:
            return str(answer.read().decode())

    def status(self) -> SyncerStatus:
        return SyncerStatus.model_validate_json(self.page("/status"))

    def kill(self) -> None:
        """``kill -9``."""
        self._process.kill()
        self.exit_code()

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self.exit_code()

    def exit_code(self) -> int:
        """Wait for its end."""
        code = self._process.wait(WAIT_SECONDS)
        self._reader.join(WAIT_SECONDS)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self.exit_code()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _endpoint(self) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads((self.directory / "endpoint.json").read_text())
        assert plain["pid"] == self.pid
        return plain

    def _count(self, text: str) -> int:
        return sum(text in line for line in self._lines)

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


@contextlib.contextmanager
def serving(job: SmallJob, directory: Path, *flags: str, before: Sequence[str] = ()) -> Iterator[SyncerProcess]:
    """A syncer that serves, killed at the end if it still runs."""
    with SyncerProcess(job, directory, *flags, before=before) as syncer:
        yield syncer.serving()


def replayed(directory: Path) -> ReplayReport:
    """Replay a syncer's record; fail if it comes out otherwise."""
    report = replay(directory)
    assert report.ok, report.problems
    return report


Serve = Callable[..., tuple[SmallJob, SyncerProcess]]
"""Starts a syncer with these flags, of a small job with these changes, and waits until it serves."""
