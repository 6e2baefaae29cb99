"""Unknown peers, against a syncer that requires no certificate."""

import http.client
import json
import re

import pytest

from diloco.wire.messages import FragmentWanted, Welcome
from testbed.kind.waiting import wait_until
from tests.hostile.conftest import Target
from tests.support.attacks import (
    broken_rules,
    false_claims,
    false_joins,
    flood,
    forged_ids,
    idle_connections,
    many_ids,
    nonsense,
    slow_readers,
)
from tests.support.raw_wire import RawClient, ending

pytestmark = pytest.mark.processes


def test_readers_that_never_take_their_page_take_few_threads(target: Target) -> None:
    with slow_readers(target.aim, 400):
        target.serves_as_before()
        assert target.process.num_threads() < 250


def test_connections_that_say_nothing_keep_nobody_out(target: Target) -> None:
    with idle_connections(target.aim.sync, 300), idle_connections(target.aim.http, 300):
        target.serves_as_before()


def test_a_page_of_another_site_reads_nothing_through_the_owners_browser(target: Target) -> None:
    """The site's name leads to loopback: the browser asks for that name, and cannot ask for another."""

    def asked(path: str, host: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(target.syncer.http_address, timeout=30)
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, body

    port = target.syncer.http_address.rpartition(":")[2]
    for path in ("/status", "/metrics", "/page", "/healthz", "/readyz"):
        for host in (
            "evil.example",
            f"evil.example:{port}",
            "localhost.evil.example",
            f"127.0.0.1.evil.example:{port}",
        ):
            assert asked(path, host) == (
                421,
                f"Host: '{host}' is not a name of this server; use localhost or 127.0.0.1\n".encode(),
            )
    assert [asked("/status", host)[0] for host in (f"localhost:{port}", f"127.0.0.1:{port}")] == [200, 200]
    target.serves_as_before()


def test_no_name_and_no_reason_makes_a_line_in_the_log(target: Target) -> None:
    forged_ids(target.aim)
    target.serves_as_before()
    lines = target.syncer.log.splitlines()
    assert not [line for line in lines if line.startswith("12:00:00.000 syncer critical")]
    assert all(line.isprintable() for line in lines)


def test_a_peer_that_breaks_a_rule_and_hangs_up_leaves_no_traceback(target: Target) -> None:
    broken_rules(target.aim)
    target.serves_as_before()


def test_false_joins_are_turned_away_and_false_claims_refused(target: Target) -> None:
    false_joins(target.aim)
    (it,) = (learner for learner in target.syncer.status().learners if learner.id == "here/cpu/0")
    assert it.steps < 10**6
    refused = target.metric("diloco_claims_refused_total")
    false_claims(target.aim)
    assert target.metric("diloco_claims_refused_total") >= refused + 2  # of two pushes
    assert target.syncer.status().phase in ("Waiting", "Training")
    target.serves_as_before()


def test_learners_that_nobody_planned_are_let_in_up_to_a_number(target: Target) -> None:
    assert many_ids(target.aim, 200) == 2, "as many as are planned"
    target.serves_as_before()


def test_whoever_says_too_much_is_read_slowly_and_the_others_are_not(target: Target) -> None:
    flood(target.aim, 4000)
    target.serves_as_before()
    tape = "".join(path.read_text() for path in sorted((target.syncer.directory / "tape").iterdir()))
    assert max(json.loads(line)["seq"] for line in tape.splitlines()) < 20_000


def test_nonsense_on_every_port_ends_its_own_connection_only(target: Target) -> None:
    nonsense(target.aim)
    target.serves_as_before()


def test_half_sent_pushes_free_their_memory_once_they_are_no_longer_wanted(target: Target) -> None:
    with target.learner(0, "half open") as learner, RawClient(target.address) as raw:
        assert isinstance(learner.begin().welcome, Welcome)
        asked = learner.wanted()
        assert isinstance(asked, FragmentWanted)
        payload = learner.codec.encode(learner.gradient(asked.fragment))
        call = raw.half_open_push(learner.header(asked, payload))
        wait_until(lambda: target.metric("diloco_inbox_bytes") >= payload.nbytes)
        learner.hang_up()
        status, told = ending(call)
        assert re.search("no longer requested", told), (status, told)
    wait_until(lambda: target.metric("diloco_inbox_bytes") == 0)
    target.serves_as_before()
