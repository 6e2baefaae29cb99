"""The nodes of a learner over real sockets: they start together, end together, and let nobody else in."""

import datetime as dt
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import TypeVar

import pytest

from diloco.learner.options import LONGEST_POD
from diloco.learner.unit.nodes.first_node import FirstNode
from diloco.learner.unit.nodes.node_connection import NodeLinkError, NodePlace
from diloco.learner.unit.nodes.node_link import Meeting, NodeRefusedError, OtherNode
from diloco.learner.unit.nodes.node_messages import LONGEST_BYTES, Hello, encoded
from diloco.wire.tls.certificates import Authority
from diloco.wire.tls.files import TlsFiles
from diloco_operator.signing import (
    LeafNames,
    RandomCertificateMaker,
    certificate_pem,
    key_pem,
    new_authority,
    new_leaf,
)
from testbed.kind.waiting import wait_until

WAIT_SECONDS = 10.0
_Link = TypeVar("_Link", FirstNode, OtherNode)


class Nodes:
    """The nodes of one learner, in one process; what would end a process is queued."""

    def __init__(self, stack: ExitStack, tls: TlsFiles | None) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.place = NodePlace("small", "a/b/0", 0, 3, "127.0.0.1", port, "pod0", tls)
        self.ended: Queue[tuple[int, int]] = Queue()
        """Node and exit code."""
        self.stopping = threading.Event()
        self._stack = stack
        self._threads = stack.enter_context(ThreadPoolExecutor())

    def first(self) -> FirstNode:
        return self.closed(FirstNode(self.place, self.stopping.set, lambda code: self.ended.put((0, code))))

    def other(self, node: int, **changes: object) -> OtherNode:
        place = replace(self.place, **({"node": node, "pod": f"pod{node}"} | changes))  # type: ignore[arg-type]
        return self.closed(OtherNode(place, lambda code: self.ended.put((node, code))))

    def soon(self, what: Callable[[], Meeting]) -> "Future[Meeting]":
        def met() -> Meeting:
            meeting = what()
            if meeting.listening is not None:
                self._stack.callback(meeting.listening.close)
            return meeting

        return self._threads.submit(met)

    def others_join(self) -> None:
        for node in (1, 2):
            self.soon(self.other(node).meet)

    def started(self) -> tuple[FirstNode, OtherNode, OtherNode]:
        first, one, two = self.first(), self.other(1), self.other(2)
        for waiting in [self.soon(one.meet) for one in (first, one, two)]:
            waiting.result(WAIT_SECONDS)
        return first, one, two

    def stranger(self) -> socket.socket:
        """A connection."""
        return socket.create_connection((self.place.host, self.place.port), WAIT_SECONDS)

    def who_ends(self, count: int) -> set[tuple[int, int]]:
        return {self.ended.get(timeout=WAIT_SECONDS) for _ in range(count)}

    def closed(self, link: _Link) -> _Link:
        self._stack.callback(link.close)
        return link


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture(params=["plain", "tls"])
def nodes(request: pytest.FixtureRequest, authority: Authority) -> Iterator[Nodes]:
    tls = authority.learner("small", "a/b") if request.param == "tls" else None
    with ExitStack() as stack:
        yield Nodes(stack, tls)


@pytest.fixture
def plain() -> Iterator[Nodes]:
    with ExitStack() as stack:
        yield Nodes(stack, None)


@pytest.fixture
def secured(authority: Authority) -> Iterator[Nodes]:
    with ExitStack() as stack:
        yield Nodes(stack, authority.learner("small", "a/b"))


def test_nodes_that_start_in_any_order_meet_at_one_store(nodes: Nodes) -> None:
    early = nodes.soon(nodes.other(2).meet)
    first = nodes.soon(nodes.first().meet)
    late = nodes.soon(nodes.other(1).meet)
    met = first.result(WAIT_SECONDS)
    assert met.listening is not None
    for one in (early, late):
        told = one.result(WAIT_SECONDS)
        assert told.url == met.url
    assert met.listening.getsockname() == (met.host, met.port)


