"""The Secret that ``diloco cluster kubeconfig`` prints, and what it refuses to print."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from diloco.cli.cluster_access import Answer, ApiServer, Trust
from diloco.cli.cluster_kubeconfig import (
    Way,
    authorities,
    kubeconfig_text,
    parse_life,
    read_by_operator,
    request_token,
    secret,
)
from diloco.cli.cluster_options import ClusterInputError
from diloco_operator.clusters.kubeconfig import parse
from testbed.api_server.certificates import Authority

TOKEN = "a-token.of.nobody"


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> str:
    return Authority(tmp_path_factory.mktemp("authority")).certificate.read_text()


class ScriptedServer(ApiServer):
    """Answers every POST alike."""

    def __init__(self, status: int, body: Any) -> None:
        self.url = "https://west"
        self._status, self._body = status, body
        self.posted: list[tuple[str, Mapping[str, Any]]] = []

    def post(self, path: str, body: Mapping[str, Any], *, timeout_seconds: float = 15.0) -> Answer:  # noqa: ARG002  # as the base class
        self.posted.append((path, body))
        return Answer(self._status, json.dumps(self._body).encode())


def test_the_operator_reads_what_is_printed(pem: str) -> None:
    made = secret("west", kubeconfig_text(Way("https://west:6443", "learners", pem, "kubernetes.default"), TOKEN))
    assert made["metadata"] == {"name": "west", "labels": {"diloco.dev/cluster": "true"}}
    read = parse(made["stringData"]["kubeconfig"].encode())
    assert (read.server, read.namespace, read.server_name) == ("https://west:6443", "learners", "kubernetes.default")
    assert (read.token, read.authority) == (TOKEN, pem)


def test_only_certificates_are_taken_from_a_file_with_more(pem: str, tmp_path: Path) -> None:
    leaf = Authority(tmp_path).leaf("leaf")
    read = read_by_operator(kubeconfig_text(Way("https://west", "learners", pem + leaf.key.read_text()), TOKEN))
    assert read.authority == pem


@pytest.mark.parametrize(
    "way",
    [
        Way("http://west:6443", "learners", "PEM"),
        Way("https://me:password@west:6443", "learners", "PEM"),
        Way("https://west:6443", "Learners", "PEM"),
        Way("https://west:6443", "learners", "no certificate"),
    ],
    ids=["http", "a password", "a namespace", "no certificate"],
)
def test_what_the_operator_would_refuse_is_not_printed(way: Way, pem: str) -> None:
    whole = Way(way.server, way.namespace, way.authorities.replace("PEM", pem))
    with pytest.raises(ClusterInputError, match=r"^the operator would refuse this kubeconfig: ") as raised:
        read_by_operator(kubeconfig_text(whole, TOKEN))
    assert TOKEN not in str(raised.value)
    assert "password" not in str(raised.value)


def test_a_token_is_asked_for_the_account_and_for_that_long() -> None:
    granted = {"status": {"token": TOKEN, "expirationTimestamp": "2026-01-02T03:04:05Z"}}
    server = ScriptedServer(201, granted)
    token = request_token(server, "learners", "diloco-home", 3600)
    ((path, body),) = server.posted
    assert path == "/api/v1/namespaces/learners/serviceaccounts/diloco-home/token"
    assert body["spec"] == {"expirationSeconds": 3600}
    assert (token.text, token.expires.isoformat()) == (TOKEN, "2026-01-02T03:04:05+00:00")
    assert TOKEN not in repr(token)


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (404, {"message": "not found"}, "--service-account: diloco-home is not in namespace learners of https://west"),
        (422, {"message": "too short"}, "https://west gives no token of learners/diloco-home: too short"),
        (201, {}, "gives no token of learners/diloco-home: the answer holds no token"),
        (201, {"status": {"token": TOKEN}}, "gives a token of learners/diloco-home without its end"),
        (201, {"status": {"token": TOKEN, "expirationTimestamp": "soon"}}, "without its end"),
        (201, [TOKEN], "the answer holds no token"),
    ],
)
def test_without_a_token_the_error_says_why_and_quotes_none(status: int, body: Any, told: str) -> None:
    with pytest.raises(ClusterInputError) as raised:
        request_token(ScriptedServer(status, body), "learners", "diloco-home", 3600)
    assert told in str(raised.value)
    assert TOKEN not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "seconds"), [("10min", 600), ("12h", 43_200), ("30d", 2_592_000), ("365d", 31_536_000)]
)
def test_a_life_is_a_number_with_a_unit(text: str, seconds: int) -> None:
    assert parse_life(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "1m", "-1h", "9min", "366d", "1e9d", "9999999999h", "٣h"])
def test_another_life_is_an_error_with_what_to_use(text: str) -> None:
    with pytest.raises(ValueError, match=r"^--duration: '.*' (is|has) .*; use "):
        parse_life(text)


def test_the_authorities_are_those_of_the_context_or_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    file.write_text("from a file")
    of_context = Trust(verified=True, authorities="of the context", server_name="")
    assert authorities(None, of_context, "west") == "of the context"
    assert authorities(file, of_context, "west") == "from a file"


@pytest.mark.parametrize(
    ("trust", "told"),
    [
        (Trust(verified=False, authorities="PEM", server_name=""), "west skips the check of the server's certificate"),
        (Trust(verified=True, authorities="", server_name=""), "west names no certificate authority"),
    ],
)
def test_a_context_that_trusts_anyone_needs_a_file(trust: Trust, told: str) -> None:
    with pytest.raises(ClusterInputError, match=f"^--context: {told}; use --certificate-authority FILE"):
        authorities(None, trust, "west")


def test_a_file_that_is_no_pem_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "ca.der"
    file.write_bytes(b"\x30\x82\xff")
    with pytest.raises(ClusterInputError, match=r"^--certificate-authority: .* is not PEM text; use a file in PEM$"):
        authorities(file, Trust(verified=True, authorities="", server_name=""), "west")


def test_the_kubeconfig_is_text_that_people_can_read(pem: str) -> None:
    text = kubeconfig_text(Way("https://west", "learners", pem), TOKEN)
    assert yaml.safe_load(text)["users"] == [{"name": "home", "user": {"token": TOKEN}}]
