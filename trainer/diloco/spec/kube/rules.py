"""Which values of Kubernetes' types go together: what an API server checks only when the pod is made."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from diloco.spec.errors import Problem
from diloco.spec.kube.values import amount
from diloco.spec.words import listed

Rule = Callable[[Mapping[str, Any]], Iterator[Problem]]
"""The problems of one value, whose fields are right by themselves; paths begin at it."""

_RESOURCES: Final = ("cpu", "memory", "ephemeral-storage")
_HOOKS: Final = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle")


def resources(requests: Mapping[str, str], limits: Mapping[str, str]) -> Iterator[Problem]:
    """Those of a container's resources: names, whole numbers, requests against limits."""
    for place, quantities in (("requests", requests), ("limits", limits)):
        for name, quantity in quantities.items():
            yield from _quantity(f"{place}.{name}", name, quantity)
    for name, quantity in requests.items():
        limit, exact = limits.get(name), _whole(name) or name.startswith("hugepages-")
        if limit is None and exact:
            yield Problem(f"limits.{name}", f"is missing; use {quantity}, as it is requested")
        elif limit is not None and exact and amount(quantity) != amount(limit):
            text = f"{quantity} is not its limit, {limit}; use the same, or leave the request out"
            yield Problem(f"requests.{name}", text)
        elif limit is not None and amount(quantity) > amount(limit):
            yield Problem(f"requests.{name}", f"{quantity} is above its limit, {limit}; use at most as much")


def _quantity(place: str, name: str, quantity: str) -> Iterator[Problem]:
    if "/" not in name and name not in _RESOURCES and not name.startswith("hugepages-"):
        if close := get_close_matches(name, _RESOURCES, n=1, cutoff=0.7):
            yield Problem(place, f"is not a field here; did you mean {close[0]}?")
        else:
            use = f"{', '.join(_RESOURCES)}, hugepages-SIZE or DOMAIN/NAME, such as nvidia.com/gpu"
            yield Problem(place, f"is not a resource of containers; use {use}")
    elif amount(quantity) < 0:
        yield Problem(place, f"{quantity} is below 0; use at least 0")
    elif _whole(name) and amount(quantity) != amount(quantity).to_integral_value():
        yield Problem(place, f"{quantity} is not a whole number; use one such as 1")


def _whole(name: str) -> bool:
    """Whether it is a device of the node's, of which there are no parts."""
    return "/" in name and "kubernetes.io/" not in name


def _toleration(given: Mapping[str, Any]) -> Iterator[Problem]:
    if given.get("operator") != "Exists":
        if not given.get("key"):
            yield Problem("key", "is missing; use a taint's key, or operator Exists for every taint")
    elif value := given.get("value"):
        yield Problem("value", f"{value} has no use with operator Exists; remove it or use operator Equal")
    if "tolerationSeconds" in given and given.get("effect") != "NoExecute":
        text = "has no use without effect NoExecute; remove it or use effect NoExecute"
        yield Problem("tolerationSeconds", text)


def _requirement(given: Mapping[str, Any]) -> Iterator[Problem]:
    operator, values = given["operator"], given.get("values", ())
    if operator in ("Exists", "DoesNotExist"):
        if values:
            yield Problem("values", f"has no use with operator {operator}; remove it")
    elif not values:
        yield Problem("values", f"is missing; operator {operator} needs at least one")
    elif operator in ("Gt", "Lt") and len(values) > 1:
        yield Problem("values", f"has {len(values)}; operator {operator} needs exactly one")


def _spread(given: Mapping[str, Any]) -> Iterator[Problem]:
    if "minDomains" in given and given["whenUnsatisfiable"] != "DoNotSchedule":
        text = "has no use without whenUnsatisfiable DoNotSchedule; remove it or use DoNotSchedule"
        yield Problem("minDomains", text)


def _init_container(given: Mapping[str, Any]) -> Iterator[Problem]:
    for field in _HOOKS:
        if field in given and given.get("restartPolicy") != "Always":
            text = "has no use without restartPolicy Always; remove it or use restartPolicy Always"
            yield Problem(field, text)


def _one_of(*fields: str, least: int = 1) -> Rule:
    def rule(given: Mapping[str, Any]) -> Iterator[Problem]:
        has = [field for field in fields if field in given]
        if not least <= len(has) <= 1:
            yield Problem("", _not_one(fields, has, least))

    return rule


def _not_one(fields: Sequence[str], has: Sequence[str], least: int) -> str:
    number = "exactly one" if least else "at most one"
    return f"needs {number} of {listed(fields, 'and')}; has {listed(has, 'and') or 'none'}"


def _volume(given: Mapping[str, Any]) -> Iterator[Problem]:
    sources = [field for field in given if field != "name"]
    if len(sources) > 1:
        yield Problem("", f"has {listed(sources, 'and')}; use one source")


RULES: Final[Mapping[str, Rule]] = {
    "Container": _init_container,
    "EnvFromSource": _one_of("configMapRef", "secretRef"),
    "EnvVar": _one_of("value", "valueFrom", least=0),
    "EnvVarSource": _one_of("configMapKeyRef", "fieldRef", "fileKeyRef", "resourceFieldRef", "secretKeyRef"),
    "LabelSelectorRequirement": _requirement,
    "LifecycleHandler": _one_of("exec", "httpGet", "sleep", "tcpSocket"),
    "NodeSelectorRequirement": _requirement,
    "PodResourceClaim": _one_of("resourceClaimName", "resourceClaimTemplateName"),
    "Probe": _one_of("exec", "grpc", "httpGet", "tcpSocket"),
    "ResourceRequirements": lambda given: resources(given.get("requests", {}), given.get("limits", {})),
    "Toleration": _toleration,
    "TopologySpreadConstraint": _spread,
    "Volume": _volume,
}
"""By the type's name."""
