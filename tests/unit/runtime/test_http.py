import contextlib
import http.client
import json
import logging
import socket
import threading
from collections.abc import Iterator

import pytest

from diloco.runtime.addresses import AddressError, format_address, parse_address
from diloco.runtime.http import HttpServer, HttpServerError, KeptPage, Response
from tests.support.hand_clock import HandClock


def broken() -> Response:
    raise RuntimeError("a fault in a page")


@pytest.fixture
def server() -> Iterator[HttpServer]:
    pages = {"/text": lambda: Response.text("hello\n"), "/json": lambda: Response.json({"a": 1}), "/broken": broken}
    with HttpServer("127.0.0.1:0", pages) as server:
        yield server


def ask(server: HttpServer, path: str, method: str = "GET") -> tuple[int, bytes, str]:
    connection = http.client.HTTPConnection(server.address, timeout=30)
    connection.request(method, path)
    answer = connection.getresponse()
    body, kind = answer.read(), answer.headers["Content-Type"]
    connection.close()
    return answer.status, body, kind


def test_pages_are_served_by_path_whatever_the_query(server: HttpServer) -> None:
    assert ask(server, "/text") == (200, b"hello\n", "text/plain; charset=utf-8")
    status, body, kind = ask(server, "/json?pretty")
    assert (status, json.loads(body), kind) == (200, {"a": 1}, "application/json")
    assert ask(server, "/text", "HEAD")[:2] == (200, b"")


def test_an_unknown_path_is_told_which_there_are(server: HttpServer) -> None:
    status, body, _ = ask(server, "/other")
    assert status == 404
    assert body == b"not found; there are /broken /json /text\n"
    assert ask(server, "/text", "POST")[0] == 501


def asked_for(server: HttpServer, host: str) -> tuple[int, bytes]:
    port = parse_address(server.address)[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/text", headers={"Host": host})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:80", "[::1]:8000", "localhost", "LocalHost:1", "10.1.2.3:9", ""]
)
def test_on_loopback_addresses_and_localhost_are_answered(server: HttpServer, host: str) -> None:
    assert asked_for(server, host) == (200, b"hello\n")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "[evil]", "a b"]
)
def test_on_loopback_other_names_are_not_answered(server: HttpServer, host: str) -> None:
    told = f"Host: {host!r} is not a name of this server; use localhost or 127.0.0.1\n"
    assert asked_for(server, host) == (421, told.encode())


def test_on_loopback_each_of_several_names_counts(server: HttpServer) -> None:
    with connected(server) as connection:
        connection.sendall(b"GET /text HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 421 ")


def test_where_other_machines_can_ask_every_name_is_answered() -> None:
    with HttpServer("0.0.0.0:0", {"/text": lambda: Response.text("hello\n")}) as server:
        assert asked_for(server, "syncer.team.svc.cluster.local:8080") == (200, b"hello\n")


def test_on_loopback_the_name_it_was_started_with_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    known = socket.getaddrinfo("127.0.0.1", 0, type=socket.SOCK_STREAM)
    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", lambda *_, **__: known)
        mine = HttpServer("Mine.local:0", {"/text": lambda: Response.text("hello\n")})
    with mine as server:
        assert asked_for(server, "mine.local:80")[0] == 200
        assert asked_for(server, "other.local:80")[0] == 421


