"""Fragments over loopback between two processes, against one plain TCP connection doing the same beside it.

Both receive into one buffer, and hash every byte once on either side. Rounds are interleaved, so that both meet the
same machine; a ratio is the median over the rounds of (plain TCP's time / ours). Also measured:
the memory each side takes beyond its payload, and how long a control message takes while fragments are under way.

    python benchmarks/wire.py --json wire.json
"""

import statistics
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from diloco.wire.tls.tls import ClientTls, ServerTls
from support.job import alone
from support.links.peers import PEAK, Far, forget_peak, memory_bytes
from support.links.ways import PlainConnections, Way, Wire, certificates, meanwhile, started
from support.report import Ratio, command, paired, write_report

CONTROL_MESSAGES = 200
WARM_UP_TRANSFERS = 8


def measure_throughput(ways: dict[str, Way], payload: memoryview, rounds: int) -> dict[tuple[str, str], list[float]]:
    """Seconds of every transfer by (way, direction); one round of each first, which does not count."""
    seconds: dict[tuple[str, str], list[float]] = {(way, what): [] for way in ways for what in ("push", "pull")}
    for number in range(rounds + 1):
        for name, way in ways.items():
            for what, transfer in (("push", way.push), ("pull", way.pull)):
                began = time.perf_counter()
                transfer(payload)
                if number > 0:
                    seconds[name, what].append(time.perf_counter() - began)
    return seconds


def measure_memory(what: str, payload_bytes: int, server: ServerTls | None, client: ClientTls | None) -> dict[str, Any]:
    """Peak resident bytes beyond the payload on either side, over processes warmed up with a small payload.

    To be run in a fresh process: what one keeps of an earlier transfer is no baseline. The payload is made after the
    baseline is taken, so that what is reported is everything but it.
    """
    with (
        started(Far(plain=False, payload_bytes=1 << 20, tls=server)) as (port, pipe),
        closing(Wire(f"127.0.0.1:{port}", client)) as wire,
    ):
        small = memoryview(bytearray(1 << 20))
        for _ in range(WARM_UP_TRANSFERS):
            wire.push(small)
            wire.pull(small)
        pipe.send(payload_bytes)
        pipe.recv()
        before = memory_bytes("VmRSS")
        forget_peak()
        payload = memoryview(bytearray(payload_bytes))
        for _ in range(WARM_UP_TRANSFERS):
            (wire.push if what == "push" else wire.pull)(payload)
        pipe.send(PEAK)
        return {
            "tls": server is not None,
            "direction": what,
            "learner_mib_beyond_payload": (memory_bytes("VmHWM") - before - payload_bytes) / 2**20,
            "syncer_mib_beyond_payload": (pipe.recv() - payload_bytes) / 2**20,
        }


def measure_control(payload: memoryview) -> dict[str, float]:
    """Milliseconds from a session's message to its answer, without and with fragments pushed all the while."""
    with (
        started(Far(plain=False, payload_bytes=len(payload), tls=None)) as (port, _),
        closing(Wire(f"127.0.0.1:{port}", None)) as wire,
    ):
        idle = [wire.control.round_trip_seconds() for _ in range(CONTROL_MESSAGES)]
        busy: list[float] = []
        with meanwhile(wire.control, busy):
            while len(busy) < CONTROL_MESSAGES:
                wire.push(payload)
    return {
        "idle_median_ms": 1e3 * statistics.median(idle),
        "while_pushing_median_ms": 1e3 * statistics.median(busy),
        "while_pushing_99th_percentile_ms": 1e3 * statistics.quantiles(busy, n=100)[98],
    }


def main() -> None:
    """Measure and report."""
    parser = command(__doc__)
    parser.add_argument("--mib", type=int, default=64, help="size of the fragment (default: 64)")
    parser.add_argument("--rounds", type=int, default=24, help="transfers of each kind (default: 24)")
    arguments = parser.parse_args()
    payload = memoryview(bytearray(arguments.mib << 20))

    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        server, client = certificates(Path(directory))
        cases = [(what, tls) for tls in ((None, None), (server, client)) for what in ("push", "pull")]
        memory = [alone(measure_memory, what, len(payload), *tls) for what, tls in cases]
        control = measure_control(payload)
        ways: dict[str, Way] = {}
        for name, plain, tls in (
            ("tcp", True, False),
            ("wire", False, False),
            ("tls", True, True),
            ("mtls", False, True),
        ):
            port, _ = stack.enter_context(started(Far(plain, len(payload), server if tls else None)))
            own = client if tls else None
            way = PlainConnections(("127.0.0.1", port), 1, own) if plain else Wire(f"127.0.0.1:{port}", own)
            ways[name] = stack.enter_context(closing(way))
        seconds = measure_throughput(ways, payload, arguments.rounds)

    tcp = "one plain TCP connection, same buffer and checksums, same rounds"
    ratios = {
        f"{what}{name}": Ratio(statistics.median(paired(seconds[base, what], seconds[way, what])), against)
        for name, way, base, against in (
            ("", "wire", "tcp", tcp),
            ("_mtls", "mtls", "tcp", f"{tcp} (not encrypted)"),
            ("_mtls_over_tls", "mtls", "tls", "the same TCP connection under mutual TLS (Python's ssl)"),
        )
        for what in ("push", "pull")
    }
    throughput = [
        {
            "way": way,
            "direction": what,
            "median_gb_per_second": len(payload) / statistics.median(times) / 1e9,
            "best_gb_per_second": len(payload) / min(times) / 1e9,
        }
        for (way, what), times in seconds.items()
    ]
    figures = {"payload_mib": arguments.mib, "throughput": throughput, "memory": memory, "control": control}
    write_report(arguments.json, "wire", ratios, figures)


if __name__ == "__main__":
    main()
