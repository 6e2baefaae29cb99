"""The Docker engine: the user's where one answers, or, as root on a Debian, one that is started and stopped here.

It does not depend on Kubernetes. What it starts is recorded in the cache's state, and only that is ever stopped.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from testbed.kind.cache import Cache
from testbed.kind.commands import CommandFailedError, Unavailable, environment, on_path, run, step, succeeds

_START_SECONDS = 60.0
_QUESTION = ("docker", "version", "--format", "{{.Server.Version}}")
_HOSTS_SETTINGS = Path("/etc/docker/daemon.json")
_SYS_RESOURCE = 24  # the bit of CAP_SYS_RESOURCE (capabilities(7), linux/capability.h)


@dataclass(frozen=True)
class Engine:
    """What a node image must know of the engine that it is to run on."""

    cgroup_version: str
    is_restricted: bool
    """Whether containers cannot have CAP_SYS_RESOURCE, not even privileged ones."""

    @property
    def runs_stock_images(self) -> bool:
        """Whether published node images run on it: their systemd refuses cgroup v1, their kubelet needs all rights."""
        return self.cgroup_version == "2" and not self.is_restricted


def ensure(cache: Cache) -> Engine:
    """An engine that answers.

    Raises:
        Unavailable: None does and none can be started.
    """
    if not _answers():
        complaint = _complaint()
        if os.geteuid() != 0:
            raise Unavailable(f"no Docker engine answers ({complaint}), and only root could start one")
        _install(cache)
        if not _answers():
            _start(cache)
    info = json.loads(run("docker", "info", "--format", "{{json .}}"))
    return Engine(str(info.get("CgroupVersion", "1")), lacks_sys_resource(Path("/proc/self/status").read_text()))


def stop(cache: Cache) -> None:
    """Stop the engine if it was started here and nothing runs on it."""
    state = cache.state
    if state.engine_pid is None and not state.engine_is_service:
        return
    if _answers() and run("docker", "ps", "--quiet").strip():
        return
    with step("stopping the Docker engine"):
        if state.engine_is_service:
            run("systemctl", "stop", "docker.service", "docker.socket")
        elif state.engine_pid is not None and _is_dockerd(state.engine_pid):
            os.kill(state.engine_pid, signal.SIGTERM)
            _await(lambda: not _is_dockerd(state.engine_pid or 0), "the Docker engine does not end")
    cache.write(replace(state, engine_pid=None, engine_is_service=False))


def lacks_sys_resource(status: str) -> bool:
    """Whether a process with this /proc/PID/status could not give CAP_SYS_RESOURCE to a child."""
    line = next(line for line in status.splitlines() if line.startswith("CapBnd:"))
    return not int(line.split()[1], 16) >> _SYS_RESOURCE & 1


def _answers() -> bool:
    return succeeds(*_QUESTION, timeout_seconds=30)


def _complaint() -> str:
    try:
        run(*_QUESTION, timeout_seconds=30)
    except CommandFailedError as error:
        return error.last_line
    return "it does now"


def _install(cache: Cache) -> None:
    """The engine from the distribution's packages, if it is not there."""
    if on_path("dockerd") and on_path("docker"):
        return
    if not on_path("apt-get"):
        raise Unavailable("no Docker engine is installed, and without apt-get none can be")
    with step("installing Docker"):
        try:
            # The engine's package is called so; it is no address.
            install_packages("docker.io", "debootstrap")
            # Newer releases have the client in a package of its own.
            if not on_path("docker"):
                install_packages("docker-cli")
        except CommandFailedError as error:
            raise Unavailable(f"Docker cannot be installed: {error.last_line}") from None
    if succeeds("systemctl", "is-active", "--quiet", "docker.service"):
        cache.write(replace(cache.state, engine_is_service=True))


def install_packages(*packages: str) -> None:
    """Install Debian packages on this machine."""
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    run("apt-get", "update", "--quiet", env=quiet)
    run("apt-get", "install", "--yes", "--quiet", *packages, env=quiet)


def _start(cache: Cache) -> None:
    folder = cache.folder("engine")
    settings = folder / "daemon.json"
    settings.write_text(json.dumps(_settings(folder), indent=2), encoding="utf-8")
    dockerd = ("dockerd", "--config-file", str(settings), "--pidfile", str(folder / "dockerd.pid"))
    # Set-up may have a low priority; containers inherit the engine's.
    command = ("nice", f"--adjustment={-os.nice(0)}", *dockerd)
    log = folder / "dockerd.log"
    with step("starting the Docker engine"), log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment({}),
            # A Ctrl-C in the terminal is for the tests, which then stop the engine in order.
            start_new_session=True,
        )
        cache.write(replace(cache.state, engine_pid=process.pid))
        _await_answer(cache, process, log)


def _await_answer(cache: Cache, process: subprocess.Popen[bytes], log: Path) -> None:
    try:
        _await(lambda: process.poll() is not None or _answers(), "no answer")
        if process.poll() is None:
            return
        complaint = f"status {process.returncode}"
    except Unavailable as why:
        complaint = str(why)
        process.terminate()
    cache.write(replace(cache.state, engine_pid=None))
    last = (log.read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
    raise Unavailable(f"the Docker engine does not start: {complaint}: {last}")


def _settings(folder: Path) -> dict[str, Any]:
    """The host's own, if it has any, and the runtime that it needs."""
    settings: dict[str, Any] = {}
    if _HOSTS_SETTINGS.is_file():
        settings = json.loads(_HOSTS_SETTINGS.read_text(encoding="utf-8"))
    if lacks_sys_resource(Path("/proc/self/status").read_text(encoding="utf-8")):
        runtimes = settings.get("runtimes", {}) | {"relaxed": {"path": str(_relaxed_runtime(folder))}}
        settings |= {"runtimes": runtimes, "default-runtime": "relaxed"}
    return settings


def _relaxed_runtime(folder: Path) -> Path:
    """An executable that runs this package's `relaxed_runtime`."""
    path = folder / "relaxed-runtime"
    source = Path(__file__).with_name("relaxed_runtime.py")
    path.write_text(f"#!{sys.executable} -I\n" + source.read_text(encoding="utf-8"), encoding="utf-8")
    path.chmod(0o755)
    return path


def _is_dockerd(pid: int) -> bool:
    try:
        # A process that has ended and was not waited for has no command line.
        return b"dockerd" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _await(holds: Callable[[], bool], complaint: str) -> None:
    end = time.monotonic() + _START_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise Unavailable(f"{complaint} after {_START_SECONDS:.0f} s")
        time.sleep(0.2)
