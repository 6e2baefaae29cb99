"""One large fragment through a long or thin link, with mTLS, beside one and eight plain TCP connections.

The link's rate and delay are in its packets (`delay_line`), so TCP sees them. Each cell, a rate and a round trip, has a
process and a network of its own, in which all ways take turns: new connections, opened with a small transfer; a
transfer while they are cold, and again while they are warm; up and then down. A ratio is eight plain connections' time
over ours in the same round, the median over the rounds. Control messages are timed meanwhile. It needs root and
/dev/net/tun, and says so where they cannot be had.

    python benchmarks/link.py --json link.json
"""

import contextlib
import functools
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from diloco.wire.client.client import ClientOptions
from support.job import alone
from support.links.delay_line import HUB, LinkShape, Network, NoNetworkError
from support.links.peers import Far
from support.links.ways import Control, Make, PlainConnections, Wire, certificates, connected, meanwhile, started
from support.report import Ratio, Ratios, command, paired, write_report
from testbed.blocking_client import BlockingClient

CELLS: Final = ((1000.0, 20.0, 128), (1000.0, 150.0, 128), (100.0, 20.0, 24), (100.0, 150.0, 24))
"""Mbit/s, milliseconds there and back, MiB."""
REGION: Final = "region"
OPENING_BYTES: Final = 4 << 20
"""Enough for every way to open all of its connections."""
IDLE_CONTROL_MESSAGES: Final = 20


def measure(mbit: float, round_trip_ms: float, mib: int, rounds: int) -> dict[str, Any]:
    """A cell's figures.

    Raises:
        NoNetworkError: there are no namespaces or TUN devices.
    """
    shape = LinkShape(mbit * 1e6 / 8, round_trip_ms / 1e3)
    payload = memoryview(bytearray(mib << 20))
    seconds: dict[tuple[str, str, str], list[float]] = {}
    control_seconds: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network({REGION: shape}))
        server, own = certificates(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        host = network.hub_address(REGION)
        with network.inside(HUB):
            plain_port, _ = stack.enter_context(started(Far(plain=True, payload_bytes=0, tls=None, host=host)))
            wire_port, _ = stack.enter_context(
                started(Far(plain=False, payload_bytes=len(payload), tls=server, host=host))
            )
        stack.enter_context(network.inside(REGION))
        address = f"{host}:{wire_port}"
        ways: dict[str, Make] = {
            "one": lambda: PlainConnections((host, plain_port), 1),
            "eight": lambda: PlainConnections((host, plain_port), 8),
            "wire": lambda: Wire(address, own),
        }
        client = stack.enter_context(BlockingClient(ClientOptions(address, tls=own)))
        control = stack.enter_context(contextlib.closing(connected(lambda: Control(client))))
        idle = [control.round_trip_seconds() for _ in range(IDLE_CONTROL_MESSAGES)]
        for _ in range(rounds):
            for name, make in ways.items():
                with contextlib.closing(make()) as way:
                    for direction, move in (("push", way.push), ("pull", way.pull)):
                        connected(functools.partial(move, payload[:OPENING_BYTES]))
                        for state in ("cold", "warm"):
                            with meanwhile(control, control_seconds.setdefault(name, [])):
                                began = time.perf_counter()
                                move(payload)
                                taken = time.perf_counter() - began
                            seconds.setdefault((name, direction, state), []).append(taken)
        return {
            "cell": f"{mbit:g}mbit_{round_trip_ms:g}ms",
            "round_trip_ms": round_trip_ms,
            "mib": mib,
            "packet_bytes": shape.mtu,
            "queued_bytes": shape.queued_bytes,
            "congestion_control": network.congestion_control,
            "idle_control_ms": statistics.median(idle) * 1e3,
            "control_ms_99": {name: 1e3 * _99th_percentile(values) for name, values in control_seconds.items()},
            "seconds": seconds,
        }


def _99th_percentile(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


def ratios_of(cell: dict[str, Any]) -> Ratios:
    """Our rates over those of the other ways, by direction and state, and how long control messages took."""
    seconds: dict[tuple[str, str, str], list[float]] = cell["seconds"]
    found: Ratios = {}
    for base, text in (("eight", "eight plain TCP connections"), ("one", "one plain TCP connection")):
        for (way, direction, state), values in seconds.items():
            if way == "wire":
                ratio = statistics.median(paired(seconds[base, direction, state], values))
                name = f"{cell['cell']}_{direction}_{state}_over_{base}"
                found[name] = Ratio(ratio, f"{text} through the same link, the same round")
    control = cell["control_ms_99"]["wire"] / cell["round_trip_ms"]
    return found | {
        f"{cell['cell']}_control_99_round_trips": Ratio(control, "a round trip of the link", less_is_better=True)
    }


def main() -> None:
    """Measure and report."""
    parser = command(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="transfers of each kind (default: 3)")
    parser.add_argument("--cell", action="append", metavar="MBIT,MS", help="only this cell; may be given again")
    arguments = parser.parse_args()
    chosen = [cell for cell in CELLS if not arguments.cell or f"{cell[0]:g},{cell[1]:g}" in arguments.cell]
    if not chosen:
        parser.error(f"--cell: use one of {', '.join(f'{mbit:g},{ms:g}' for mbit, ms, _ in CELLS)}")
    try:
        cells = [alone(measure, *cell, arguments.rounds) for cell in chosen]
    except NoNetworkError as error:
        sys.exit(str(error))
    rates = [
        {
            "cell": cell["cell"],
            "way": way,
            "direction": direction,
            "state": state,
            "median_mbit_per_second": cell["mib"] * 2**20 * 8 / statistics.median(values) / 1e6,
        }
        for cell in cells
        for (way, direction, state), values in cell["seconds"].items()
    ]
    told = [{name: value for name, value in cell.items() if name != "seconds"} for cell in cells]
    ratios = {name: ratio for cell in cells for name, ratio in ratios_of(cell).items()}
    write_report(arguments.json, "link", ratios, {"rates": rates, "cells": told})


if __name__ == "__main__":
    main()
