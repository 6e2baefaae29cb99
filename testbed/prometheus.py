"""Prometheus and promtool: the user's, or Debian's package, unpacked into the cache and not installed.

with RunningPrometheus(programs, folder, configuration) as prometheus:
    prometheus.query("up")
"""

import json
import shutil
import subprocess
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import yaml

from diloco.local.launch import free_ports
from testbed.kind import tools
from testbed.kind.cache import Cache
from testbed.kind.commands import CommandFailedError, Unavailable, run, step
from testbed.kind.versions import Allowed
from testbed.kind.waiting import wait_until

WHY_NONE: Final = (
    "no Prometheus: neither on PATH nor downloaded yet (`.venv/bin/python -m testbed.kind set-up programs` does)"
)
_ALLOWED: Final = Allowed((2, 42, 0), (4, 0, 0))
_NAMES: Final = ("prometheus", "promtool")


@dataclass(frozen=True)
class Prometheus:
    """Where the two programs are."""

    server: Path
    promtool: Path


def ensure(cache: Cache) -> Prometheus:
    """The user's programs, or those of Debian's package, which is downloaded if it is not there.

    Raises:
        Unavailable: It cannot be downloaded.
    """
    with cache.lock("programs-prometheus"):
        if (found := _found(cache)) is None:
            _unpack(_folder(cache))
            found = Prometheus(*(_folder(cache) / name for name in _NAMES))
    return found


def if_there(cache: Cache) -> Prometheus | None:
    """The user's programs, or those that were downloaded before, or are being downloaded; nothing is downloaded."""
    with cache.lock("programs-prometheus"):
        return _found(cache)


def _found(cache: Cache) -> Prometheus | None:
    own = [tools.users(name, ("--version",), _ALLOWED) for name in _NAMES]
    unpacked = [path if (path := _folder(cache) / name).exists() else None for name in _NAMES]
    for server, promtool in [own, unpacked]:
        if server is not None and promtool is not None:
            return Prometheus(server, promtool)
    return None


def _folder(cache: Cache) -> Path:
    return cache.folder("bin/prometheus")


def _unpack(folder: Path) -> None:
    with step("downloading prometheus"), tempfile.TemporaryDirectory(dir=folder) as unfinished:
        try:
            run("apt-get", "download", "--quiet", "prometheus", cwd=Path(unfinished))
            (package,) = Path(unfinished).glob("*.deb")
            run("dpkg-deb", "--extract", package, unfinished)
        except CommandFailedError as error:
            raise Unavailable(f"Debian's package prometheus: {error.last_line}") from None
        for name in _NAMES:
            shutil.move(Path(unfinished) / "usr/bin" / name, folder / name)


class RunningPrometheus:
    """A server with this configuration, within a ``with``."""

    def __init__(self, programs: Prometheus, folder: Path, configuration: Mapping[str, Any]) -> None:
        (port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{port}"
        config, self._log = folder / "prometheus.yaml", folder / "prometheus.log"
        config.write_text(yaml.safe_dump(dict(configuration)), encoding="utf-8")
        flags = (f"--config.file={config}", f"--storage.tsdb.path={folder / 'series'}")
        self._command = [str(programs.server), *flags, f"--web.listen-address=127.0.0.1:{port}"]

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(self._is_ready, "Prometheus is ready")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an expression now."""
        asked = urllib.parse.urlencode({"query": expression})
        found: list[dict[str, Any]] = self._get(f"/api/v1/query?{asked}")["result"]
        return found

    def firing(self) -> dict[str, dict[str, str]]:
        """The annotations of each alert that fires, by its name."""
        alerts = self._get("/api/v1/alerts")["alerts"]
        return {one["labels"]["alertname"]: one["annotations"] for one in alerts if one["state"] == "firing"}

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self._log.read_text(encoding="utf-8")
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=10):
                return True
        except OSError:
            return False

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self._url}{path}", timeout=30) as page:
            return json.load(page)["data"]
