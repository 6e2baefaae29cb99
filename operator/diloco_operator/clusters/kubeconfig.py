"""Reads the kubeconfig of another cluster: an address, an authority and credentials, all inline.

What would run a program, read a file or reach another place as the operator is refused, as every field is that is not
here: whoever may write a Secret in a namespace must not get what only the operator may do. Pure. No error and no
``repr`` contains a secret.
"""

import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, NoReturn, TypeVar
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from diloco.spec.base import DNS_LABEL, HOST_NAME
from diloco.spec.errors import SpecError
from diloco.spec.reading.document import read_document
from diloco_operator.cluster_state import Credential, Expiring
from diloco_operator.clusters.pem import BadPemError, certificates_from, key_from, validity

MAXIMUM_BYTES: Final = 128 * 1024
"""The largest kubeconfig that is read; the one context that is used takes a few KiB."""

_LONGEST_TOKEN: Final = 16 * 1024
_LONGEST_SHOWN: Final = 63
_LONGEST_HOST: Final = 253
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]+")  # RFC 6750, b68token
_FIELD: Final = re.compile(r"[A-Za-z-]{1,40}")
_FLATTEN: Final = "kubectl config view --minify --flatten --raw"
_INLINE: Final = "an inline token, or client-certificate-data and client-key-data"


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


def _namespace(text: str) -> str:
    if len(text) > _LONGEST_SHOWN or re.fullmatch(DNS_LABEL, text) is None:
        raise ValueError(f"{_shown(text)} is not a namespace's name")
    return text


def _server(text: str) -> str:
    parts = _split(text)
    # Nothing of the address is shown before it is known to hold no password.
    if parts is None or "@" in text or not text.isprintable() or " " in text:
        raise ValueError("is not an address of a server alone")
    if parts.scheme != "https":
        raise ValueError(f"{_shown(text)} is not an address with https")
    if parts.query or parts.fragment:
        raise ValueError("is an address with a query or a fragment")
    return text.rstrip("/")


def _split(address: str) -> SplitResult | None:
    try:
        parts = urlsplit(address)
        usable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if usable else None


def _host(text: str) -> str:
    if len(text) > _LONGEST_HOST or re.fullmatch(HOST_NAME, text) is None:
        raise ValueError(f"{_shown(text)} is not a host's name")
    return text


def _token(text: str) -> str:
    if len(text) > _LONGEST_TOKEN or _TOKEN.fullmatch(text.strip()) is None:
        raise ValueError("is not a bearer token")
    return text.strip()


class _Part(BaseModel):
    """A mapping of a kubeconfig. A field's description is what to use in its place, for errors."""

    model_config = ConfigDict(
        extra="forbid", strict=True, hide_input_in_errors=True, alias_generator=lambda name: name.replace("_", "-")
    )


class _Cluster(_Part):
    server: Annotated[str, AfterValidator(_server)] = Field(description="https://HOST:PORT")
    certificate_authority_data: Annotated[str, AfterValidator(certificates_from)] = Field(
        description="the base64 text of the certificates that the server's own comes from"
    )
    tls_server_name: Annotated[str, AfterValidator(_host)] = Field("", description="the server's name or remove it")
    insecure_skip_tls_verify: Literal[False] = Field(
        default=False, description="certificate-authority-data in its place: any server would be trusted"
    )
    disable_compression: bool = Field(default=False, description="true or false")
    extensions: Any = None


class _User(_Part):
    token: Annotated[str, AfterValidator(_token)] = Field("", description="what `kubectl create token` prints")
    client_certificate_data: Annotated[str, AfterValidator(certificates_from)] = Field("", description=_FLATTEN)
    client_key_data: str = Field("", description=_FLATTEN)
    extensions: Any = None


class _Context(_Part):
    cluster: str = Field(description="the name of one of the clusters")
    user: str = Field(description="the name of one of the users")
    namespace: Annotated[str, AfterValidator(_namespace)] = Field(
        description="the namespace that the job's objects go to, in lower-case letters and digits"
    )
    extensions: Any = None


class _Named(BaseModel):
    """An entry of a list, of which only the chosen ones are looked into."""

    model_config = ConfigDict(extra="allow", strict=True, hide_input_in_errors=True)

    name: str = Field(description="a name")


