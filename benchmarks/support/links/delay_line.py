"""A network of namespaces whose links have a rate and a delay in their packets, for benchmarks of slow and far links.

Each region has a namespace, joined to the namespace of a hub by a TUN device at either end. A process of its own, this
module run, carries the packets: it lets them through at the link's rate, from a queue that drops what does not fit, and
delivers each after the link's delay. So TCP meets the link as it would meet a real one, which a relay of bytes on
loopback cannot do. It needs root, network namespaces and /dev/net/tun, and no traffic control of the kernel.

Packets are larger than Ethernet's, so that Python can carry 1 Gbit/s: about two thousand a second.
"""

import contextlib
import ctypes
import fcntl
import ipaddress
import json
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

from support.processes import started

_CLONE_NEWNET: Final = 0x40000000  # sched.h
_TUNSETIFF: Final = 0x400454CA  # linux/if_tun.h
_IFF_TUN_NO_PI: Final = 0x1001
_OWN_NAMESPACE: Final = "/proc/thread-self/ns/net"
_LARGEST_MTU: Final = 65_000
_LEAST_MTU: Final = 1_500
_PACKETS_A_SECOND: Final = 1_900
"""Whole packets at a link's rate; the MTU follows from it."""
_QUEUED_ROUND_TRIPS: Final = 0.5
_LEAST_QUEUED_PACKETS: Final = 24
_FIRST_PACKETS: Final = 2
"""Packets that a connection begins with; Linux has ten, which are fewer bytes even so."""
_READ_AT_ONCE: Final = 32
_PAUSE_SECONDS: Final = 0.5
"""Longest wait of the process that carries packets before it looks whether it is still wanted."""


HUB: Final = ""
"""The namespace that every region has a link to."""


class NoNetworkError(RuntimeError):
    """This machine gives no namespaces or TUN devices; the text is one line."""


@dataclass(frozen=True, slots=True)
class LinkShape:
    """One link, the same in both directions."""

    bytes_per_second: float
    round_trip_seconds: float

    @property
    def mtu(self) -> int:
        """Largest packet, bytes."""
        return int(min(_LARGEST_MTU, max(_LEAST_MTU, self.bytes_per_second / _PACKETS_A_SECOND)))

    @property
    def queued_bytes(self) -> int:
        """Bytes that the link queues in front of its rate; more are dropped."""
        queued = self.bytes_per_second * self.round_trip_seconds * _QUEUED_ROUND_TRIPS
        return int(max(queued, _LEAST_QUEUED_PACKETS * self.mtu))


class Moved(NamedTuple):
    """Bytes of a region's interface, with the headers of IP and TCP."""

    up_bytes: int
    down_bytes: int


class Network:
    """A hub and its regions, within a ``with``. Made in a process that has no other threads.

    From region to region, by way of the hub, it is twice as far as to the hub.
    """

    interface: Final = "tun0"
    """Of each region."""

    def __init__(self, links: Mapping[str, LinkShape]) -> None:
        """``links``: of every region."""
        self._links = dict(links)
        self._namespaces: dict[str, int] = {}
        self._carriers: list[subprocess.Popen[bytes]] = []
        self._home = -1

    def __enter__(self) -> Self:
        """Bring it up.

        Raises:
            NoNetworkError: that is not possible on this machine.
        """
        try:
            self._home = os.open(_OWN_NAMESPACE, os.O_RDONLY)
            for name in (HUB, *self._links):
                self._namespaces[name] = self._new_namespace()
            with self.inside(HUB):
                Path("/proc/sys/net/ipv4/ip_forward").write_text("1\n")
            for number, (region, shape) in enumerate(self._links.items()):
                with self.inside(HUB):
                    hub = _tun(f"tun{number}", self.hub_address(region), shape.mtu)
                with self.inside(region):
                    far = _tun(self.interface, self.address(region), shape.mtu)
                    _ip("route", "add", "default", "via", self.hub_address(region))
                self._carry(hub, far, shape)
        except OSError as error:
            self.__exit__()
            text = f"network namespaces and TUN devices cannot be used here ({error}); run it as root on Linux"
            raise NoNetworkError(text) from error
        return self

    def __exit__(self, *_: object) -> None:
        for carrier in self._carriers:
            carrier.kill()
            carrier.wait()
        for namespace in (*self._namespaces.values(), self._home):
            if namespace >= 0:
                os.close(namespace)

    def hub_address(self, region: str) -> str:
        return f"10.77.{list(self._links).index(region)}.1"

    def address(self, region: str) -> str:
        return f"10.77.{list(self._links).index(region)}.2"

    def moved(self, region: str) -> Moved:
        """What has passed a region's interface."""
        with self.inside(region):
            lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
        (line,) = (line for line in lines if line.strip().startswith(f"{self.interface}:"))
        fields = line.partition(":")[2].split()
        return Moved(up_bytes=int(fields[8]), down_bytes=int(fields[0]))

    @property
    def congestion_control(self) -> str:
        """What the hub's TCP uses."""
        with self.inside(HUB):
            return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()

    @contextlib.contextmanager
    def inside(self, region: str) -> Iterator[None]:
        """Be in a namespace: this thread, and processes that it starts."""
        before = os.open(_OWN_NAMESPACE, os.O_RDONLY)
        try:
            _set_namespace(self._namespaces[region])
            yield
        finally:
            _set_namespace(before)
            os.close(before)

    def _new_namespace(self) -> int:
        _checked(_libc().unshare(_CLONE_NEWNET))
        try:
            namespace = os.open(_OWN_NAMESPACE, os.O_RDONLY)
            _ip("link", "set", "lo", "up")
            settings = Path("/proc/sys/net/ipv4")
            for name, value in (
                ("tcp_congestion_control", "cubic"),
                ("tcp_no_metrics_save", "1"),  # otherwise a connection begins with what an earlier one learned
            ):
                with contextlib.suppress(OSError):
                    (settings / name).write_text(value)
        finally:
            _set_namespace(self._home)
        return namespace

    def _carry(self, hub: int, far: int, shape: LinkShape) -> None:
        words = [sys.executable, "-m", __name__, str(hub), str(far), json.dumps(asdict(shape))]
        self._carriers.append(started(words, pass_fds=(hub, far), cwd=Path(__file__).parents[2]))
        os.close(hub)
        os.close(far)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _set_namespace(namespace: int) -> None:
    _checked(_libc().setns(namespace, _CLONE_NEWNET))


