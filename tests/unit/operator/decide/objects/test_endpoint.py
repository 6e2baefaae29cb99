from typing import Any

import pytest

from diloco.spec.placement import Expose
from diloco_operator.decide.objects.endpoint import Endpoint, endpoint

NODE_PORT = Expose(type="NodePort", host="203.0.113.7")
BALANCER = Expose(type="LoadBalancer")


def service(*ingress: object, node_port: object = None) -> dict[str, Any]:
    port = {"name": "sync", "port": 29400, "targetPort": "sync"} | (
        {} if node_port is None else {"nodePort": node_port}
    )
    return {"spec": {"ports": [port]}, "status": {"loadBalancer": {"ingress": list(ingress)} if ingress else {}}}


def test_a_syncer_that_is_not_exposed_has_none_and_lacks_none() -> None:
    assert endpoint(Expose(), service()) == Endpoint()


@pytest.mark.parametrize(("host", "address"), [("a.example", "a.example:443"), ("2001:db8::1", "[2001:db8::1]:443")])
def test_external_is_what_the_manifest_says_whatever_the_service(host: str, address: str) -> None:
    assert endpoint(Expose(type="External", host=host, port=443), None) == Endpoint(address)


def test_a_node_port_is_the_manifests_host_and_the_services_port() -> None:
    assert endpoint(NODE_PORT, service(node_port=31234)) == Endpoint("203.0.113.7:31234")
    moved = NODE_PORT.model_copy(update={"host": "node.example"})
    assert endpoint(moved, service(node_port=31234), "203.0.113.7:31234") == Endpoint("node.example:31234")


def test_a_load_balancer_has_the_address_in_its_services_status() -> None:
    assert endpoint(BALANCER, service({"ip": "198.51.100.1"})) == Endpoint("198.51.100.1:29400")
    assert endpoint(BALANCER, service({"hostname": "lb.example"})) == Endpoint("lb.example:29400")
    assert endpoint(BALANCER, service({"ip": "2001:db8::2", "ipMode": "VIP"})) == Endpoint("[2001:db8::2]:29400")


def test_of_several_addresses_the_one_in_use_is_kept_while_it_is_there() -> None:
    both = service({"ip": "198.51.100.1"}, {"ip": "198.51.100.2"})
    assert endpoint(BALANCER, both) == Endpoint("198.51.100.1:29400")
    assert endpoint(BALANCER, both, "198.51.100.2:29400") == Endpoint("198.51.100.2:29400")
    assert endpoint(BALANCER, service({"ip": "198.51.100.3"}), "198.51.100.2:29400") == Endpoint("198.51.100.3:29400")


@pytest.mark.parametrize(
    ("expose", "seen", "missing"),
    [
        (Expose(type="NodePort"), service(node_port=31234), "spec.syncer.expose.host is missing"),
        (NODE_PORT, None, "the Service of type NodePort does not exist yet"),
        (NODE_PORT, service(), "no port on the nodes yet"),
        (NODE_PORT, service(node_port="31234"), "no port on the nodes yet"),
        (NODE_PORT, {"spec": {"ports": "nonsense"}}, "no port on the nodes yet"),
        (NODE_PORT, {"spec": {"ports": [{"port": 80, "nodePort": 31234}]}}, "no port on the nodes yet"),
        (BALANCER, None, "the Service of type LoadBalancer does not exist yet"),
        (BALANCER, service(), "the load balancer has no address yet"),
        (BALANCER, service({}), "the load balancer has no address yet"),
        (BALANCER, service("nonsense", {"ip": ""}, {"hostname": 7}), "the load balancer has no address yet"),
        (BALANCER, service({"hostname": "a b"}, {"hostname": "x" * 254}), "the load balancer has no address yet"),
        (BALANCER, service({"hostname": "a\nb"}, {"hostname": "[::1]"}), "the load balancer has no address yet"),
        (BALANCER, {"status": None}, "the load balancer has no address yet"),
    ],
)
def test_while_there_is_none_it_says_why(expose: Expose, seen: dict[str, Any] | None, missing: str) -> None:
    found = endpoint(expose, seen, "")
    assert found.address == ""
    assert missing in found.missing