def test_a_page_that_fails_is_logged_and_costs_no_more_than_its_answer(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert ask(server, "/broken")[0] == 500
    assert "HTTP route /broken failed" in caplog.text
    assert ask(server, "/text")[0] == 200


def test_a_page_brings_its_headers() -> None:
    policy = (("Content-Security-Policy", "default-src 'none'"),)
    with HttpServer("127.0.0.1:0", {"/": lambda: Response(b"", headers=policy)}) as server:
        connection = http.client.HTTPConnection(server.address, timeout=30)
        connection.request("GET", "/")
        answer = connection.getresponse()
        assert answer.headers["Content-Security-Policy"] == "default-src 'none'"
        answer.read()
        connection.close()


@pytest.mark.parametrize(("waits", "computes", "kept"), [(0.0, 0.0, 1.0), (0.0, 0.5, 10.0), (10.0, 0.0, 1.0)])
def test_a_kept_page_costs_a_twentieth_of_a_core_however_often_asked(
    waits: float, computes: float, kept: float
) -> None:
    clock, spent, made = HandClock(), HandClock(), list[float]()

    def make() -> Response:
        clock.now += waits + computes
        spent.now += computes
        made.append(clock.now)
        return Response.text(str(len(made)))

    page = KeptPage(make, clock, spent)
    assert [page().body for _ in range(3)] == [b"1"] * 3
    clock.now += kept - 0.125
    assert page().body == b"1"
    clock.now += 0.125
    assert page().body == b"2"
    assert len(made) == 2


def test_a_kept_page_that_fails_is_logged_and_is_not_made_at_every_request(caplog: pytest.LogCaptureFixture) -> None:
    clock, answers = HandClock(), [Response.text("there"), None]
    page = KeptPage(lambda: answers.pop() or broken(), clock, HandClock())
    with caplog.at_level(logging.ERROR):
        assert [page().status for _ in range(3)] == [500] * 3
    assert caplog.text.count("a page cannot be made") == 1
    clock.now += 1.0
    assert page() == Response.text("there")


def test_a_busy_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(HttpServerError, match=f"cannot serve HTTP at {address}: Address already in use"):
            HttpServer(address, {})


def connected(server: HttpServer) -> socket.socket:
    return socket.create_connection(parse_address(server.address), timeout=30)


@pytest.mark.parametrize("sends", [b"", b"GET /text HTTP/1.1\r\nX: "])
def test_a_client_that_is_slow_is_dropped_though_it_sends_now_and_then(sends: bytes) -> None:
    with HttpServer("127.0.0.1:0", {"/text": lambda: Response.text("hello\n")}, request_seconds=0.5) as server:
        with connected(server) as slow:
            slow.sendall(sends)
            slow.settimeout(0.05)
            assert any(is_over(slow) for _ in range(600))
        assert ask(server, "/text")[0] == 200


def is_over(slow: socket.socket) -> bool:
    """Whether the server has ended the connection; if not, it is sent a little more."""
    try:
        return slow.recv(1) == b""
    except TimeoutError:
        slow.send(b"x")
        return False
    except ConnectionError:
        return True


def test_whoever_comes_gets_an_answer_however_many_hold_connections(server: HttpServer) -> None:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(connected(server)) for _ in range(200)]
        assert ask(server, "/text")[1] == b"hello\n"
        # The ones that came first are gone.
        assert held[0].recv(1) == b""
        handlers = [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]
        assert len(handlers) < 100  # 64, and those that were dropped and are on their way out


def test_an_address_is_host_and_port() -> None:
    assert parse_address("example.org:80") == ("example.org", 80)
    assert parse_address("[::1]:0") == ("::1", 0)
    assert format_address(*parse_address("[::1]:9")) == "[::1]:9"
    assert format_address("0.0.0.0", 9) == "0.0.0.0:9"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_all_addresses_of_both_families_are_served() -> None:
    with HttpServer("[::]:0", {"/text": lambda: Response.text("hello\n")}) as server:
        port = parse_address(server.address)[1]
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), timeout=30).close()


def test_where_there_is_no_ipv6_all_addresses_are_those_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with HttpServer("[::]:0", {"/text": lambda: Response.text("hello\n")}) as server:
        host, port = parse_address(server.address)
        assert host == "0.0.0.0"
        socket.create_connection(("127.0.0.1", port), timeout=30).close()


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":80", "host:65536", "host:-1", "host:\uff18", "::1:80", "[::1:80"]
)
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(AddressError, match=r"address .*such as"):
        parse_address(text)
