import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from diloco_operator.api_server.errors import ApiError, Call, UnavailableError
from diloco_operator.clusters.kubeconfig import parse
from diloco_operator.commands.kubeconfig import (
    Way,
    authorities,
    kubeconfig_text,
    parse_life,
    read_by_operator,
    request_token,
    secret,
)
from diloco_operator.commands.shared import Access, CommandError
from testbed.api_server.certificates import Authority
from tests.support.kubeconfigs import account_token

TOKEN = "a-token.of.nobody"


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> str:
    return Authority(tmp_path_factory.mktemp("authority")).certificate.read_text()


def server(answer: ApiError | str = "", *, authority: Path | None = None, verified: bool = True) -> Access:
    """A server that gives this token, or none."""

    async def token(namespace: str, account: str, seconds: int) -> str:
        assert (namespace, account, seconds) == ("learners", "diloco-home", 3600)
        if isinstance(answer, ApiError):
            raise answer
        return answer

    ca = None if authority is None else str(authority)
    configuration = SimpleNamespace(host="https://west", ssl_ca_cert=ca, verify_ssl=verified)
    api: Any = SimpleNamespace(token=token)
    connection: Any = SimpleNamespace(configuration=configuration)
    return Access(api, connection, "learners")


def requested(answer: ApiError | str) -> tuple[str, str]:
    token, expires = asyncio.run(request_token(server(answer), "learners", "diloco-home", 3600))
    return token, expires.isoformat()


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


def test_what_the_operator_would_refuse_is_not_printed(pem: str) -> None:
    way = Way("https://me:password@west:6443", "learners", pem)
    with pytest.raises(CommandError, match=r"^the operator would refuse this kubeconfig: ") as raised:
        read_by_operator(kubeconfig_text(way, TOKEN))
    assert TOKEN not in str(raised.value)
    assert "password" not in str(raised.value)


def test_a_token_is_asked_for_the_account_and_for_that_long() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    token = account_token(now, now + timedelta(hours=1), "system:serviceaccount:learners:diloco-home")
    assert requested(token) == (token, "2026-01-01T01:00:00+00:00")


def test_without_a_token_the_error_says_why_and_quotes_none() -> None:
    call = Call("create", "serviceaccounts/token")
    with pytest.raises(UnavailableError, match="the answer has no token"):
        requested(UnavailableError(call, "the answer has no token"))
    with pytest.raises(CommandError, match="gives a token of learners/diloco-home without its end") as raised:
        requested(TOKEN)
    assert TOKEN not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "seconds"), [("10min", 600), ("12h", 43_200), ("30d", 2_592_000), ("365d", 31_536_000)]
)
def test_a_life_is_a_number_with_a_unit(text: str, seconds: int) -> None:
    assert parse_life(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "1m", "-1h", "9min", "366d", "1e9d", "9999999999h", "٣h"])
def test_another_life_is_an_error_with_what_to_use(text: str) -> None:
    with pytest.raises((ValueError, CommandError), match=r"^--duration: '.*' (is|has) .*; use "):
        parse_life(text)


def test_the_authorities_are_those_of_the_context_or_of_a_file(tmp_path: Path) -> None:
    file, own = tmp_path / "ca.crt", tmp_path / "own.crt"
    file.write_text("from a file")
    own.write_text("of the context")
    assert authorities(None, server(authority=own), "west") == "of the context"
    assert authorities(file, server(authority=own), "west") == "from a file"


def test_a_context_that_trusts_anyone_needs_a_file(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"^--context: west skips the check of the server's certificate; use"):
        authorities(None, server(authority=tmp_path, verified=False), "west")
    with pytest.raises(CommandError, match=r"^--context: west names no certificate authority; use --certificate-auth"):
        authorities(None, server(), "west")


def test_a_file_that_is_no_pem_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "ca.der"
    file.write_bytes(b"\x30\x82\xff")
    with pytest.raises(CommandError, match=r"^--certificate-authority: .* is not PEM text; use a file in PEM$"):
        authorities(file, server(), "west")
