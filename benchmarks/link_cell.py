"""One cell of the link benchmark, a process of its own: one rate and round trip, all ways, in one network.

``python link_cell.py CONFIG`` (JSON) prints one line of JSON. It runs in the namespace of a region; the far side, in
the hub's, is another process. Each round makes new connections for each way, opens them with a small transfer, and
times a transfer on them while they are cold, and the same again while they are warm, up and then down.
"""

import contextlib
import functools
import ipaddress
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from cryptography import x509

from delay_line import LinkShape, Network, NoNetworkError
from diloco.wire.certificates import Authority
from diloco.wire.client import ClientOptions, SyncClient
from diloco.wire.errors import UnavailableError
from diloco.wire.messages import Alive, Join, PullRequest, PushHeader
from diloco.wire.tls import ClientTls, ServerTls
from link_peers import PlainConnections

JOB, LEARNER = "benchmark", "region/pool/0"
_REGION: Final = "region"
_DEADLINE_SECONDS: Final = 300.0
_OPENING_BYTES: Final = 4 << 20
"""Enough for every way to open all of its connections."""
_IDLE_CONTROL_MESSAGES: Final = 20
_CONTROL_PAUSE_SECONDS: Final = 0.02
_ATTEMPTS: Final = 40
_ATTEMPT_PAUSE_SECONDS: Final = 0.5
T = TypeVar("T")
_VERSIONS: Final = itertools.count(1)
"""No two pushes are the same."""
UNAVAILABLE: Final = 3
"""Exit code where there are no namespaces or TUN devices."""


class Way(Protocol):
    """A way to move a payload."""

    def push(self, payload: memoryview) -> None:
        """Send it; returns when it is there and checked."""

    def pull(self, payload: memoryview) -> None:
        """Receive as many bytes."""

    def close(self) -> None:
        """Close the connections."""


class _HubAuthority(Authority):
    """Signs for a syncer at any address."""

    def server_at(self, host: str) -> ServerTls:
        certificate, key = self._issue("hub", [x509.IPAddress(ipaddress.ip_address(host))])
        return ServerTls(self.certificate_path, certificate, key)


class _Wire:
    """Ours."""

    def __init__(self, address: str, tls: ClientTls) -> None:
        self._client = SyncClient(ClientOptions(address, tls=tls))
        self._control = _connected(lambda: _Control(self._client))

    def push(self, payload: memoryview) -> None:
        header = PushHeader(LEARNER, 1, 0, next(_VERSIONS), 1, 0, 1, 1, "None", len(payload), "1")
        self._client.push(header, payload, deadline_seconds=_DEADLINE_SECONDS)

    def pull(self, payload: memoryview) -> None:
        request = PullRequest(LEARNER, 1, len(payload), 0, "1")
        self._client.pull(request, lambda _: payload, deadline_seconds=_DEADLINE_SECONDS)

    def close(self) -> None:
        self._control.close()
        self._client.close()


class _Control:
    """A session, which syncer and learner say hello on before anything else."""

    def __init__(self, client: SyncClient) -> None:
        self._session = client.open_session(Join(JOB, LEARNER, "x", "y"))
        self._answers = iter(self._session)
        next(self._answers)

    def round_trip_seconds(self) -> float:
        """From a message to its answer."""
        began = time.perf_counter()
        self._session.send(Alive(1))
        next(self._answers)
        return time.perf_counter() - began

    def close(self) -> None:
        self._session.close(0)


def _connected(call: Callable[[], T]) -> T:
    """Try until a connection stands; gRPC gives up its first attempts early on a long link."""
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(UnavailableError):
            return call()
        time.sleep(_ATTEMPT_PAUSE_SECONDS)
    return call()


@dataclass
class _Cell:
    """What is measured."""

    payload: memoryview
    seconds: dict[tuple[str, str, str], list[float]]
    """Of every transfer, by way, direction and cold or warm."""
    control_seconds: dict[str, list[float]]
    """Of control messages, by what went on meanwhile."""

    def run_way(self, name: str, way: Way, control: _Control) -> None:
        """Time one way's transfers on new connections."""
        for direction, move in (("push", way.push), ("pull", way.pull)):
            _connected(functools.partial(move, self.payload[:_OPENING_BYTES]))
            for state in ("cold", "warm"):
                with _meanwhile(control, self.control_seconds.setdefault(name, [])):
                    began = time.perf_counter()
                    move(self.payload)
                    self.seconds.setdefault((name, direction, state), []).append(time.perf_counter() - began)


@contextlib.contextmanager
def _meanwhile(control: _Control, seconds: list[float]) -> Iterator[None]:
    """Time control messages while something else goes on."""
    over = threading.Event()

    def measure() -> None:
        while not over.wait(_CONTROL_PAUSE_SECONDS):
            seconds.append(control.round_trip_seconds())

    thread = threading.Thread(target=measure)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def _far_side(network: Network, config: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Start the far side in the hub, and end it; gives its address."""
    host = network.hub_address(_REGION)
    script = Path(__file__).with_name("link_peers.py")
    with (
        network.inside(""),
        subprocess.Popen(
            [sys.executable, str(script), json.dumps({**config, "host": host})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            with network.inside(_REGION):
                yield host, port
        finally:
            process.kill()


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def measure(config: dict[str, Any]) -> dict[str, Any]:
    """Measure a cell.

    Raises:
        NoNetworkError: there are no namespaces or TUN devices.
    """
    shape = LinkShape(config["mbit"] * 1e6 / 8, config["round_trip_ms"] / 1e3)
    cell = _Cell(memoryview(bytearray(config["mib"] << 20)), {}, {})
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network({_REGION: shape}))
        authority = _HubAuthority(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        own = authority.learner(JOB, LEARNER)
        server = authority.server_at(network.hub_address(_REGION))
        files = [str(path) for path in (server.ca, server.certificate, server.key)]
        far = {"payload_bytes": len(cell.payload), "tls": files}
        plain_at = stack.enter_context(_far_side(network, {"tls": None}))
        host, port = stack.enter_context(_far_side(network, far))
        address = f"{host}:{port}"
        ways: dict[str, Callable[[], Way]] = {
            "one": lambda: PlainConnections(plain_at, 1),
            "eight": lambda: PlainConnections(plain_at, 8),
            "wire": lambda: _Wire(address, own),
        }
        with SyncClient(ClientOptions(address, tls=own)) as client:
            control = _connected(lambda: _Control(client))
            idle = [control.round_trip_seconds() for _ in range(_IDLE_CONTROL_MESSAGES)]
            for _ in range(config["rounds"]):
                for name, make in ways.items():
                    way = make()
                    cell.run_way(name, way, control)
                    way.close()
            control.close()
        return {
            **config,
            "packet_bytes": shape.mtu,
            "queued_bytes": shape.queued_bytes,
            "congestion_control": network.congestion_control,
            "idle_control_ms": statistics.median(idle) * 1e3,
            "control_ms_99": {name: _percentile(values, 0.99) * 1e3 for name, values in cell.control_seconds.items()},
            "seconds": [
                {"way": way, "direction": direction, "state": state, "seconds": values}
                for (way, direction, state), values in cell.seconds.items()
            ],
        }


if __name__ == "__main__":
    try:
        print(json.dumps(measure(json.loads(sys.argv[1]))))
    except NoNetworkError as error:
        print(error, file=sys.stderr)
        sys.exit(UNAVAILABLE)