def test_the_pods_of_a_learner_are_others_once_one_of_them_is() -> None:
    def pods(of_one: str) -> str:
        with ExitStack() as stack:
            nodes = Nodes(stack, None)
            met = nodes.soon(nodes.first().meet)
            for other in (nodes.other(1, pod=of_one), nodes.other(2)):
                nodes.soon(other.meet)
            return met.result(WAIT_SECONDS).pods

    assert pods("a") == pods("a") != pods("b")
    assert 0 < len(pods("a")) <= LONGEST_POD


def test_a_node_that_leaves_before_the_start_may_come_back(plain: Nodes) -> None:
    first = plain.first()
    waiting = plain.soon(first.meet)
    gone = OtherNode(replace(plain.place, node=1))
    asked = plain.soon(gone.meet)
    wait_until(lambda: first.missing == [2])
    gone.close()
    assert asked.exception(WAIT_SECONDS) is not None
    wait_until(lambda: first.missing == [1, 2])
    plain.others_join()
    assert waiting.result(WAIT_SECONDS).pods
    assert plain.ended.empty()


def test_the_end_of_one_node_ends_the_others_and_they_say_why(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    _, one, _ = nodes.started()
    one.fail("rank 3: out of memory")
    one.close()
    assert nodes.who_ends(2) == {(0, 0), (2, 0)}
    lines = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(lines) == 2
    assert all(f"node 1 ({socket.gethostname()}): rank 3: out of memory" in line for line in lines)


def test_the_end_of_the_first_node_without_a_word_ends_all_others(nodes: Nodes) -> None:
    first, _, _ = nodes.started()
    first.close()
    assert nodes.who_ends(2) == {(1, 0), (2, 0)}


def test_a_node_that_is_asked_to_stop_has_the_first_stop_all(nodes: Nodes) -> None:
    first, one, two = nodes.started()
    one.stop("SIGTERM")
    assert nodes.stopping.wait(WAIT_SECONDS)
    first.over()
    first.close()
    for other in (one, two):
        other.wait_until_gone()
    assert nodes.ended.empty()  # in order: nobody was ended


def test_a_node_that_waits_after_the_end_ends_at_once_when_asked(plain: Nodes) -> None:
    first, one, _ = plain.started()
    first.over()
    wait_until(lambda: one._ending)
    one.stop("SIGTERM")
    assert plain.who_ends(1) == {(1, 0)}
    assert not plain.stopping.is_set()


@pytest.mark.parametrize("changes", [{"learner": "a/b/1"}, {"node": 3}])
def test_a_node_of_another_learner_or_number_is_refused(plain: Nodes, changes: dict[str, object]) -> None:
    first = plain.first()
    place = replace(plain.place, **({"node": 1} | changes))  # type: ignore[arg-type]
    other = plain.closed(OtherNode(place))
    with pytest.raises(NodeRefusedError, match=r"it is node .* and this learner has nodes 1 to 2 of a/b/0"):
        other.meet()
    assert first.missing == [1, 2]


def test_the_second_of_two_with_one_number_waits_for_the_firsts_end(
    plain: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    first = plain.first()
    met = plain.soon(first.meet)
    old, new = OtherNode(replace(plain.place, node=1)), plain.other(1)
    plain.soon(old.meet)
    wait_until(lambda: first.missing == [2])
    joined = plain.soon(new.meet)
    wait_until(lambda: "an earlier connection of this node has not ended" in caplog.text)
    old.close()
    plain.soon(plain.other(2).meet)
    assert joined.result(WAIT_SECONDS).token == met.result(WAIT_SECONDS).token


@pytest.mark.parametrize("stranger", ["other pool", "other job", "other authority", "nobody", "without", "syncer"])
def test_only_certificates_of_the_learner_may_connect(
    stranger: str, secured: Nodes, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    tls: dict[str, Callable[[], TlsFiles | None]] = {
        "other pool": lambda: authority.learner("small", "a/c", "stranger"),
        "other job": lambda: authority.learner("large", "a/b", "stranger"),
        "other authority": lambda: replace(Authority(other).learner("small", "a/b"), ca=authority.certificate_path),
        "nobody": authority.nobody,
        "without": lambda: None,
        "syncer": lambda: authority.server(name="small.default.syncer"),
    }
    first = secured.first()
    strange = secured.other(1, tls=tls[stranger]())
    joining = secured.soon(strange.meet)
    wait_until(lambda: "a connection: " in caplog.text and "waiting for the learner's first node" in caplog.text)
    assert first.missing == [1, 2]
    assert not joining.done()
    strange.close()


def test_a_node_does_not_join_a_first_node_of_others(
    plain: Nodes, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    plain.place = replace(plain.place, tls=authority.learner("small", "a/c"))
    plain.first()
    other = plain.other(1, tls=authority.learner("small", "a/b", "own"))
    plain.soon(other.meet)
    wait_until(lambda: "the certificate is that of pool a/c" in caplog.text)
    other.close()


def test_the_operators_certificates_serve_at_both_ends(tmp_path: Path) -> None:
    now, maker = dt.datetime.now(dt.UTC), RandomCertificateMaker()
    issuer = new_authority("test", now, maker)
    leaf = new_leaf(issuer, LeafNames("learner", "both", uris=("diloco://small/learner/a/b",)), now, maker)
    tls = TlsFiles(tmp_path / "ca.crt", tmp_path / "tls.crt", tmp_path / "tls.key")
    tls.ca.write_bytes(certificate_pem(issuer.certificate))
    tls.certificate.write_bytes(certificate_pem(leaf.certificate))
    tls.key.write_bytes(key_pem(leaf.key))
    with ExitStack() as stack:
        Nodes(stack, tls).started()


def test_certificates_that_are_renewed_are_used_at_once(secured: Nodes, tmp_path: Path) -> None:
    first = secured.first()
    renewed = tmp_path / "renewed"
    renewed.mkdir()
    Authority(renewed).learner("small", "a/b")
    for file in renewed.iterdir():
        file.replace(tmp_path / file.name)
    met = secured.soon(first.meet)
    secured.others_join()
    assert met.result(WAIT_SECONDS).token


@pytest.mark.parametrize(
    "sent",
    [b"", b"\n", b"GET / HTTP/1.1\r\n", b"x" * (3 * LONGEST_BYTES), encoded(Hello("a/b/0", 0, "", "")), b"\xff\n"],
)
def test_a_stranger_is_cut_off_and_the_others_still_meet(plain: Nodes, sent: bytes) -> None:
    first = plain.first()
    met = plain.soon(first.meet)
    with plain.stranger() as stranger:
        stranger.sendall(sent)
        stranger.shutdown(socket.SHUT_WR)
        try:
            while stranger.recv(1 << 16):
                pass
        except ConnectionError:
            pass
    plain.others_join()
    assert met.result(WAIT_SECONDS).token


def test_nonsense_from_a_node_that_was_let_in_ends_all(plain: Nodes) -> None:
    first = plain.first()
    met = plain.soon(first.meet)
    plain.soon(plain.other(2).meet)
    with plain.stranger() as node:
        node.sendall(encoded(Hello("a/b/0", 1, "", "x")))
        met.result(WAIT_SECONDS)
        node.sendall(b"x" * (3 * LONGEST_BYTES))
        assert plain.who_ends(2) == {(0, 0), (2, 0)}


def test_a_port_that_is_taken_is_one_line(plain: Nodes) -> None:
    with (
        socket.create_server((plain.place.host, plain.place.port)),
        pytest.raises(NodeLinkError, match=r"--unit: cannot listen at 127.0.0.1:\d+ \(Address already in use\)"),
    ):
        plain.first()


def test_tls_of_the_link_is_of_the_newest_version(secured: Nodes) -> None:
    secured.first()
    tls = secured.place.tls
    assert tls is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(tls.ca)
    context.load_cert_chain(tls.certificate, tls.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with secured.stranger() as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain)
