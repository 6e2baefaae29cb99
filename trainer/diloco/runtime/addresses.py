"""Parses and formats ``host:port``."""

import socket
from ipaddress import ip_address
from urllib.parse import urlsplit


class AddressError(ValueError):
    """An address cannot be parsed; the text names it and what is allowed."""


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port``; an IPv6 host is in brackets; port 0 lets the system choose.

    Raises:
        AddressError: it is not such an address.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise AddressError(f"address {text!r}: use HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:0")
    if host.startswith("[") != host.endswith("]") or (":" in host and not host.startswith("[")):
        raise AddressError(f"address {text!r}: use brackets around an IPv6 host, such as [::1]:0")
    return host.removeprefix("[").removesuffix("]"), int(port)


def listening_host(host: str) -> str:
    """What to bind for ``host``: ``::`` is every address, IPv4 too; 0.0.0.0 stands in where the system has no IPv6."""
    return "0.0.0.0" if host == "::" and not socket.has_dualstack_ipv6() else host  # noqa: S104  # as asked for


def format_address(host: str, port: int) -> str:
    """``host:port``, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether ``host`` is an IP address that only this machine can reach."""
    return _is_ip(host) and ip_address(host).is_loopback


def named_in(header: str) -> str:
    """The name in a ``Host`` header, in lower case; empty: it names an IP address, or nothing."""
    try:
        name = urlsplit(f"//{header}").hostname or ""
    except ValueError:  # brackets around something else than an address
        return header
    return "" if _is_ip(name) else name


def _is_ip(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
