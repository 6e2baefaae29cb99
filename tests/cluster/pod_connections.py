"""What pods are connected to, by their own kernel's account, and whether a NetworkPolicy lets them.

Of NetworkPolicies it knows what the operator writes: ingress by label selectors, addresses and numbers of ports.
"""

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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


def selects(policy: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    """Whether the policy is about a pod of its namespace."""
    return _matches(policy["spec"]["podSelector"], pod["metadata"]["labels"])


def allows(policy: Mapping[str, Any], pod: Mapping[str, Any], namespace: Mapping[str, Any], port: int) -> bool:
    """Whether a pod may connect to the pods that the policy selects."""
    return any(_rule_allows(policy, rule, pod, namespace, port) for rule in policy["spec"]["ingress"])


def _rule_allows(
    policy: Mapping[str, Any],
    rule: Mapping[str, Any],
    pod: Mapping[str, Any],
    namespace: Mapping[str, Any],
    port: int,
) -> bool:
    if ("TCP", port) not in {(one["protocol"], one["port"]) for one in rule["ports"]}:
        return False
    peers: list[Mapping[str, Any]] = rule.get("from") or [{}]
    for peer in peers:
        if "ipBlock" in peer:
            address = pod.get("status", {}).get("podIP")
            if address and ipaddress.ip_address(address) in ipaddress.ip_network(peer["ipBlock"]["cidr"]):
                return True
            continue
        same = namespace["metadata"]["name"] == policy["metadata"]["namespace"]
        if "namespaceSelector" in peer:
            same = _matches(peer["namespaceSelector"], namespace["metadata"]["labels"])
        if same and _matches(peer.get("podSelector", {}), pod["metadata"].get("labels", {})):
            return True
    return False


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert not selector.get("matchExpressions"), "not known here"
    wanted: Mapping[str, str] = selector.get("matchLabels", {})
    return wanted.items() <= labels.items()
