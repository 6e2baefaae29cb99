"""What ``diloco cluster check`` finds at servers that are odd: old, without a kind, silent, or out to do harm."""

import base64
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from diloco.cli.cluster_access import Answer, ApiServer, AwayError, ForbiddenError, UnauthorizedError
from diloco.cli.cluster_check import of_server
from diloco.cli.cluster_findings import Finding, Verdict
from diloco.cli.main import execute
from diloco_operator.clusters.kubeconfig import Kubeconfig

NAMESPACE = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
GOOD: dict[str, tuple[int, Any]] = {
    "/version": (200, {"major": "1", "minor": "28+", "gitVersion": "v1.28.3"}),
    "/api/v1/namespaces/learners": (200, NAMESPACE),
}


def token(subject: str = "system:serviceaccount:learners:diloco-home") -> str:
    claims = {"sub": subject, "iat": 1_700_000_000, "exp": 4_000_000_000}
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.c2ln"


class ScriptedServer(ApiServer):
    """Answers from a table, and grants what a function allows."""

    def __init__(
        self, answers: Mapping[str, Any], allows: Callable[[dict[str, Any]], Any] = lambda _asked: True
    ) -> None:
        self.url = "https://west"
        self._answers = {**GOOD, **answers}
        self._allows = allows
        self.asked: list[dict[str, Any]] = []

    def get(self, path: str, *, timeout_seconds: float = 15.0, accept: str = "") -> Answer:  # noqa: ARG002  # as the base class
        answer = self._answers[path]
        if isinstance(answer, Exception):
            raise answer
        return Answer(answer[0], json.dumps(answer[1]).encode())

    def post(self, path: str, body: Mapping[str, Any], *, timeout_seconds: float = 15.0) -> Answer:  # noqa: ARG002  # as the base class
        asked = body["spec"]["resourceAttributes"]
        self.asked.append(asked)
        return Answer(201, json.dumps({"status": {"allowed": self._allows(asked)}}).encode())


def found(server: ApiServer, *, held: str | None = None) -> dict[str, Finding]:
    way = Kubeconfig(server="https://west", namespace="learners", token=held or token())
    return {one.what: one for one in of_server(server, way)}


def not_good(server: ApiServer) -> dict[str, Verdict]:
    return {what: one.verdict for what, one in found(server).items() if one.verdict is not Verdict.GOOD}


def test_a_server_where_all_is_well_has_nothing_to_note() -> None:
    assert not_good(ScriptedServer({})) == {}


def test_a_server_that_is_too_old_is_a_problem() -> None:
    finding = found(ScriptedServer({"/version": (200, {"major": "1", "minor": "27"})}))["version"]
    told = "https://west is Kubernetes 1.27; use 1.28 or later"
    assert (finding.verdict, finding.told) == (Verdict.PROBLEM, told)


@pytest.mark.parametrize("version", [{"major": "one"}, [], {}])
def test_what_is_no_api_server_is_asked_nothing_more(version: Any) -> None:
    server = ScriptedServer({"/version": (200, version)})
    (finding,) = found(server).values()
    assert finding.line.startswith("connection: https://west answers, but not as an API server; check the address")
    assert server.asked == []


def test_a_namespace_that_may_not_be_read_is_noted_once() -> None:
    def allows(asked: dict[str, Any]) -> bool:
        return bool(asked["resource"] != "namespaces")

    hidden = ForbiddenError("not permitted: namespaces")
    assert not_good(ScriptedServer({"/api/v1/namespaces/learners": hidden}, allows)) == {"namespaces": Verdict.NOTE}


def test_a_namespace_that_is_missing_is_a_problem() -> None:
    server = ScriptedServer({"/api/v1/namespaces/learners": (404, {})})
    assert not_good(server) == {"namespace": Verdict.PROBLEM}


@pytest.mark.parametrize("said", [False, None, "true", 1])
def test_only_what_is_granted_counts(said: object) -> None:
    problems = not_good(ScriptedServer({}, lambda asked: said if asked["verb"] == "patch" else True))
    assert "statefulsets.apps" in problems
    assert set(problems.values()) == {Verdict.PROBLEM}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UnauthorizedError("https://west rejects the credentials"), "make a new Secret"),
        (AwayError("no API server answers at https://west"), "check the address"),
        (ForbiddenError("not permitted: GET /version"), "ask the owner of that cluster"),
    ],
)
def test_what_makes_other_checks_pointless_is_the_only_one(error: Exception, told: str) -> None:
    assert list(found(ScriptedServer({"/version": error}))) == ["connection"]
    assert found(ScriptedServer({"/version": error}))["connection"].do.startswith(told)


def test_a_token_is_asked_for_its_own_account_only() -> None:
    server = ScriptedServer({})
    found(server)
    (asked,) = [one for one in server.asked if one.get("subresource") == "token"]
    assert asked["name"] == "diloco-home"


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
    server = ScriptedServer({}, lambda _asked: False)
    lines = [one.line for one in found(server, held=token(subject)).values()]
    assert not [line for line in lines if "rm -rf" in line or "$(id)" in line or "elsewhere" in line]
    assert any("have 'diloco cluster prepare learners' applied there" in line for line in lines)
    assert not [one for one in server.asked if one.get("subresource") == "token"]


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
    assert found(ScriptedServer({}), held="opaque")["token"].verdict is Verdict.NOTE
