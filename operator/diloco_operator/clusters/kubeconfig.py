"""Reads the kubeconfig of another cluster: an address, an authority and credentials, all inline.

What would run a program, read a file or reach another place as the operator is refused by its field: whoever may write
a Secret in a namespace must not get what only the operator may do. Pure. No error and no ``repr`` contains a secret.
"""

import re
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn
from urllib.parse import SplitResult, urlsplit

from diloco.spec.base import DNS_LABEL, HOST_NAME
from diloco.spec.document import read_document
from diloco.spec.errors import SpecError
from diloco_operator.clusters.pem import NoPemError, certificates_from, key_pair_from, validity
from diloco_operator.clusters.state import Credential, Expiring

MAXIMUM_BYTES: Final = 128 * 1024
"""The largest kubeconfig that is read; the one context that is used takes a few KiB."""

_LONGEST_TOKEN: Final = 16 * 1024
_LONGEST_SHOWN: Final = 63
_LONGEST_NAMESPACE: Final = 63
_LONGEST_HOST: Final = 253
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]+")  # RFC 6750, b68token
_FIELD: Final = re.compile(r"[A-Za-z-]{1,40}")
_FLATTEN: Final = "kubectl config view --minify --flatten --raw"
_INLINE: Final = "use an inline token, or client-certificate-data and client-key-data"

_CLUSTER_FIELDS: Final = {
    "server",
    "certificate-authority-data",
    "tls-server-name",
    "insecure-skip-tls-verify",
    "disable-compression",
    "extensions",
}
_USER_FIELDS: Final = {"token", "client-certificate-data", "client-key-data", "extensions"}
_REFUSED: Final = {
    "certificate-authority": "is a path to a file of the operator; use certificate-authority-data",
    "proxy-url": "is a way through another place; remove it",
    "exec": f"is a program that the operator would run; {_INLINE}",
    "auth-provider": f"is a program that the operator would run; {_INLINE}",
    "tokenFile": "is a path to a file of the operator; use an inline token",
    "client-certificate": "is a path to a file of the operator; use client-certificate-data",
    "client-key": "is a path to a file of the operator; use client-key-data",
    "username": f"is basic authentication, which API servers no longer know; {_INLINE}",
    "password": f"is basic authentication, which API servers no longer know; {_INLINE}",
    "as": "is another user to act as; use that user's own credentials",
    "as-uid": "is another user to act as; use that user's own credentials",
    "as-groups": "is another user to act as; use that user's own credentials",
    "as-user-extra": "is another user to act as; use that user's own credentials",
}


class KubeconfigError(ValueError):
    """A kubeconfig that is not used. The text is one line, ``FIELD: VALUE is ...; use ...``, without a secret."""


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """The way to another cluster, and to one namespace of it."""

    server: str
    """``https://HOST[:PORT][/PATH]``, without a slash at the end."""
    namespace: str
    """Where the objects of jobs go."""
    server_name: str = ""
    """The name that its certificate must have; empty: the server's host."""
    authority: str = field(default="", repr=False)
    """The certificates that its own must come from, as PEM; no others are trusted."""
    token: str = field(default="", repr=False)
    """The bearer token; empty: a client certificate is used."""
    certificate: str = field(default="", repr=False)
    """The client's certificate and those between it and its authority, as PEM; empty: a token is used."""
    key: str = field(default="", repr=False)
    """The key of `certificate`, as unencrypted PEM."""

    @property
    def certificate_life(self) -> Expiring | None:
        """From when to when the client certificate is valid; None: there is none."""
        if not self.certificate:
            return None
        return Expiring(Credential.CERTIFICATE, *validity(self.certificate))

    @property
    def place(self) -> tuple[str, str]:
        """Server and namespace: two kubeconfigs with the same ones lead to the same objects."""
        return self.server, self.namespace


def parse(content: bytes) -> Kubeconfig:
    """Read the current context of a kubeconfig.

    Raises:
        KubeconfigError: it is refused; the text names the first field that is wrong.
    """
    document = _document(content)
    for name, wanted in (("apiVersion", "v1"), ("kind", "Config")):
        if document.get(name, wanted) != wanted:
            _fail(name, f"{_shown(document[name])} is not that of a kubeconfig; use {wanted}")
    current = document.get("current-context")
    if not isinstance(current, str) or not current:
        _fail("current-context", "is missing; use the name of one of the contexts")
    at, context = _named(document, "contexts", "context", current, "current-context")
    namespace = context.get("namespace")
    if not isinstance(namespace, str) or not namespace:
        _fail(f"{at}.namespace", "is missing; use the namespace that the job's objects go to")
    if len(namespace) > _LONGEST_NAMESPACE or re.fullmatch(DNS_LABEL, namespace) is None:
        _fail(f"{at}.namespace", f"{_shown(namespace)} is not a namespace's name; use lower-case letters and digits")
    return _way(document, at, context, namespace)


