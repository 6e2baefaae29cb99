"""Which server and namespace a kubeconfig gives, and the error if it gives none. No request is sent here."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from diloco.cli.live.cluster_access import AwayError, ClusterError, connect

CONFIG: dict[str, Any] = yaml.safe_load("""
apiVersion: v1
kind: Config
clusters: [{name: east, cluster: {server: "https://127.0.0.1:1"}}]
users:
- {name: me, user: {token: abc}}
- {name: plugin, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: not-there}}}
contexts:
- {name: plain, context: {cluster: east, user: me}}
- {name: ml, context: {cluster: east, user: me, namespace: ml}}
- {name: cloud, context: {cluster: east, user: plugin}}
""")


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump({**CONFIG, "current-context": "plain"}))
    return path


def test_the_current_context_counts_and_its_namespace_is_default(kubeconfig: Path) -> None:
    server = connect(kubeconfig, None, {})
    assert (server.url, server.context, server.namespace) == ("https://127.0.0.1:1", "plain", "default")


def test_a_context_can_be_chosen_and_brings_its_namespace(kubeconfig: Path) -> None:
    server = connect(None, "ml", {"KUBECONFIG": str(kubeconfig)})
    assert (server.context, server.namespace) == ("ml", "ml")


def test_several_files_are_one_kubeconfig_and_missing_ones_are_let_pass(kubeconfig: Path) -> None:
    more = kubeconfig.with_name("more")
    more.write_text(yaml.safe_dump({**CONFIG, "contexts": [{**CONFIG["contexts"][1], "name": "other"}]}))
    files = f"{kubeconfig.with_name('missing')}:{kubeconfig}:{more}"
    assert connect(None, "other", {"KUBECONFIG": files}).namespace == "ml"


def test_a_server_that_is_not_there_is_told_at_once(kubeconfig: Path) -> None:
    with pytest.raises(AwayError, match=r"^no API server answers at https://127.0.0.1:1 \(Connection refused\)$"):
        connect(kubeconfig, None, {}).get("/version")


@pytest.mark.parametrize(
    ("content", "context", "told"),
    [
        ({**CONFIG}, None, "no current context; use --context with one of: cloud, ml, plain"),
        ({**CONFIG}, "west", "no context 'west'; use --context with one of: cloud, ml, plain"),
        ({**CONFIG}, "cloud", "no credentials for context cloud ([Errno 2] No such file or directory: 'not-there')"),
        ("just text", None, "not a kubeconfig"),
        ([], None, "not a kubeconfig"),
        (b"", None, "file is empty"),
        (b"\xff\xfe\x00", None, "not a kubeconfig"),
    ],
)
def test_a_kubeconfig_that_does_not_do_is_one_line(
    tmp_path: Path, content: object, context: str | None, told: str
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_bytes(content if isinstance(content, bytes) else yaml.safe_dump(content).encode())
    with pytest.raises(ClusterError) as raised:
        connect(path, context, {})
    assert str(path) in str(raised.value)
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


def test_where_there_is_no_kubeconfig_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"no kubeconfig: .*nowhere does not exist; use --kubeconfig FILE"):
        connect(None, None, {"KUBECONFIG": str(tmp_path / "nowhere")})


def test_without_the_kubernetes_client_the_error_tells_how_to_install_it(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes.client", None)  # as where it is not installed: importing it fails
    with pytest.raises(ClusterError, match=r"pip install '\.\[operator\]' in a clone$"):
        connect(kubeconfig, None, {})
