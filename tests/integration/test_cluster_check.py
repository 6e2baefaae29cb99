"""``diloco cluster prepare``, ``kubeconfig`` and ``check`` on a real API server, with its RBAC and its tokens."""

import json
from pathlib import Path

import pytest
import yaml

from diloco_operator.clusters.rules import RULES
from testbed.api_server.server import ApiServer
from testbed.kind.waiting import wait_until
from tests.support.remote_namespace import Done, Program, Remote

pytestmark = pytest.mark.processes


@pytest.fixture
def server(job_server: ApiServer) -> ApiServer:
    return job_server


@pytest.fixture
def program(server: ApiServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.delenv("COLUMNS", raising=False)  # a pipe's lines are as wide as needed
    return Program(server, capsys)


@pytest.fixture
def remote(server: ApiServer, program: Program, tmp_path: Path, request: pytest.FixtureRequest) -> Remote:
    return Remote(server, program, request.node.name.replace("_", "-")[:60].strip("-"), tmp_path)


_PODS = (
    "selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}"
)
OBJECTS = (
    f"{{apiVersion: apps/v1, kind: StatefulSet, metadata: {{name: one}}, spec: {{serviceName: x, {_PODS}}}}}",
    "{apiVersion: v1, kind: Secret, metadata: {name: one}}",
    "{apiVersion: v1, kind: ConfigMap, metadata: {name: one}}",
    "{apiVersion: v1, kind: Service, metadata: {name: one}, spec: {clusterIP: None, ports: [{port: 1}]}}",
    "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: one}, spec: {podSelector: {}}}",
)
"""One object of each kind that home makes."""


def other_namespace(server: ApiServer) -> str:
    server.kubectl("create", "namespace", "elsewhere", check=False)
    return "elsewhere"


def rows(done: Done) -> list[tuple[str, str]]:
    """Each check with its result. A resource has a check for each of its rules."""
    return [(line.split()[0], line.split()[1]) for line in done.out.splitlines()[1:] if not line.startswith("Pod ")]


def results(done: Done) -> dict[str, str]:
    """The result of each check."""
    return dict(rows(done))


def test_all_is_granted_after_prepare(remote: Remote) -> None:
    wait_until(lambda: remote.check().code == 0, "the Role is in force")
    done = remote.check()
    assert (done.code, done.err) == (0, "")
    assert set(results(done).values()) == {"ok"}
    assert f"namespace {remote.namespace} enforces restricted" in done.out
    assert "in 30 days; the operator renews it" in done.out


def test_the_secret_and_nothing_else_has_the_token(remote: Remote, program: Program) -> None:
    assert len(remote.token) > 100
    done = remote.check()
    assert remote.token not in done.out + done.err
    broken = remote.changed(token=remote.token, exec={"command": "x"})
    done = remote.check(broken)
    assert done.code == 1
    assert remote.token not in done.out + done.err
    not_yaml = remote.written(remote.secret.read_text() + f"\n  }} {remote.token}")
    done = program.run("check", str(not_yaml))
    assert done.code == 2
    assert remote.token not in done.out + done.err


def test_each_rule_that_is_taken_away_is_named(remote: Remote) -> None:
    for rule in RULES:
        remote.set_rules(rule)
        resource, slash, subresource = rule.resource.partition("/")
        name = f"{resource}.{rule.group}" if rule.group else f"{resource}{slash}{subresource}"

        def only_that_one(name: str = name) -> bool:
            return [what for what, result in rows(remote.check()) if result != "ok"] == [name]

        wait_until(only_that_one, f"{name} alone is missing")
        done = remote.check()
        assert done.code == (0 if rule.is_optional else 1)
        (line,) = done.err.splitlines()
        assert line.startswith(f"diloco: {name}: ")
        assert f"have 'diloco cluster prepare {remote.namespace}" in line


def test_home_may_do_what_it_needs_there_and_nothing_elsewhere(remote: Remote, server: ApiServer) -> None:
    wait_until(lambda: remote.check().code == 0, "the Role is in force")
    elsewhere = f"--namespace={other_namespace(server)}"
    for text in OBJECTS:
        kind = yaml.safe_load(text)["kind"]
        assert remote.as_home("apply", "--server-side", "--filename=-", text=text)[0] == 0
        assert remote.as_home("get", kind, "one") == (0, "")
        assert remote.as_home("delete", kind, "one") == (0, "")
        assert "forbidden" in remote.as_home("apply", "--server-side", "--filename=-", elsewhere, text=text)[1]
        assert "forbidden" in remote.as_home("get", kind, elsewhere)[1]
    for verb in ("run x --image=i", "get nodes", "get serviceaccounts", "get role", "exec x -- x"):
        assert "forbidden" in remote.as_home(*verb.split())[1], verb
    assert remote.as_home("create", "token", "diloco-home")[0] == 0
    server.kubectl("create", "serviceaccount", "other", f"--namespace={remote.namespace}")
    assert "forbidden" in remote.as_home("create", "token", "other")[1]


def test_credentials_of_a_deleted_account_are_rejected(remote: Remote) -> None:
    remote.server.kubectl("delete", "serviceaccount", "diloco-home", f"--namespace={remote.namespace}")
    wait_until(lambda: "rejects the credentials of the kubeconfig" in remote.check().err, "401")
    done = remote.check()
    assert done.code == 1
    assert done.err.rstrip().endswith("; make a new Secret with 'diloco cluster kubeconfig'")


def test_a_namespace_that_does_not_exist_is_told_before_a_token_is(program: Program) -> None:
    done = program.there("kubeconfig", "--name", "west", "--namespace", "nowhere")
    assert (done.code, done.out) == (2, "")
    assert "--service-account: diloco-home is not in namespace nowhere" in done.err
    assert "use the one that 'diloco cluster prepare nowhere' makes" in done.err


def test_another_address_than_the_contexts_can_be_given(remote: Remote) -> None:
    port = remote.server.url.rsplit(":", 1)[1]
    address = f"https://localhost:{port}"
    secret = remote.new_secret("--server", address)
    wait_until(lambda: remote.check(secret).code == 0, "the Role is in force")
    assert f"{address}, namespace {remote.namespace}, a token" in remote.check(secret).out


def test_a_secret_at_home_is_checked_by_its_name(remote: Remote, program: Program) -> None:
    remote.server.kubectl("apply", f"--namespace={remote.namespace}", f"--filename={remote.secret}")
    arguments = ("check", "--secret", "west", "--namespace", remote.namespace)
    wait_until(lambda: program.there(*arguments).code == 0, "the Role is in force")
    done = program.there("check", "--secret", "east", "--namespace", remote.namespace)
    assert done.code == 2
    assert f"--secret: east is not in namespace {remote.namespace}" in done.err


def test_a_client_certificate_is_checked_too(remote: Remote, server: ApiServer) -> None:
    minified = ("config", "view", "--minify", "--flatten", "--raw", "--output=json")
    flat = json.loads(server.kubectl(*minified, kubeconfig=server.kubeconfig_for("carol")).stdout)
    secret = remote.changed(**flat["users"][0]["user"])
    server.bind("diloco-home", "carol", remote.namespace)
    assert "certificate" in results(remote.check(secret))
    assert "serviceaccounts/token" not in results(remote.check(secret))
