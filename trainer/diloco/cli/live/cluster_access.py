"""Access to the API server that kubectl would use: kubeconfig, context and namespace by kubectl's rules, and requests.

Every error is one line that names the server, file or context.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diloco.cli.live import pod_port
from diloco.runtime.json_text import JsonError, parse_json

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, Configuration
_CONNECT_SECONDS = 5.0
_JSON = "application/json"
_LIMIT_BYTES = 256 << 20
"""Most bytes of an answer (ours): ten thousand jobs with their statuses are well below it."""
_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class ClusterError(RuntimeError):
    """The cluster cannot be reached or refuses the request; the text is one line."""


class ForbiddenError(ClusterError):
    """The user lacks the permission; the text is the API server's own."""


class UnauthorizedError(ClusterError):
    """The server does not accept the credentials."""


class AwayError(ClusterError):
    """No answer, or only that it is not available at present: a later attempt may succeed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's answer."""

    status: int
    """HTTP status."""
    body: bytes = field(repr=False)

    @property
    def said(self) -> dict[str, Any]:
        """The body, if it is JSON: the requested object, or a ``metav1.Status`` with the reason of a refusal."""
        try:
            value = parse_json(self.body)
        except JsonError:
            return {}
        return value if isinstance(value, dict) else {}


class ApiServer:
    """An API server, with a user's credentials."""

    def __init__(
        self,
        client: "ApiClient",
        *,
        context: str,
        namespace: str,
    ) -> None:
        self._client = client
        self.context = context
        """The context's name in the kubeconfig; empty in a pod."""
        self.namespace = namespace
        """The default namespace."""
        self.url = str(client.configuration.host)
        self._credentials = f"context {context}" if context else "this pod's service account"

    def get(self, path: str, *, timeout_seconds: float = 15.0, accept: str = _JSON) -> Answer:
        """GET ``path``, which must need no escaping; a 404 is returned too.

        Raises:
            ForbiddenError: the user lacks the permission.
            AwayError: no answer, or one of 429 and 5xx from the API server itself.
            UnauthorizedError: the server does not accept the credentials.
        """
        return self._checked("GET", path, None, timeout_seconds, accept)

    def delete(self, path: str, options: Mapping[str, Any], *, timeout_seconds: float = 15.0) -> Answer:
        """DELETE with ``DeleteOptions``; for errors see ``get``. A 404 and 409 are returned."""
        return self._checked("DELETE", path, options, timeout_seconds, _JSON)

    def ask_pod(self, path: str, port: int, page: str, *, timeout_seconds: float) -> Answer:
        """GET ``page`` from a port of the pod at ``path``; for errors see ``get``."""
        _, url, headers, *_ = self._client.param_serialize(
            "GET", f"{path}/portforward", query_params=[("ports", port)], auth_settings=["BearerToken"]
        )
        try:
            found = pod_port.ask(self._client.configuration, url, headers, page, timeout_seconds, _LIMIT_BYTES)
        except OSError as error:
            raise AwayError(f"no answer from {path.rpartition('/')[2]} ({_plain(error)})") from error
        answer = Answer(found.status, found.body)
        return self._judged(answer, f"GET {path}/portforward") if found.refused else answer

    def _checked(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_seconds: float, accept: str
    ) -> Answer:
        return self._judged(self._request(method, path, body, timeout_seconds, accept), f"{method} {path}")

    def _judged(self, answer: Answer, request: str) -> Answer:
        status, told = answer.status, answer.said.get("message", "")
        if status == HTTPStatus.UNAUTHORIZED:
            raise UnauthorizedError(f"{self.url} rejects the credentials of {self._credentials}")
        if status == HTTPStatus.FORBIDDEN:
            raise ForbiddenError(f"not permitted: {told or request}")
        if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise AwayError(f"{self.url} answered with HTTP {status}{f': {told}' if told else ''}")
        return answer

    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_seconds: float, accept: str
    ) -> Answer:
        import urllib3
        from kubernetes.client.exceptions import ApiException

        headers = {"Accept": accept, **({"Content-Type": _JSON} if body is not None else {})}
        request = self._client.param_serialize(
            method, path, header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        try:
            response = self._client.call_api(*request, _request_timeout=(_CONNECT_SECONDS, timeout_seconds)).response
            content = response.read(_LIMIT_BYTES, decode_content=True)
            response.release_conn()
        except ApiException as error:  # the client raises it for a certificate that TLS rejects
            raise AwayError(f"{self.url}: no secure connection ({_last_line(error.reason)})") from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            # A proxy that listens may itself get no answer from the API server.
            slow = isinstance(error, urllib3.exceptions.ReadTimeoutError)
            what = "no answer in time from" if slow else "no API server answers at"
            raise AwayError(f"{what} {self.url} ({_plain(error)})") from error
        return Answer(response.status, content)


def connect(kubeconfig: Path | None, context: str | None, environment: Mapping[str, str]) -> ApiServer:
    """The server of ``kubeconfig``, else of ``$KUBECONFIG``, else of ``~/.kube/config``, else of the pod this runs in.

    Nothing is sent yet, unless the kubeconfig names a program that fetches credentials.

    Raises:
        ClusterError: the client library is missing, or none of these names a server.
    """
    configuration = _new_configuration()
    from kubernetes.client import ApiClient

    where = str(kubeconfig) if kubeconfig else environment.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    files = [Path(part).expanduser() for part in where.split(os.pathsep) if part]
    if not any(file.exists() for file in files):
        if kubeconfig is None and context is None and environment.get("KUBERNETES_SERVICE_HOST"):
            _take_pods(configuration)
            return ApiServer(ApiClient(configuration), context="", namespace=_pods_namespace())
        flag = "--kubeconfig " if kubeconfig else ""
        raise ClusterError(f"no kubeconfig: {flag}{where} does not exist; use --kubeconfig FILE or set KUBECONFIG")
    name, namespace = _take_file(configuration, where, context)
    return ApiServer(ApiClient(configuration), context=name, namespace=namespace)


def _new_configuration() -> "Configuration":
    """The client's settings, without a server.

    Raises:
        ClusterError: the client library is missing.
    """
    try:
        from kubernetes.client import Configuration
    except ImportError:
        raise ClusterError("clusters need the Kubernetes client: run pip install '.[operator]' in a clone") from None
    configuration = Configuration()
    # A refused connection is reported at once, not after three attempts with a warning each.
    configuration.retries = False
    return configuration


def _take_file(configuration: "Configuration", where: str, context: str | None) -> tuple[str, str]:
    """Read server and credentials of a context into ``configuration``; returns its name and its namespace."""
    import yaml
    from kubernetes.config import ConfigException, load_kube_config
    from kubernetes.config.kube_config import KubeConfigMerger

    try:
        merged = KubeConfigMerger(where).config.value  # type: ignore[no-untyped-call]  # the client's
        namespaces = {each["name"]: each["context"].safe_get("namespace") or "default" for each in merged["contexts"]}
        name = context or merged.get("current-context")
        if name not in namespaces:
            wanted = f"no context {name!r}" if name else "no current context"
            raise ClusterError(
                f"{where}: {wanted}; use --context with one of: {', '.join(sorted(namespaces)) or 'none'}"
            )
        with _words_of_credential_programs() as words:
            load_kube_config(  # type: ignore[no-untyped-call]  # the client's
                where, name, client_configuration=configuration, persist_config=False
            )
    except ConfigException as error:
        raise ClusterError(f"{where}: {_last_line(str(error))}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError, AttributeError, TypeError, KeyError) as error:
        raise ClusterError(f"{where}: not a kubeconfig ({_plain(error)})") from error
    if words:
        raise ClusterError(f"{where}: no credentials for context {name} ({_last_line(words[-1])})")
    return name, namespaces[name]


@contextmanager
def _words_of_credential_programs() -> Iterator[list[str]]:
    """Collect what the client only logs when a credential program fails; it would go on without credentials."""
    words: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: words.append(record.getMessage())  # type: ignore[method-assign]  # shorter than a class
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield words
    finally:
        root.removeHandler(handler)


def _take_pods(configuration: "Configuration") -> None:
    from kubernetes.config import ConfigException, load_incluster_config

    try:
        load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]  # the client's
    except (ConfigException, OSError) as error:
        raise ClusterError(
            f"there is no kubeconfig, and this pod's service account cannot be used ({_plain(error)})"
        ) from error


def _pods_namespace() -> str:
    try:
        return _ACCOUNT_NAMESPACE.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"


def _plain(error: BaseException) -> str:
    """The innermost cause in one line: urllib3 wraps a refused connection several times, with addresses of objects."""
    while cause := error.__cause__ or error.__context__ or getattr(error, "reason", None):
        if not isinstance(cause, BaseException):
            break
        error = cause
    strerror = error.strerror if isinstance(error, OSError) else None
    return _last_line(strerror or str(error)) or type(error).__name__


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
