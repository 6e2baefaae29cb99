"""Groups of processes that are killed and come back, for the benchmark `goodput`.

`Restarted`: when one rank goes, all are stopped and started from the newest checkpoint. `Elastic`: each rank has a
torchrun agent of its own; when one goes with its agent, the others meet without it, and again when it is back.
`FaultTolerant`: replicas of torchft's DiLoCo, and its lighthouse, which is not what fails.
"""

import contextlib
import signal
import subprocess
import sys
import sysconfig
import venv
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import psutil
import torch.distributed as dist

from diloco.local.launch import free_ports
from support.processes import started

RANK = ("-m", "support.rank")
REPLICA = ("-m", "support.goodput.torchft_replica")
TORCHFT = "0.2.0"
_ENVIRONMENT = Path("build/torchft")


class Group(ABC):
    """The processes of a job; each of its members may be killed."""

    def __init__(self, members: int, log: Path) -> None:
        self._log = log
        self._running: list[subprocess.Popen[bytes] | None] = [None] * members

    @abstractmethod
    def tend(self) -> bool:
        """Start what has to be started; whether all have ended as they should."""

    def kill(self, member: int) -> bool:
        """Kill a member, with its children; whether it ran."""
        process = self._running[member]
        if process is None or process.poll() is not None:
            return False
        _kill_tree(process.pid)
        return True

    def stop(self) -> None:
        for process in self._running:
            if process is not None:
                _kill_tree(process.pid)
                process.wait()

    def _restart_all(self) -> None:
        """Stop all members, to be started again."""
        self.stop()
        self._running = [None] * len(self._running)

    def _ended(self, commands: Sequence[Sequence[str | Path]]) -> int:
        """Start the members that are missing, as `diloco run` at once; returns how many have ended as they should."""
        ended = 0
        for member, process in enumerate(self._running):
            if process is None:
                self._running[member] = _started(commands[member], self._log)
            elif (code := process.poll()) == 0:
                ended += 1
            elif code is not None:
                _kill_tree(process.pid)
                self._running[member] = None
        return ended


class Restarted(Group):
    """All ranks start again when one of them goes."""

    def __init__(self, members: int, arguments: Sequence[str | Path], log: Path) -> None:
        super().__init__(members, log)
        self._arguments = arguments
        (self._port,) = free_ports(1)

    def tend(self) -> bool:
        """Start all ranks if none runs; stop all if one has gone."""
        if any(process is not None and process.poll() not in (None, 0) for process in self._running):
            self._restart_all()
            (self._port,) = free_ports(1)
        members = len(self._running)
        place = ("/usr/bin/env", f"WORLD_SIZE={members}", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={self._port}")
        command = (sys.executable, *RANK, *self._arguments)
        return self._ended([(*place, f"RANK={rank}", *command) for rank in range(members)]) == members


class Elastic(Group):
    """Each rank has an agent; those that are there train."""

    def __init__(self, members: int, arguments: Sequence[str | Path], log: Path) -> None:
        super().__init__(members, log)
        (self._port,) = free_ports(1)
        # The agents' meeting place is not what fails.
        self._store = dist.TCPStore("127.0.0.1", self._port, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]  # torch's own
        self._arguments, self._meetings = arguments, 0

    def tend(self) -> bool:
        """Start the agents that are missing. Once one has closed the meeting for good, all meet anew."""
        # A positive code: it ended by itself, not by a signal.
        if any(process is not None and (process.poll() or 0) > 0 for process in self._running):
            self._restart_all()
            self._meetings += 1
        members = len(self._running)
        return self._ended([self._command(members)] * members) == members

    def _command(self, members: int) -> list[str | Path]:
        # A lost agent is noticed after 3 s, as a learner of ours is after 5 s.
        found = "is_host=0,last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"
        return [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", f"1:{members}", "--nproc-per-node", "1"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self._port}", "--rdzv-conf", found),
            *("--rdzv-id", f"goodput-{self._meetings}", "--max-restarts", "1000", "--monitor-interval", "0.1"),
            *RANK,
            *self._arguments,
        ]


class FaultTolerant(Group):
    """Replicas of torchft; those that are there merge."""

    def __init__(self, members: int, arguments: Sequence[str | Path], log: Path) -> None:
        super().__init__(members, log)
        python = torchft_python(_ENVIRONMENT.absolute())
        (port,) = free_ports(1)
        # The settings that torchft's documentation starts it with.
        settings = ("--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000")
        lighthouse = (python.with_name("torchft_lighthouse"), *settings, "--bind", f"127.0.0.1:{port}")
        self._lighthouse = _started(lighthouse, log)
        place = ("--lighthouse", f"http://127.0.0.1:{port}")
        self._commands = [(python, *REPLICA, *arguments, "--member", str(member), *place) for member in range(members)]

    def tend(self) -> bool:
        """Start the replicas that are missing, until one has seen the end."""
        return self._ended(self._commands) > 0

    def stop(self) -> None:
        super().stop()
        self._lighthouse.kill()
        self._lighthouse.wait()


def _started(command: Sequence[str | Path], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return started(command, stdout=file, stderr=file)


def torchft_python(folder: Path) -> Path:
    """The interpreter of an environment that has torchft and sees this one's packages; made if it is missing."""
    done = folder / f"torchft-{TORCHFT}"
    python = folder / "bin" / "python"
    if not done.exists():
        venv.create(folder, clear=True, with_pip=True)
        (packages,) = folder.glob("lib/python*/site-packages")
        here = sysconfig.get_path("purelib")
        (packages / "parent.pth").write_text(f"import site; site.addsitedir({here!r})\n")
        subprocess.run([python, "-m", "pip", "install", "--quiet", f"torchft=={TORCHFT}"], check=True)
        done.touch()
    return python


def _kill_tree(pid: int) -> None:
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(pid)
        children = parent.children(recursive=True)
        parent.send_signal(signal.SIGKILL)
        for child in children:
            with contextlib.suppress(psutil.Error):
                child.send_signal(signal.SIGKILL)
