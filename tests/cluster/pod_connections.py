"""What pods are connected to, by their own kernel's account."""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass

_LINE_FIELDS = 4
_OPEN_OR_JUST_CLOSED = ("01", "04", "05", "06", "08", "09")
"""Established, and what comes after that."""


@dataclass(frozen=True)
class Connection:
    """A TCP connection of a pod, or one that it has closed within the last minute."""

    port: int
    """The pod's own."""
    peer: str
    peer_port: int


def connections_in(table: str) -> Iterator[Connection]:
    """Of the text of /proc/net/tcp and tcp6, one after the other."""
    for line in table.splitlines():
        fields = line.split()
        if len(fields) >= _LINE_FIELDS and fields[3] in _OPEN_OR_JUST_CLOSED:
            (_, port), (peer, peer_port) = _end(fields[1]), _end(fields[2])
            yield Connection(port, peer, peer_port)


def _end(text: str) -> tuple[str, int]:
    digits, _, port = text.partition(":")
    # 32-bit words in the machine's order.
    words = (bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8))
    address = ipaddress.ip_address(b"".join(words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address), int(port, 16)
