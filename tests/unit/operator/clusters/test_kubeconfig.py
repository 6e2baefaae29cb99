"""A kubeconfig is read only where everything is inline, and every refusal names the field and shows no secret."""

import base64
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from diloco_operator.cluster_state import Credential, Expiring
from diloco_operator.clusters.kubeconfig import MAXIMUM_BYTES, KubeconfigError, parse
from testbed.api_server.certificates import Authority, KeyPair
from tests.support.kubeconfigs import TOKEN, inline, kubeconfig, text

CLUSTER, USER, CONTEXT = "clusters[0].cluster", "users[0].user", "contexts[0].context"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture(scope="module")
def pair(authority: Authority) -> KeyPair:
    return authority.leaf("me", user="me")


@pytest.fixture
def config(authority: Authority) -> dict[str, Any]:
    return copy.deepcopy(kubeconfig(authority.certificate))


def refusal(config: object) -> str:
    with pytest.raises(KubeconfigError) as caught:
        parse(config if isinstance(config, bytes) else text(config))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    message = str(caught.value)
    assert "\n" not in message
    assert TOKEN not in message
    return message


def test_a_token_and_a_namespace_are_read(config: dict[str, Any], authority: Authority) -> None:
    read = parse(text(config))
    assert (read.server, read.namespace, read.token) == ("https://far.example:6443", "there", TOKEN)
    assert read.authority.split() == authority.certificate.read_text().split()
    assert (read.certificate, read.key, read.server_name) == ("", "", "")
    assert read.certificate_life is None
    assert read.place == ("https://far.example:6443", "there")


def test_a_client_certificate_is_read(config: dict[str, Any], pair: KeyPair) -> None:
    config["users"][0]["user"] = {
        "client-certificate-data": inline(pair.certificate),
        "client-key-data": inline(pair.key),
    }
    config["clusters"][0]["cluster"]["tls-server-name"] = "kubernetes"
    read = parse(text(config))
    assert read.certificate.split() == pair.certificate.read_text().split()
    found = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    life = Expiring(Credential.CERTIFICATE, found.not_valid_before_utc, found.not_valid_after_utc)
    assert read.certificate_life == life
    assert read.key.split() == pair.key.read_text().split()
    assert (read.token, read.server_name) == ("", "kubernetes")


def test_no_secret_is_in_its_repr(config: dict[str, Any], pair: KeyPair) -> None:
    assert TOKEN not in repr(parse(text(config)))
    data = {"client-certificate-data": inline(pair.certificate), "client-key-data": inline(pair.key)}
    config["users"][0]["user"] = data
    assert "BEGIN" not in repr(parse(text(config)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("exec", {"command": "touch", "args": ["/tmp/ran"], "apiVersion": "client.authentication.k8s.io/v1"}),
        ("auth-provider", {"name": "gcp", "config": {"cmd-path": "/bin/sh"}}),
        ("tokenFile", "/var/run/secrets/kubernetes.io/serviceaccount/token"),
        ("client-certificate", "/etc/me.crt"),
        ("client-key", "/etc/me.key"),
        ("username", "me"),
        ("password", TOKEN),
        ("as", "system:admin"),
        ("as-groups", ["system:masters"]),
        ("as-uid", "1"),
        ("as-user-extra", {"a": ["b"]}),
    ],
)
def test_what_runs_programs_or_reads_files_is_refused(config: dict[str, Any], field: object, value: object) -> None:
    config["users"][0]["user"][field] = value
    assert refusal(config).startswith(f"{USER}.{field}: is ")
    del config["users"][0]["user"]["token"]
    assert refusal(config).startswith(f"{USER}.{field}: is ")


NO_PEM = base64.b64encode(b"nothing").decode()


@pytest.mark.parametrize(
    ("place", "field", "value"),
    [
        (CLUSTER, "certificate-authority", "/etc/ca.crt"),
        (CLUSTER, "insecure-skip-tls-verify", True),
        (CLUSTER, "insecure-skip-tls-verify", "yes"),
        (CLUSTER, "proxy-url", "http://169.254.169.254"),
        (CLUSTER, "api-version", "v1"),
        *((CLUSTER, "certificate-authority-data", data) for data in (None, "", "%%%", NO_PEM, 5)),
        *((CONTEXT, "namespace", name) for name in (None, "", 5, "Upper", "a" * 64, "a/b", ["a"])),
        *((USER, "token", token) for token in ("", None, 5, "two words", "line\nbreak", "\u00e9", "a" * 20_000, ["a"])),
    ],
)
def test_what_cannot_be_used_is_refused(config: dict[str, Any], place: str, field: str, value: object) -> None:
    kind = place.rpartition(".")[2]
    config[f"{kind}s"][0][kind][field] = value
    message = refusal(config)
    assert message.startswith(f"{place}.{field}: ")
    assert "two" not in message


