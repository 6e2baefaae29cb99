"""Whether a NetworkPolicy lets pods connect.

It knows what the operator writes: ingress by label selectors, addresses and numbers of ports.
"""

import ipaddress
from collections.abc import Mapping
from typing import Any


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
    if not any(one["protocol"] == "TCP" and one.get("port", port) == port for one in rule["ports"]):
        return False
    if not rule.get("from"):
        return True
    for peer in rule["from"]:
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
