"""Parses and formats ``host:port``."""

import socket


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