def test_what_is_refused_elsewhere_does_not_matter(config: dict[str, Any]) -> None:
    config["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = False
    config["users"].append({"name": "other", "user": {"exec": {"command": "aws"}}})
    assert parse(text(config)).token == TOKEN


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (None, "is missing"),
        ("http://far.example", "http://far.example is not an address with https"),
        ("https://", "is not an address"),
        ("https://me:hunter2@far.example", "is not an address"),
        ("https://far.example?a=hunter2", "is an address with a query"),
        ("https://far.example#a", "is an address with a query or a fragment"),
        ("https://far.example:99999", "is not an address"),
        ("https://far.example\nX: y", "is not an address"),
        (["https://far.example"], "is not what is expected here"),
        ("unix:///run/docker.sock", "is not an address"),
    ],
)
def test_a_server_is_an_address_with_https_alone(config: dict[str, Any], server: object, told: str) -> None:
    config["clusters"][0]["cluster"]["server"] = server
    message = refusal(config)
    assert message.startswith(f"{CLUSTER}.server: {told}")
    assert message.endswith("use https://HOST:PORT")
    assert "hunter2" not in message


def test_a_servers_path_is_kept(config: dict[str, Any]) -> None:
    config["clusters"][0]["cluster"]["server"] = "https://rancher.example/k8s/clusters/c-1/"
    assert parse(text(config)).server == "https://rancher.example/k8s/clusters/c-1"


def test_what_may_be_a_token_in_the_wrong_place_is_not_shown(config: dict[str, Any]) -> None:
    secret = "eyJhbGciOiJSUzI1NiIsImtpZCI6" * 4
    config["contexts"][0]["context"]["namespace"] = secret
    assert secret[:10] not in refusal(config)
    config["contexts"][0]["context"]["namespace"] = "there"
    config["users"][0]["user"][secret] = "x"
    assert secret[:10] not in refusal(config)


def test_a_line_break_after_a_token_is_dropped(config: dict[str, Any]) -> None:
    config["users"][0]["user"]["token"] = f"{TOKEN}\n"
    assert parse(text(config)).token == TOKEN


def encrypted(pair: KeyPair, _: KeyPair) -> str:
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    how = serialization.BestAvailableEncryption(b"passphrase")
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)
    return base64.b64encode(pem).decode()


@pytest.mark.parametrize(
    ("key", "told"),
    [
        (lambda *_: None, "is missing"),
        (lambda *_: "%%%", "is not base64 text"),
        (lambda pair, _: inline(pair.certificate), "is not base64 text of a PEM key"),
        (lambda _, other: inline(other.key), "is not the key of client-certificate-data"),
        (encrypted, "is an encrypted key"),
    ],
)
def test_a_certificate_needs_its_own_open_key(
    config: dict[str, Any], authority: Authority, pair: KeyPair, key: Callable[..., str | None], told: str
) -> None:
    made = key(pair, authority.leaf("other", user="other"))
    config["users"][0]["user"] = {"client-certificate-data": inline(pair.certificate), "client-key-data": made}
    assert refusal(config).startswith(f"{USER}.client-key-data: {told}")


def test_a_token_beside_a_certificate_is_refused(config: dict[str, Any], pair: KeyPair) -> None:
    config["users"][0]["user"]["client-certificate-data"] = inline(pair.certificate)
    assert refusal(config).startswith(f"{USER}.client-certificate-data: is there beside a token")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"current-context": None}, "current-context: is missing"),
        ({"current-context": "that"}, "current-context: that is not in contexts"),
        ({"contexts": None}, "contexts: is missing"),
        ({"contexts": [{"name": "this"}]}, "contexts[0].context: is missing"),
        ({"contexts": [None]}, "contexts[0]: is not what is expected here"),
        ({"contexts": [{"name": "this", "context": {"namespace": "a"}}]}, "contexts[0].context.cluster: is missing"),
        ({"clusters": []}, "contexts[0].context.cluster: far is not in clusters"),
        ({"users": "me"}, "users: is not what is expected here; use a list"),
        ({"users": [{"name": "me", "user": {}}] * 2}, "users[1].name: me is there twice"),
        ({"kind": "Pod"}, "kind: is not what is expected here; use Config"),
    ],
)
def test_what_is_missing_is_named(config: dict[str, Any], change: dict[str, Any], told: str) -> None:
    assert refusal({**config, **change}).startswith(told)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"- a",
        b"\xff\xfe",
        b"\0",
        f"token: {TOKEN}\ntoken: b".encode(),
        f"token: !!python/object/apply:os.system ['{TOKEN}']".encode(),
        b"[" * 10_000,
        b"a: &a [x,x,x,x,x,x,x,x,x]\n"
        + b"".join(
            f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n".encode()
            for before, name in zip("abcdefgh", "bcdefghi", strict=True)
        ),
        b"a" * (MAXIMUM_BYTES + 1),
    ],
)
def test_what_is_no_kubeconfig_at_all_is_one_line_without_its_content(content: bytes) -> None:
    assert refusal(content).startswith(("kubeconfig: ", "current-context: "))
