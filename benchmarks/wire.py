"""Fragments over loopback between two processes, against one plain TCP connection doing the same beside it.

Both receive into one buffer, check every chunk with XXH3-64 and hash the whole with XXH3-128. Rounds are interleaved,
so that both meet the same machine; a ratio is the median over the rounds of (plain TCP's time / ours). Also measured:
the memory each side takes beyond its payload, and how long a control message takes while fragments are under way.

    python benchmarks/wire.py --json wire.json
"""

import argparse
import itertools
import json
import multiprocessing
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from diloco.wire.certificates import Authority
from diloco.wire.client import ClientOptions, SyncClient
from diloco.wire.messages import Alive, Join, PullRequest, PushHeader
from diloco.wire.tls import ClientTls, ServerTls
from report import write_report
from wire_peers import PlainPeer, forget_peak, memory_bytes

JOB, LEARNER = "benchmark", "region/pool/0"
DEADLINE_SECONDS = 60.0
_VERSIONS = itertools.count(1)
"""No two pushes are the same."""


class Transfers(Protocol):
    """A way to move the payload, each call until it is whole and checked on the other side."""

    def push(self) -> None:
        """From here to the other process."""

    def pull(self) -> None:
        """From the other process to here."""


@dataclass(frozen=True)
class Far:
    """The other process."""

    process: "subprocess.Popen[str]"
    port: int

    def ask(self, line: str) -> int:
        """Send a line, read a number."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@contextmanager
def far_side(*, plain: bool, payload_bytes: int, tls: ServerTls | None) -> Iterator[Far]:
    """Start the other process, and end it."""
    files = [str(path) for path in (tls.ca, tls.certificate, tls.key)] if tls else None
    config = json.dumps({"plain": plain, "payload_bytes": payload_bytes, "tls": files})
    script = Path(__file__).with_name("wire_peers.py")
    with subprocess.Popen(
        [sys.executable, str(script), config], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield Far(process, int(process.stdout.readline()))
        finally:
            process.kill()


class Wire:
    """Ours."""

    def __init__(self, client: SyncClient, payload: bytearray) -> None:
        self._client = client
        self._payload = memoryview(payload)

    def push(self) -> None:
        """Send the payload."""
        header = PushHeader(LEARNER, 1, 0, next(_VERSIONS), 1, 0, 1, 1, "None", len(self._payload), "1")
        self._client.push(header, self._payload, deadline_seconds=DEADLINE_SECONDS)

    def pull(self) -> None:
        """Receive into the payload's buffer."""
        request = PullRequest(LEARNER, 1, 0, 0, "1")
        self._client.pull(request, lambda _: self._payload, deadline_seconds=DEADLINE_SECONDS)


@contextmanager
def wire(far: Far, tls: ClientTls | None) -> Iterator[SyncClient]:
    """A client of our server."""
    join = Join(JOB, LEARNER, "x", "y")
    with SyncClient(ClientOptions(f"127.0.0.1:{far.port}", tls=tls)) as client, client.open_session(join) as session:
        next(iter(session))  # the Welcome, which says that transfers go in parts
        yield client


@contextmanager
def plain(far: Far, payload: bytearray, tls: ClientTls | None) -> Iterator[PlainPeer]:
    """The plain connection."""
    with ExitStack() as stack:
        connection: socket.socket = stack.enter_context(socket.create_connection(("127.0.0.1", far.port)))
        if tls is not None:
            context = ssl.create_default_context(cafile=str(tls.ca))
            context.load_cert_chain(tls.certificate, tls.key)
            connection = stack.enter_context(context.wrap_socket(connection, server_hostname="localhost"))
        yield PlainPeer(connection, memoryview(payload))


def measure_throughput(ways: dict[str, Transfers], rounds: int) -> dict[tuple[str, str], list[float]]:
    """Seconds of every transfer by (way, direction); one round of each first, which does not count."""
    seconds: dict[tuple[str, str], list[float]] = {(way, what): [] for way in ways for what in ("push", "pull")}
    for number in range(rounds + 1):
        for way, transfers in ways.items():
            for what, transfer in (("push", transfers.push), ("pull", transfers.pull)):
                started = time.perf_counter()
                transfer()
                if number > 0:
                    seconds[way, what].append(time.perf_counter() - started)
    return seconds


def measure_memory(what: str, payload_bytes: int, server: ServerTls | None, client: ClientTls | None) -> dict[str, Any]:
    """Peak resident bytes beyond the payload on either side, over processes warmed up with a small payload.

    To be run in a fresh process: what one keeps of an earlier transfer is no baseline. The payload is made after the
    baseline is taken, so that what is reported is everything but it.
    """
    with far_side(plain=False, payload_bytes=1 << 20, tls=server) as far, wire(far, client) as connection:
        small = Wire(connection, bytearray(1 << 20))
        for _ in range(8):
            small.push()
            small.pull()
        far.ask(str(payload_bytes))
        before = memory_bytes("VmRSS")
        forget_peak()
        transfers = Wire(connection, bytearray(payload_bytes))
        for _ in range(8):
            (transfers.push if what == "push" else transfers.pull)()
        return {
            "tls": server is not None,
            "direction": what,
            "learner_mib_beyond_payload": (memory_bytes("VmHWM") - before - payload_bytes) / 2**20,
            "syncer_mib_beyond_payload": (far.ask("peak") - payload_bytes) / 2**20,
        }