def _way(document: dict[str, Any], at: str, context: dict[str, Any], namespace: str) -> Kubeconfig:
    chosen: dict[str, str] = {}
    for kind in ("cluster", "user"):
        name = context.get(kind)
        if not isinstance(name, str) or not name:
            _fail(f"{at}.{kind}", f"is missing; use the name of one of the {kind}s")
        chosen[kind] = name
    cluster_at, cluster = _named(document, "clusters", "cluster", chosen["cluster"], f"{at}.cluster")
    user_at, user = _named(document, "users", "user", chosen["user"], f"{at}.user")
    _only(cluster_at, cluster, _CLUSTER_FIELDS)
    _only(user_at, user, _USER_FIELDS)
    if cluster.get("insecure-skip-tls-verify") not in (None, False):
        _fail(
            f"{cluster_at}.insecure-skip-tls-verify",
            "is an instruction to trust any server; remove it, and use certificate-authority-data",
        )
    token, certificate, key = _credentials(user_at, user)
    return Kubeconfig(
        server=_server(f"{cluster_at}.server", cluster.get("server")),
        namespace=namespace,
        server_name=_server_name(f"{cluster_at}.tls-server-name", cluster.get("tls-server-name")),
        authority=_authority(f"{cluster_at}.certificate-authority-data", cluster.get("certificate-authority-data")),
        token=token,
        certificate=certificate,
        key=key,
    )


def _document(content: bytes) -> dict[str, Any]:
    if len(content) > MAXIMUM_BYTES:
        _fail("kubeconfig", f"{len(content)} bytes is more than {MAXIMUM_BYTES // 1024} KiB; use {_FLATTEN}")
    try:
        document = read_document(content.decode("utf-8-sig"), "line")
    except UnicodeDecodeError:
        _fail("kubeconfig", f"is not UTF-8 text; use {_FLATTEN}")
    except SpecError as error:
        # Its message may quote the line, and with it a token or a key.
        where = error.problems[0].path.replace(":", " ") if ":" in error.problems[0].path else "the text"
        _fail("kubeconfig", f"{where} is not YAML that can be read; use {_FLATTEN}")
    if not isinstance(document, dict):
        _fail("kubeconfig", f"is not a mapping; use {_FLATTEN}")
    return document


def _named(document: dict[str, Any], plural: str, singular: str, name: str, by: str) -> tuple[str, dict[str, Any]]:
    """The path and content of the entry of a list that has this name; `by` is the field that names it."""
    entries = document.get(plural)
    if not isinstance(entries, list):
        _fail(plural, "is missing or not a list; use a list of mappings with a name each")
    found = [index for index, one in enumerate(entries) if isinstance(one, dict) and one.get("name") == name]
    if not found:
        _fail(by, f"{_shown(name)} is not in {plural}; use a name that is there")
    if len(found) > 1:
        _fail(f"{plural}[{found[1]}].name", f"{_shown(name)} is there twice; remove one")
    at, content = f"{plural}[{found[0]}].{singular}", entries[found[0]].get(singular)
    if not isinstance(content, dict):
        _fail(at, "is missing or not a mapping; use a mapping")
    return at, content


def _only(at: str, given: dict[str, Any], known: set[str]) -> None:
    for name, value in given.items():
        if name in _REFUSED and value not in (None, ""):
            _fail(f"{at}.{name}", _REFUSED[name])
    for name in given:
        if name not in known and name not in _REFUSED:
            told = name if _FIELD.fullmatch(name) else "?"  # a token in the wrong place is not shown
            _fail(f"{at}.{told}", f"is not a field that is known here; use only {', '.join(sorted(known))}")


def _server(at: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        _fail(at, "is missing; use https://HOST:PORT")
    parts = _split(value)
    # Nothing of the address is shown before it is known to hold no password.
    if parts is None or "@" in value or not value.isprintable() or " " in value:
        _fail(at, "is not an address of a server alone; use https://HOST:PORT")
    if parts.scheme != "https":
        _fail(at, f"{_shown(value)} is not an address with https; use https://HOST:PORT")
    if parts.query or parts.fragment:
        _fail(at, "is an address with a query or a fragment; use https://HOST:PORT")
    return value.rstrip("/")


def _split(address: str) -> SplitResult | None:
    try:
        parts = urlsplit(address)
        usable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if usable else None


def _server_name(at: str, value: object) -> str:
    if value in (None, ""):
        return ""
    if not isinstance(value, str) or len(value) > _LONGEST_HOST or re.fullmatch(HOST_NAME, value) is None:
        _fail(at, f"{_shown(value)} is not a host's name; use the name in the server's certificate, or remove it")
    return value


def _authority(at: str, value: object) -> str:
    if value in (None, ""):
        _fail(at, "is missing; use the base64 text of the certificates that the server's own comes from")
    try:
        return certificates_from(value)
    except NoPemError as error:
        _fail(at, f"{error}; use {_FLATTEN}")


def _credentials(at: str, user: dict[str, Any]) -> tuple[str, str, str]:
    token, certificate = user.get("token"), user.get("client-certificate-data")
    if token not in (None, "") and certificate not in (None, ""):
        _fail(f"{at}.client-certificate-data", "is there beside a token; use one of them")
    if certificate not in (None, ""):
        try:
            return "", *key_pair_from(certificate, user.get("client-key-data"))
        except NoPemError as error:
            _fail(f"{at}.{error.part}", f"{error}; use {_FLATTEN}")
    if token in (None, ""):
        _fail(f"{at}.token", f"is missing; {_INLINE}")
    if not isinstance(token, str) or len(token) > _LONGEST_TOKEN or _TOKEN.fullmatch(token.strip()) is None:
        _fail(f"{at}.token", "is not a bearer token; use the text that `kubectl create token` prints")
    return token.strip(), "", ""


def _shown(value: object) -> str:
    """A value that is no secret, in one short line. What is too long for it may be a token in the wrong place."""
    if not isinstance(value, str):
        return f"a {type(value).__name__}"
    if len(value) > _LONGEST_SHOWN:
        return f"a text of {len(value)} characters"
    return value if value.isprintable() else repr(value)


def _fail(at: str, message: str) -> NoReturn:
    raise KubeconfigError(f"{at}: {message}") from None
