"""The networks of the benchmark `wan`: regions with a link each, a hub between them, and counters of their interfaces.

The benchmark knows only what is here, so another network can take its place.
"""

import contextlib
import math
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from delay_line import LinkShape, Network, NoNetworkError

HUB = ""
"""Where the syncer is."""


class Moved(NamedTuple):
    """Bytes of a region's interface, with the headers of IP and TCP."""

    up_bytes: int
    down_bytes: int


class Joined(Protocol):
    """Regions that reach the hub and each other."""

    def inside(self, region: str) -> AbstractContextManager[None]:
        """Be in a region (or the ``HUB``): processes that are started within are there."""

    def address(self, region: str) -> str:
        """Address of a region, for the other regions."""

    def hub_address(self, region: str) -> str:
        """Address of the hub, for a region."""

    def interface(self) -> str:
        """Name of the interface that a region is reached by."""

    def moved(self, region: str) -> Moved:
        """Bytes of a region's interface since it was made."""


@contextlib.contextmanager
def network(regions: Sequence[str], bytes_per_second: float, round_trip_seconds: float) -> Iterator[Joined]:
    """Regions behind a link each; without a limit if the rate is infinite.

    ``round_trip_seconds``: between a region and the hub. From region to region it is twice as long.

    Raises:
        NoNetworkError: this machine gives no namespaces or TUN devices.
    """
    if math.isinf(bytes_per_second):
        yield _Loopback()
        return
    shape = LinkShape(bytes_per_second, round_trip_seconds)
    with Network(dict.fromkeys(regions, shape)) as joined:
        with joined.inside(HUB):
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1\n")
        for region in regions:
            with joined.inside(region):
                _route(joined.hub_address(region))
        yield _Namespaces(joined)


class _Namespaces:
    """Namespaces joined by TUN devices."""

    def __init__(self, joined: Network) -> None:
        self._joined = joined

    def inside(self, region: str) -> AbstractContextManager[None]:
        return self._joined.inside(region)

    def address(self, region: str) -> str:
        return self._joined.address(region)

    def hub_address(self, region: str) -> str:
        return self._joined.hub_address(region)

    def interface(self) -> str:
        return "tun0"

    def moved(self, region: str) -> Moved:
        with self._joined.inside(region):
            lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
        line = next(line for line in lines if line.strip().startswith("tun0:"))
        fields = line.partition(":")[2].split()
        return Moved(up_bytes=int(fields[8]), down_bytes=int(fields[0]))


class _Loopback:
    """No link at all: everything on loopback, which counts nothing."""

    def inside(self, region: str) -> AbstractContextManager[None]:
        del region
        return contextlib.nullcontext()

    def address(self, region: str) -> str:
        del region
        return "127.0.0.1"

    def hub_address(self, region: str) -> str:
        return self.address(region)

    def interface(self) -> str:
        return "lo"

    def moved(self, region: str) -> Moved:
        del region
        return Moved(0, 0)


def _route(gateway: str) -> None:
    try:
        subprocess.run(
            ["ip", "route", "add", "default", "via", gateway],  # noqa: S607 - the system's own, wherever it is
            check=True,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoNetworkError(f"routes between network namespaces cannot be set here ({error})") from error
