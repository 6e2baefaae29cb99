"""A network of namespaces whose links have a rate and a delay in their packets, for benchmarks of slow and far links.

Each region has a namespace, joined to the namespace of a hub by a TUN device at either end. A process of its own, this
file run as a script, carries the packets: it lets them through at the link's rate, from a queue that drops what does
not fit, and delivers each after the link's delay. So TCP meets the link as it would meet a real one, which a relay of
bytes on loopback cannot do. It needs root, network namespaces and /dev/net/tun, and no traffic control of the kernel.

Packets are larger than Ethernet's, so that Python can carry 1 Gbit/s: about two thousand a second.
"""

import contextlib
import ctypes
import fcntl
import ipaddress
import json
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

_CLONE_NEWNET: Final = 0x40000000  # sched.h
_TUNSETIFF: Final = 0x400454CA  # linux/if_tun.h
_IFF_TUN_NO_PI: Final = 0x1001
_SIOCSIFFLAGS: Final = 0x8914  # linux/sockios.h
_SIOCSIFADDR: Final = 0x8916
_SIOCSIFNETMASK: Final = 0x891C
_SIOCSIFMTU: Final = 0x8922
_IFF_UP_RUNNING: Final = 0x41
_OWN_NAMESPACE: Final = "/proc/thread-self/ns/net"
_LARGEST_MTU: Final = 65_000
_LEAST_MTU: Final = 1_500
_PACKETS_A_SECOND: Final = 1_900
"""Whole packets at a link's rate; the MTU follows from it."""
_LEAST_QUEUED_PACKETS: Final = 24
_FIRST_PACKETS: Final = 2
"""Packets that a connection begins with; Linux has ten, which are fewer bytes even so."""
_READ_AT_ONCE: Final = 32
_PAUSE_SECONDS: Final = 0.5
"""Longest wait of the process that carries packets before it looks whether it is still wanted."""


class NoNetworkError(RuntimeError):
    """This machine gives no namespaces or TUN devices; the text is one line."""


@dataclass(frozen=True, slots=True)
class LinkShape:
    """One link, the same in both directions."""

    bytes_per_second: float
    round_trip_seconds: float
    queued_round_trips: float = 0.5
    """Bytes that the link queues in front of its rate, in round trips at that rate; more are dropped."""

    @property
    def mtu(self) -> int:
        """Largest packet, bytes."""
        return int(min(_LARGEST_MTU, max(_LEAST_MTU, self.bytes_per_second / _PACKETS_A_SECOND)))

    @property
    def queued_bytes(self) -> int:
        """Bytes that the link queues."""
        queued = self.bytes_per_second * self.round_trip_seconds * self.queued_round_trips
        return int(max(queued, _LEAST_QUEUED_PACKETS * self.mtu))


class Network:
    """A hub and its regions, within a ``with``. Made in a process that has no other threads."""

    def __init__(self, links: Mapping[str, LinkShape], congestion_control: str = "cubic") -> None:
        """``links``: of every region. ``congestion_control``: of the namespaces, where the kernel allows it there."""
        self._links = dict(links)
        self._congestion_control = congestion_control
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
            for name in ("", *self._links):
                self._namespaces[name] = self._new_namespace()
            for number, (region, shape) in enumerate(self._links.items()):
                with self.inside(""):
                    hub = _tun(f"tun{number}", self.hub_address(region), shape.mtu)
                    _begin_small(f"tun{number}", self.hub_address(region))
                with self.inside(region):
                    far = _tun("tun0", self.address(region), shape.mtu)
                    _begin_small("tun0", self.address(region))
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
        """The hub's address on a region's link."""
        return f"10.77.{list(self._links).index(region)}.1"

    def address(self, region: str) -> str:
        """A region's address."""
        return f"10.77.{list(self._links).index(region)}.2"

    @property
    def congestion_control(self) -> str:
        """What the hub's TCP uses."""
        with self.inside(""):
            return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()

    @contextlib.contextmanager
    def inside(self, region: str) -> Iterator[None]:
        """Be in a region's namespace, or with ``""`` in the hub's: this thread, and processes that it starts."""
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
            _interface("lo", _SIOCSIFFLAGS, struct.pack("h14x", _IFF_UP_RUNNING))
            settings = Path("/proc/sys/net/ipv4")
            for name, value in (
                ("tcp_congestion_control", self._congestion_control),
                ("tcp_no_metrics_save", "1"),  # otherwise a connection begins with what an earlier one learned
            ):
                with contextlib.suppress(OSError):
                    (settings / name).write_text(value)
        finally:
            _set_namespace(self._home)
        return namespace

    def _carry(self, hub: int, far: int, shape: LinkShape) -> None:
        words = [sys.executable, __file__, str(hub), str(far), json.dumps(asdict(shape))]
        self._carriers.append(subprocess.Popen(words, pass_fds=(hub, far)))
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


def _interface(name: str, request: int, value: bytes) -> None:
    """Set one property of an interface of this thread's namespace (netdevice(7))."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        fcntl.ioctl(asking, request, struct.pack("16s", name.encode()) + value)


def _tun(name: str, address: str, mtu: int) -> int:
    """A TUN device of this thread's namespace, up, with an address of a /24; returns its file descriptor."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN_NO_PI))
    for request, text in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.0")):
        _interface(name, request, struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(text)))
    _interface(name, _SIOCSIFMTU, struct.pack("i12x", mtu))
    _interface(name, _SIOCSIFFLAGS, struct.pack("h14x", _IFF_UP_RUNNING))
    return device


def _begin_small(name: str, address: str) -> None:
    """Have connections begin with few packets, where `ip` is there: ten of these would be far more than ten usual ones.

    Raises:
        OSError: that is not possible.
    """
    if (tool := shutil.which("ip")) is None:
        return
    words = ["route", "change", str(ipaddress.ip_interface(f"{address}/24").network), "dev", name, "src", address]
    done = subprocess.run([tool, *words, "initcwnd", str(_FIRST_PACKETS)], capture_output=True, text=True, check=False)
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
        """When the next packet is to be delivered."""
        return self._travelling[0][0] if self._travelling else float("inf")

    def receive(self) -> None:
        """Take what has been sent."""
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
        """Deliver what has arrived."""
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
