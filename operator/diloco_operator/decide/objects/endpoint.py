"""Where learners of other clusters reach the syncer, as far as it is known. Pure."""

from dataclasses import dataclass

from diloco.spec.placement import Expose
from diloco_operator.decide.observed import Object
from diloco_operator.manifests.common import SYNC_PORT
from diloco_operator.objects import mapping

_LONGEST_HOST = 253


@dataclass(frozen=True, slots=True)
class Endpoint:
    """``host:port``, or why there is none."""

    address: str = ""
    """``host:port``, with an IPv6 host in brackets; empty: there is none."""
    missing: str = ""
    """Why there is none, although ``spec.syncer.expose`` asks for one."""


def endpoint(expose: Expose, service: Object | None, known: str = "") -> Endpoint:
    """The endpoint for learners of other clusters.

    Args:
        expose: ``spec.syncer.expose``.
        service: The Service that exposes the syncer, as observed; None: it does not exist yet.
        known: The endpoint so far. Of several addresses of a load balancer it is kept while it is among them.
    """
    match expose.type:
        case "ClusterIP":
            return Endpoint()
        case "External":
            if expose.host is None or expose.port is None:
                return Endpoint(missing="spec.syncer.expose.host or port is missing; with type External give both")
            return Endpoint(_address(expose.host, expose.port))
        case "NodePort":
            return _node_port(expose, service)
        case "LoadBalancer":
            return _load_balancer(service, known)


def _node_port(expose: Expose, service: Object | None) -> Endpoint:
    if expose.host is None:
        return Endpoint(missing="spec.syncer.expose.host is missing; with type NodePort give the address of a node")
    if service is None:
        return Endpoint(missing="the Service of type NodePort does not exist yet")
    ports = mapping(service.get("spec")).get("ports")
    for port in ports if isinstance(ports, list) else ():
        number = mapping(port).get("nodePort")
        if mapping(port).get("port") == SYNC_PORT and isinstance(number, int) and number > 0:
            return Endpoint(_address(expose.host, number))
    return Endpoint(missing="the Service of type NodePort has no port on the nodes yet")


def _load_balancer(service: Object | None, known: str) -> Endpoint:
    if service is None:
        return Endpoint(missing="the Service of type LoadBalancer does not exist yet")
    given = mapping(mapping(service.get("status")).get("loadBalancer")).get("ingress")
    places = given if isinstance(given, list) else []
    hosts = [mapping(one).get("ip") or mapping(one).get("hostname") for one in places]
    found = [_address(host, SYNC_PORT) for host in hosts if isinstance(host, str) and _is_host(host)]
    if not found:
        return Endpoint(missing="the load balancer has no address yet; the Service's events may say why")
    return Endpoint(known if known in found else found[0])


def _is_host(text: str) -> bool:
    return 0 < len(text) <= _LONGEST_HOST and text.isascii() and text.isprintable() and not set(text) & set(" []/@")


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
