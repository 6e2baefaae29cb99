"""A cluster's API server as tests look at it: objects as plain dicts, and pages of pods.

A test looks several times a second. A kubectl for each look would take more of the machine than what is looked at.
"""

import json
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import urllib3
import websocket
from kubernetes import client, config

from testbed.kind.commands import CommandFailedError

_TIMEOUT_SECONDS: Final = 60.0
"""On a busy machine an API server may take long to answer."""
_CORE: Final = "api/v1"
_GROUPS: Final = {
    "apis/apps/v1": ("controllerrevisions", "deployments", "replicasets", "statefulsets"),
    "apis/coordination.k8s.io/v1": ("leases",),
    "apis/diloco.dev/v1alpha1": ("dilocojobs",),
    "apis/discovery.k8s.io/v1": ("endpointslices",),
    "apis/kueue.x-k8s.io/v1beta2": ("workloads",),
    "apis/networking.k8s.io/v1": ("networkpolicies",),
    "apis/policy/v1": ("poddisruptionbudgets",),
    "apis/storage.k8s.io/v1": ("storageclasses",),
}
_GROUP_OF: Final = {kind: group for group, kinds in _GROUPS.items() for kind in kinds}
"""Of kinds outside the core."""
_PAGES_PORT: Final = 8080
_PROTOCOL: Final = "v4.channel.k8s.io"
_DATA, _PORT_FRAME_BYTES = 0, 3
"""The channel of a forwarded port's bytes. Each channel begins with a frame that has its number and the port's."""
_NO_ANSWER: Final = 0, ""


class Api:
    """The API server of a kubeconfig with a client certificate, on a connection that stays open."""

    def __init__(self, kubeconfig: Path) -> None:
        self._settings = client.Configuration()
        config.load_kube_config(str(kubeconfig), client_configuration=self._settings)  # type: ignore[no-untyped-call]
        self._client = client.ApiClient(self._settings)

    def get(self, kind: str, name: str, namespace: str = "") -> dict[str, Any]:
        """An object. ``kind`` is its plural, as in a URL; a kind without namespaces takes none.

        Raises:
            CommandFailedError: there is none of this name, or no answer.
        """
        return self._get(f"{_path(kind, namespace)}/{name}")

    def items(self, kinds: str, namespace: str = "", selector: str = "", fields: str = "") -> list[dict[str, Any]]:
        """All objects of kinds, which commas separate; those of every namespace if ``namespace`` is empty.

        Raises:
            CommandFailedError: there is no such kind, or no answer.
        """
        found = []
        for kind in kinds.split(","):
            listed = self._get(_path(kind, namespace), labelSelector=selector, fieldSelector=fields)
            # A list says once what its items are.
            shared = {"apiVersion": listed["apiVersion"], "kind": listed["kind"].removesuffix("List")}
            found += [shared | item for item in listed["items"]]
        return found

    def page(self, namespace: str, pod: str, path: str) -> tuple[int, str]:
        """The HTTP status and text of a pod's page; 0 and empty: no answer.

        The port is forwarded from within the pod, as a NetworkPolicy may keep the API server's proxy out.
        """
        server = str(self._settings.host).replace("https://", "wss://")
        url = f"{server}{_path('pods', namespace)}/{pod}/portforward?ports={_PAGES_PORT}"
        tls = {
            "ca_certs": self._settings.ssl_ca_cert,
            "certfile": self._settings.cert_file,
            "keyfile": self._settings.key_file,
        }
        try:
            stream = websocket.create_connection(url, _TIMEOUT_SECONDS, sslopt=tls, subprotocols=[_PROTOCOL])
            try:
                stream.send_binary(bytes([_DATA]) + f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                return _answer(stream)
            finally:
                stream.shutdown()  # type: ignore[no-untyped-call]
        except (websocket.WebSocketException, OSError):
            return _NO_ANSWER

    def _get(self, path: str, **query: str) -> dict[str, Any]:
        given = [(name, value) for name, value in query.items() if value]
        request = self._client.param_serialize("GET", path, query_params=given)
        words = ("GET", path, *query.values())
        try:
            answer = self._client.call_api(*request, _request_timeout=_TIMEOUT_SECONDS).response
            said = answer.read(decode_content=True).decode()
            answer.release_conn()
        except (client.ApiException, urllib3.exceptions.HTTPError) as error:
            raise CommandFailedError(words, -1, str(error)) from None
        if answer.status != HTTPStatus.OK:
            raise CommandFailedError(words, answer.status, said)
        found: dict[str, Any] = json.loads(said)
        return found


def _path(kind: str, namespace: str) -> str:
    within = f"namespaces/{namespace}/" if namespace else ""
    return f"/{_GROUP_OF.get(kind, _CORE)}/{within}{kind}"


def _answer(stream: websocket.WebSocket) -> tuple[int, str]:
    """An HTTP answer that comes through a forwarded port."""
    received = b""
    while frame := stream.recv():
        assert isinstance(frame, bytes)
        if len(frame) == _PORT_FRAME_BYTES and not received:
            continue
        if frame[0] != _DATA:
            break
        received += frame[1:]
        head, end, body = received.partition(b"\r\n\r\n")
        if end and len(body) >= int(head.lower().partition(b"content-length:")[2].split()[0]):
            return int(head.split()[1]), body.decode()
    return _NO_ANSWER
