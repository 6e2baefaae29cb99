"""Starts the other processes of a learner on this machine, watches them, and ends them with this one.

Nothing here imports torch, so that all processes import it at the same time. If one ends before it is told to, this one
ends at once, whatever it waits for: the supervisor then starts all of them again.
"""

import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from diloco.learner.options import LearnerOptions
from diloco.learner.unit.nodes.node_connection import NodeLinkError
from diloco.learner.unit.nodes.node_link import NodeRefusedError, meeting_here
from diloco.learner.unit.nodes.nodes import Nodes, joined_nodes
from diloco.runtime.files import make_writable_directory
from diloco.runtime.last_error import VARIABLE, read_last_error
from diloco.runtime.process.abrupt_end import end_abruptly
from diloco.runtime.process.exits import EXIT_BAD_INPUT, EXIT_REFUSED, EXIT_UNEXPECTED, how_it_ended

_log = logging.getLogger(__name__)

_FOLDER: Final = ".unit-"
_LOOK_SECONDS: Final = 0.2
_END_SECONDS: Final = 5.0
"""Time for the others to end once they are told."""
CAUSE_SECONDS: Final = 1.0
"""An error in one process may come from the end of another, which is told within this time."""


class Unit:
    """The processes of a learner on one machine, of which this is the first."""

    def __init__(
        self, options: LearnerOptions, exit_process: Callable[[int], object] = os._exit, nodes: Nodes | None = None
    ) -> None:
        """Start the others. Call it in the main thread: they end with the thread that starts them.

        ``nodes``: the other machines of the learner, if it has any.

        Raises:
            UnusableFileError: the learner's directory cannot be used.
            OSError: a process cannot be started.
        """
        self.ranks, self.rank = options.ranks, options.node * options.processes_here
        """All processes, and which of them this is."""
        self.nodes, self.pod = nodes, options.pod
        self.joining = False
        """Whether this process waits until all are there; those of another node may tokenize documents for long."""
        self._learner, self._exit_process = options.learner, exit_process
        make_writable_directory(options.directory, even_if_full=True)
        for left in options.directory.glob(f"{_FOLDER}*"):
            shutil.rmtree(left, ignore_errors=True)
        self._folder = Path(tempfile.mkdtemp(prefix=_FOLDER, dir=options.directory))
        self.store, self.listening = str(self._folder / "store"), None
        """Where the processes meet: on one machine a file, so that no port is open. Libraries that a loop of the user's
        own uses look for a port: there it is one of this machine alone."""
        if nodes is None:
            os.environ.update(dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), _loopback()))
            if options.job.spec.loop is not None:
                met = meeting_here()
                self.store, self.listening = met.url, met.listening
        else:
            met = nodes.meeting
            self.store, self.listening, self.pod = met.url, met.listening, met.pods or self.pod
            os.environ.setdefault(VARIABLE, str(self._error_file(self.rank)))
        self._over = threading.Event()
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        try:
            for process in range(1, options.processes_here):
                self._children[self.rank + process] = self._start(process, options)
        except OSError:
            self.close()
            raise
        threading.Thread(target=self._watch, name="unit", daemon=True).start()

    def _start(self, process: int, options: LearnerOptions) -> subprocess.Popen[bytes]:
        rank = self.rank + process
        arguments = [
            "rank",
            *("--job", "/dev/stdin"),
            *("--learner", options.learner),
            *("--rank", str(rank)),
            *("--ranks", str(self.ranks)),
            *("--processes", str(options.processes_here)),
            *("--store", self.store),
            *("--directory", str(options.directory)),
            *("--device", options.device_of(process)),
            *("--threads", str(options.threads_of_process)),
            *(["--log-json"] if options.log_json else []),
            *("--parent", str(os.getpid())),
        ]
        # Runs our own interpreter with our own arguments, as a list.
        child = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "diloco.cli.entry", *arguments],
            stdin=subprocess.PIPE,
            env={**os.environ, VARIABLE: str(self._error_file(rank))},
        )
        assert child.stdin is not None
        with suppress(BrokenPipeError), child.stdin:  # if it has ended, the watch says so
            child.stdin.write(options.job.model_dump_json(by_alias=True, exclude_defaults=True).encode())
        return child

    def await_cause(self) -> None:
        """After an error: if it comes from another process's end, this one ends meanwhile, with that as its reason."""
        self._over.wait(2 * CAUSE_SECONDS)

    def end(self, tell: Callable[[], None]) -> None:
        """Have the others end, by ``tell``, and wait for it."""
        self.release()
        with suppress(RuntimeError):  # one has ended already
            tell()
            until = time.monotonic() + _END_SECONDS
            for child in self._children.values():
                with suppress(subprocess.TimeoutExpired):
                    child.wait(max(0.0, until - time.monotonic()))
        self.close()

    def release(self) -> None:
        """Let the others end from now on."""
        self._over.set()
        if self.nodes is not None:
            self.nodes.link.over()

    def close(self) -> None:
        """End the others at once."""
        if self.nodes is not None and not self._over.is_set():
            last = read_last_error(Path(os.environ[VARIABLE]))
            self.nodes.link.fail(f"rank {self.rank} of {self._learner} ended" + f": {last}" * bool(last))
        self._over.set()
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            for rank, child in self._children.items():
                code = child.poll()
                if code is not None and not self._over.is_set():
                    self._end_with(rank, code)
                    return

    def _end_with(self, rank: int, code: int) -> None:
        last = read_last_error(self._error_file(rank))
        why = f"rank {rank} of {self._learner} ended ({how_it_ended(code)})" + f": {last}" * bool(last)
        exit_code = code if code in (EXIT_BAD_INPUT, EXIT_REFUSED) else EXIT_UNEXPECTED

        def tell() -> None:
            if self.nodes is not None:
                self.nodes.link.fail(why)
            _log.error("%s", why)

        end_abruptly(exit_code, tell, self._exit_process)

    def _error_file(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.error"


@contextmanager
def unit_of(options: LearnerOptions) -> Iterator[Unit | None]:
    """Inside, the learner's other processes run; None if it is one process.

    Raises:
        UnusableFileError: the learner's directory cannot be used.
        HttpServerError: the pages of a node cannot be served.
        SystemExit: a process cannot be started, or a node cannot join the others.
    """
    if options.ranks == 1:
        yield None
        return
    with ExitStack() as stack:
        try:
            nodes = stack.enter_context(joined_nodes(options)) if options.nodes > 1 else None
            unit = Unit(options, nodes=nodes)
        except NodeRefusedError as error:
            _log.error("%s", error)
            raise SystemExit(EXIT_REFUSED) from error
        except (OSError, NodeLinkError) as error:
            _log.error("cannot start the processes of %s: %s", options.learner, error)
            raise SystemExit(EXIT_UNEXPECTED) from error
        stack.callback(unit.close)
        yield unit


def _loopback() -> str:
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