def measure_all_memory(payload_bytes: int, server: ServerTls, client: ClientTls) -> list[dict[str, Any]]:
    """``measure_memory`` of both directions, in the clear and encrypted, each in a process of its own."""
    cases = [(what, tls) for tls in (False, True) for what in ("push", "pull")]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as processes:
        measured = [
            processes.submit(measure_memory, what, payload_bytes, server if tls else None, client if tls else None)
            for what, tls in cases
        ]
        return [future.result() for future in measured]


def measure_control(payload_bytes: int) -> dict[str, float]:
    """Milliseconds from a session's message to its answer, without and with fragments pushed all the while."""
    with far_side(plain=False, payload_bytes=payload_bytes, tls=None) as far, wire(far, None) as connection:
        session = connection.open_session(Join(JOB, LEARNER, "x", "y"))
        answers = iter(session)
        next(answers)

        def answer_milliseconds() -> float:
            started = time.perf_counter()
            session.send(Alive(1))
            next(answers)
            return (time.perf_counter() - started) * 1000

        idle = [answer_milliseconds() for _ in range(200)]
        done = threading.Event()

        def keep_pushing() -> None:
            transfers = Wire(connection, bytearray(payload_bytes))
            while not done.is_set():
                transfers.push()

        thread = threading.Thread(target=keep_pushing)
        thread.start()
        busy = [answer_milliseconds() for _ in range(200)]
        done.set()
        thread.join()
        session.close()
    return {
        "idle_median_ms": statistics.median(idle),
        "while_pushing_median_ms": statistics.median(busy),
        "while_pushing_99th_percentile_ms": statistics.quantiles(busy, n=100)[98],
    }


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there too")
    parser.add_argument("--mib", type=int, default=64, help="size of the fragment (default: 64)")
    parser.add_argument("--rounds", type=int, default=24, help="transfers of each kind (default: 24)")
    arguments = parser.parse_args()
    payload_bytes = arguments.mib << 20

    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        authority = Authority(Path(directory))
        server_tls, client_tls = authority.server(), authority.learner(JOB, LEARNER)
        memory = measure_all_memory(payload_bytes, server_tls, client_tls)
        control = measure_control(payload_bytes)

        payload = bytearray(payload_bytes)
        ways: dict[str, Transfers] = {}
        for name, is_plain, tls in (
            ("tcp", True, False),
            ("wire", False, False),
            ("tls", True, True),
            ("mtls", False, True),
        ):
            far = stack.enter_context(
                far_side(plain=is_plain, payload_bytes=payload_bytes, tls=server_tls if tls else None)
            )
            own = client_tls if tls else None
            if is_plain:
                ways[name] = stack.enter_context(plain(far, payload, own))
            else:
                ways[name] = Wire(stack.enter_context(wire(far, own)), payload)
        seconds = measure_throughput(ways, arguments.rounds)

    def ratio(way: str, base: str, what: str) -> float:
        return statistics.median(b / o for b, o in zip(seconds[base, what], seconds[way, what], strict=True))

    against = "one plain TCP connection, same buffer and checksums, same rounds"
    write_report(
        arguments.json,
        benchmark="wire",
        ratios={
            "push": ratio("wire", "tcp", "push"),
            "pull": ratio("wire", "tcp", "pull"),
            "push_mtls": ratio("mtls", "tcp", "push"),
            "pull_mtls": ratio("mtls", "tcp", "pull"),
            "push_mtls_over_tls": ratio("mtls", "tls", "push"),
            "pull_mtls_over_tls": ratio("mtls", "tls", "pull"),
        },
        figures={
            "payload_mib": arguments.mib,
            "throughput": [
                {
                    "way": way,
                    "direction": what,
                    "median_gb_per_second": payload_bytes / statistics.median(times) / 1e9,
                    "best_gb_per_second": payload_bytes / min(times) / 1e9,
                }
                for (way, what), times in seconds.items()
            ],
            "memory": memory,
            "control": control,
        },
        against={
            "push": against,
            "pull": against,
            "push_mtls": against + " (not encrypted)",
            "pull_mtls": against + " (not encrypted)",
            "push_mtls_over_tls": "the same TCP connection under mutual TLS (Python's ssl)",
            "pull_mtls_over_tls": "the same TCP connection under mutual TLS (Python's ssl)",
        },
    )


if __name__ == "__main__":
    main()
