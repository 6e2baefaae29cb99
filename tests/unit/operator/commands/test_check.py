"""What ``diloco cluster check`` finds at servers that are odd: old, without a kind, silent, or out to do harm."""

import asyncio
import io
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from diloco.cli.main import execute
from diloco_operator.api_server.errors import (
    ApiError,
    Call,
    ForbiddenError,
    NotFoundError,
    UnansweredError,
    UnauthorizedError,
)
from diloco_operator.api_server.kinds import Kind
from diloco_operator.clusters.kubeconfig import Kubeconfig
from diloco_operator.commands.check import of_server
from diloco_operator.commands.findings import Finding, Verdict
from tests.support.kubeconfigs import account_token

if TYPE_CHECKING:
    from diloco_operator.api_server.api import Api

CALL = Call("get", "version")
NAMESPACE = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}


def token(subject: str = "system:serviceaccount:learners:diloco-home") -> str:
    return account_token(datetime(2023, 11, 14, tzinfo=UTC), datetime(2096, 10, 2, tzinfo=UTC), subject)


class Server:
    """A server with this version and namespace, which grants what a function allows."""

    def __init__(
        self,
        version: Any = None,
        namespace: ApiError | None = None,
        allows: Callable[[Call], bool] = lambda _asked: True,
    ) -> None:
        self._version = {"major": "1", "minor": "28+", "gitVersion": "v1.28.3"} if version is None else version
        self._namespace = namespace
        self._allows = allows
        self.asked: list[Call] = []

    async def version(self) -> Any:
        if isinstance(self._version, Exception):
            raise self._version
        return self._version

    async def get(self, kind: Kind, namespace: None, name: str) -> Any:
        assert (kind.plural, namespace, name) == ("namespaces", None, "learners")
        if self._namespace is not None:
            raise self._namespace
        return NAMESPACE

    async def may(self, call: Call) -> bool:
        self.asked.append(call)
        return self._allows(call)


def found(server: Server, *, held: str | None = None) -> dict[str, Finding]:
    way = Kubeconfig(server="https://west", namespace="learners", token=held or token())

    async def all_of_them() -> dict[str, Finding]:
        return {one.what: one async for one in of_server(cast("Api", server), way)}

    return asyncio.run(all_of_them())


def not_good(server: Server) -> dict[str, Verdict]:
    return {what: one.verdict for what, one in found(server).items() if one.verdict is not Verdict.GOOD}


def test_a_server_that_is_too_old_is_a_problem() -> None:
    finding = found(Server({"major": "1", "minor": "27"}))["version"]
    told = "https://west is Kubernetes 1.27; use 1.28 or later"
    assert (finding.verdict, finding.told) == (Verdict.PROBLEM, told)


def test_what_is_no_api_server_is_asked_nothing_more() -> None:
    server = Server({"major": "one"})
    (finding,) = found(server).values()
    assert finding.line.startswith("connection: https://west answers, but not as an API server; check the address")
    assert server.asked == []


def test_a_namespace_that_may_not_be_read_is_noted_once_none_is_a_problem() -> None:
    hidden = ForbiddenError(CALL, "namespaces is forbidden", code=403)
    server = Server(namespace=hidden, allows=lambda asked: asked.resource != "namespaces")
    assert not_good(server) == {"namespaces": Verdict.NOTE}
    assert not_good(Server(namespace=NotFoundError(CALL, "none", code=404))) == {"namespace": Verdict.PROBLEM}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UnauthorizedError(CALL, "who?", code=401), "make a new Secret"),
        (UnansweredError(CALL, "no answer in time"), "check the address"),
        (ForbiddenError(CALL, "not permitted", code=403), "ask the owner of that cluster"),
    ],
)
def test_what_makes_other_checks_pointless_is_the_only_one(error: ApiError, told: str) -> None:
    assert list(found(Server(error))) == ["connection"]
    assert found(Server(error))["connection"].do.startswith(told)


@pytest.mark.parametrize(
    "subject",
    [
        "system:serviceaccount:learners:x; rm -rf .",
        "system:serviceaccount:learners:$(id)",
        "system:serviceaccount:elsewhere:diloco-home",
        "carol",
    ],
)
def test_a_token_of_somebody_else_puts_nothing_into_commands(subject: str) -> None:
    server = Server(allows=lambda _asked: False)
    lines = [one.line for one in found(server, held=token(subject)).values()]
    assert not [line for line in lines if "rm -rf" in line or "$(id)" in line or "elsewhere" in line]
    assert any("have 'diloco cluster prepare learners' applied there" in line for line in lines)
    assert not [one for one in server.asked if one.resource == "serviceaccounts/token"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\xff\xfe", "is not text; use a Secret in YAML or JSON"),
        (b"kind: Secret\n---\nkind: Secret\n", "is not one document of YAML; use one Secret"),
        (b"kind: Secret\nkind: Secret s3cret\n", "is not one document of YAML; use one Secret"),
        (b"a: &a [s3cret, s3cret]\n" + b"b: [*a, *a]\n" * 20_000, "is not one document of YAML; use one Secret"),
        (b"kind: ConfigMap\n", "is not a Secret; use what 'diloco cluster kubeconfig' prints"),
        (b"- s3cret\n", "is not a Secret; use what 'diloco cluster kubeconfig' prints"),
        (b"#" * (5 << 20), "is larger than 4 MiB; use a file with a Secret"),
        (b"", "is not one document of YAML; use one Secret"),
    ],
    ids=["bytes", "two", "twice", "a bomb", "another kind", "a list", "large", "empty"],
)
def test_a_file_that_is_no_secret_is_one_line_that_quotes_nothing(
    content: bytes, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "secret.yaml"
    file.write_bytes(content)
    assert execute(["cluster", "check", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"diloco: SECRET-FILE: {file} {told}"


def test_a_secret_may_come_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b"{kind: Secret, metadata: {labels: {diloco.dev/cluster: x}}, stringData: {other: s3cret}}"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert execute(["cluster", "check", "-"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("diloco: Secret: has no key kubeconfig; there is other; use --key, or make a new Secret")


def test_a_token_that_does_not_say_when_it_ends_is_noted() -> None:
    assert found(Server(), held="opaque")["token"].verdict is Verdict.NOTE