class _Document(_Part):
    api_version: Literal["v1"] = Field("v1", alias="apiVersion", description="v1")
    kind: Literal["Config"] = Field("Config", description="Config")
    preferences: Any = None
    extensions: Any = None
    current_context: str = Field(description="the name of one of the contexts")
    contexts: list[_Named] = Field(description="a list of mappings with a name each")
    clusters: list[_Named] = Field(description="a list of mappings with a name each")
    users: list[_Named] = Field(description="a list of mappings with a name each")


_P = TypeVar("_P", bound=_Part)


def parse(content: bytes) -> Kubeconfig:
    """Read the current context of a kubeconfig.

    Raises:
        KubeconfigError: it is refused; the text names the first field that is wrong.
    """
    document = _checked(_Document, _read(content), "")
    at, context = _chosen(_Context, document.contexts, "context", document.current_context, "current-context")
    _, cluster = _chosen(_Cluster, document.clusters, "cluster", context.cluster, f"{at}.cluster")
    user_at, user = _chosen(_User, document.users, "user", context.user, f"{at}.user")
    return Kubeconfig(
        server=cluster.server,
        namespace=context.namespace,
        server_name=cluster.tls_server_name,
        authority=cluster.certificate_authority_data,
        token=user.token,
        certificate=user.client_certificate_data,
        key=_key(user_at, user),
    )


def _key(at: str, user: _User) -> str:
    if user.token and user.client_certificate_data:
        _fail(f"{at}.client-certificate-data", "is there beside a token; use one of them")
    if user.token:
        return ""
    if not user.client_certificate_data:
        _fail(f"{at}.token", f"is missing; use {_INLINE}")
    if not user.client_key_data:
        _fail(f"{at}.client-key-data", f"is missing; use {_FLATTEN}")
    try:
        return key_from(user.client_key_data, user.client_certificate_data)
    except BadPemError as error:
        _fail(f"{at}.client-key-data", f"{error}; use {_FLATTEN}")


def _read(content: bytes) -> dict[str, Any]:
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


def _chosen(model: type[_P], entries: list[_Named], singular: str, name: str, by: str) -> tuple[str, _P]:
    """The path and content of the entry of a list that has this name; `by` is the field that names it."""
    found = [index for index, one in enumerate(entries) if one.name == name]
    if not found:
        _fail(by, f"{_shown(name)} is not in {singular}s; use a name that is there")
    if len(found) > 1:
        _fail(f"{singular}s[{found[1]}].name", f"{_shown(name)} is there twice; remove one")
    at, content = f"{singular}s[{found[0]}].{singular}", (entries[found[0]].model_extra or {}).get(singular)
    if not isinstance(content, dict):
        _fail(at, "is missing or not a mapping; use a mapping")
    return at, _checked(model, content, f"{at}.")


def _checked(model: type[_P], content: dict[str, Any], at: str) -> _P:
    try:
        # Tools write some fields without a value.
        return model.model_validate({key: value for key, value in content.items() if value not in (None, "")})
    except ValidationError as error:
        _refuse(model, error, at)


def _refuse(model: type[_Part], error: ValidationError, at: str) -> NoReturn:
    problems = error.errors(include_url=False, include_input=False)
    fields = {one.alias or key: one for key, one in model.model_fields.items()}
    first = next((one for one in problems if one["loc"][0] not in fields), problems[0])
    name, *inner = first["loc"]
    if name not in fields:
        told = name if _FIELD.fullmatch(str(name)) else "?"  # a token in the wrong place is not shown
        text = "is not read: it may run a program, read a file, act as another user or lead elsewhere"
        _fail(f"{at}{told}", f"{text}; use only {', '.join(sorted(fields))}")
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in inner)
    why = {"missing": "is missing", "value_error": str(first.get("ctx", {}).get("error"))}
    text = why.get(first["type"], "is not what is expected here")
    _fail(f"{at}{name}{where}", f"{text}; use {fields[str(name)].description}")


def _shown(text: str) -> str:
    """A value that is no secret, in one short line. What is too long for it may be a token in the wrong place."""
    if len(text) > _LONGEST_SHOWN:
        return f"a text of {len(text)} characters"
    return text if text.isprintable() else repr(text)


def _fail(at: str, message: str) -> NoReturn:
    raise KubeconfigError(f"{at}: {message}") from None
