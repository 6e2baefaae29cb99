"""Cuts the link between two clusters at the nodes of one of them, without either cluster's processes knowing.

Packets are dropped, as a broken link drops them: what is connected waits. A refused port answers with a reset, as one
on which nothing listens.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from testbed.kind.commands import run

MARK = "diloco-cut"
"""In every rule, so that what an interrupted test has left is found and removed."""
_TABLES = ("raw", "filter")

Way = Literal["both", "in", "out"]


@dataclass(frozen=True)
class Cut:
    """Which packets between a cluster's nodes (and their pods) and other addresses do not pass."""

    peers: tuple[str, ...]
    """Addresses of the other cluster's nodes."""
    way: Way = "both"
    """``in``: only packets from the peers are dropped. ``out``: only packets to them."""
    own_port: int | None = None
    """Only TCP of this port on this side. None: everything."""
    their_port: int | None = None
    """Only TCP of this port on the peers' side."""
    after_bytes: int | None = None
    """Packets to the peers pass until so many bytes more have, from each node."""
    refused: bool = False
    """Connections to ``own_port`` of the nodes themselves are reset, instead of their packets being dropped."""


Rule = tuple[str, str, tuple[str, ...]]
"""Table, chain, and the match with its target."""


def rules(cut: Cut) -> list[Rule]:
    """For iptables on each node, each to be put before those that precede it here. Pure."""
    if cut.refused:
        arriving = ("-p", "tcp", "--dport", str(cut.own_port), "-j", "REJECT", "--reject-with", "tcp-reset")
        return [("filter", "INPUT", ("-s", peer, *arriving)) for peer in cut.peers]
    found: list[Rule] = []
    for peer in cut.peers:
        if cut.way != "out":
            found.append(("raw", "PREROUTING", ("-s", peer, *_ports(cut.their_port, cut.own_port), "-j", "DROP")))
        if cut.way != "in":
            leaving = ("-d", peer, *_ports(cut.own_port, cut.their_port))
            # From pods, and from the node itself.
            for chain in ("PREROUTING", "OUTPUT"):
                found.append(("raw", chain, (*leaving, "-j", "DROP")))
                if cut.after_bytes is not None:
                    quota = ("-m", "quota", "--quota", str(cut.after_bytes))
                    found.append(("raw", chain, (*leaving, *quota, "-j", "ACCEPT")))
    return found


@contextmanager
def cut_off(nodes: Iterable[str], *cuts: Cut) -> Iterator[None]:
    """Run while the link is cut at every one of these nodes; it is whole again afterwards."""
    names = list(nodes)
    wanted = [rule for cut in cuts for rule in rules(cut)]
    lines = [_line("-I", *rule) for rule in wanted]
    try:
        for node in names:
            run("docker", "exec", node, "sh", "-ec", "\n".join(lines))
        yield
    finally:
        mend(names)


def mend(nodes: Iterable[str]) -> None:
    """Remove every cut at these nodes, also those that an interrupted test has left."""
    for node in nodes:
        for table in _TABLES:
            listed = run("docker", "exec", node, "iptables", "-w", "-t", table, "-S").splitlines()
            lines = [f"iptables -w -t {table} {removal}" for removal in removals(listed)]
            if lines:
                run("docker", "exec", node, "sh", "-ec", "\n".join(lines))


def removals(listed: Iterable[str]) -> list[str]:
    """What removes the cuts among the rules that iptables lists, each ``-A CHAIN ...``. Pure."""
    return [f"-D {line.removeprefix('-A ')}" for line in listed if line.startswith("-A ") and MARK in line.split()]


def _ports(source: int | None, destination: int | None) -> tuple[str, ...]:
    given = (("--sport", source), ("--dport", destination))
    flags = tuple(word for flag, port in given if port is not None for word in (flag, str(port)))
    return ("-p", "tcp", *flags) if flags else ()


def _line(action: str, table: str, chain: str, match: tuple[str, ...]) -> str:
    return " ".join(("iptables", "-w", "-t", table, action, chain, "-m", "comment", "--comment", MARK, *match))