def _tun(name: str, address: str, mtu: int) -> int:
    """A TUN device of this thread's namespace, up, with an address of a /24; returns its file descriptor."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN_NO_PI))
    _ip("address", "add", f"{address}/24", "dev", name)
    _ip("link", "set", name, "mtu", str(mtu), "up")
    # Connections begin with few packets: ten of these would be far more than ten usual ones.
    net = str(ipaddress.ip_interface(f"{address}/24").network)
    _ip("route", "change", net, "dev", name, "src", address, "initcwnd", str(_FIRST_PACKETS))
    return device


def _ip(*words: str) -> None:
    """Call `ip`.

    Raises:
        OSError: it fails, or is not there.
    """
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)  # noqa: S607 - the system's own
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class _OneWay:
    """One direction of a link."""

    def __init__(self, source: int, sink: int, shape: LinkShape) -> None:
        self._source = source
        self._sink = sink
        self._rate = shape.bytes_per_second
        self._delay_seconds = shape.round_trip_seconds / 2
        self._queue_seconds = shape.queued_bytes / shape.bytes_per_second
        self._free_at = 0.0
        """When the link will have let through what is queued."""
        self._travelling: deque[tuple[float, bytes]] = deque()

    @property
    def next_at(self) -> float:
        return self._travelling[0][0] if self._travelling else float("inf")

    def receive(self) -> None:
        for _ in range(_READ_AT_ONCE):
            try:
                packet = os.read(self._source, 1 << 16)
            except BlockingIOError:
                return
            now = time.monotonic()
            begins = max(now, self._free_at)
            ends = begins + len(packet) / self._rate
            if ends - now > self._queue_seconds:
                continue  # the queue is full for a packet of this size
            self._free_at = ends
            self._travelling.append((ends + self._delay_seconds, packet))

    def deliver(self) -> None:
        while self._travelling and self._travelling[0][0] <= time.monotonic():
            os.write(self._sink, self._travelling.popleft()[1])


def carry(hub: int, far: int, shape: LinkShape) -> None:
    """Carry packets both ways until the process that started this one has ended."""
    ways = {hub: _OneWay(hub, far, shape), far: _OneWay(far, hub, shape)}
    parent = os.getppid()
    while os.getppid() == parent:
        wait_seconds = min(way.next_at for way in ways.values()) - time.monotonic()
        ready, _, _ = select.select(list(ways), (), (), min(_PAUSE_SECONDS, max(0.0, wait_seconds)))
        for source in ready:
            ways[source].receive()
        for way in ways.values():
            way.deliver()


if __name__ == "__main__":
    carry(int(sys.argv[1]), int(sys.argv[2]), LinkShape(**json.loads(sys.argv[3])))
