"""``diloco cluster kubeconfig``: the Secret by which home's operator reaches its namespace of a remote cluster."""

import base64
import os
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from diloco.cli.cluster_access import ApiServer, Trust, connect
from diloco.cli.cluster_options import (
    CLUSTER_LABEL,
    DEFAULT_ACCOUNT,
    KUBECONFIG_KEY,
    ClusterInputError,
    Context,
    Kubeconfig,
    ServiceAccount,
    checked_name,
    needs_operator,
)
from diloco.cli.yaml_text import yaml_text
from diloco.spec.quantities import parse_duration

if TYPE_CHECKING:
    from diloco_operator.clusters.kubeconfig import Kubeconfig as ReadKubeconfig

_SHORTEST_SECONDS: Final = 600
"""API servers grant no shorter token."""
_LONGEST_SECONDS: Final = 365 * 86_400
"""Longest life that is asked for (ours), as the operator has it."""
_CLUSTER, _USER, _CONTEXT = "remote", "home", "remote"
_HEADER: Final = """\
# Holds a credential: the token of ServiceAccount {namespace}/{account} at {server}.
# The token expires at {expires:%Y-%m-%d %H:%M} UTC. The operator renews it where the Role allows that.
# Apply it at home, in the namespace of the jobs.
"""
_NO_TOKEN: Final = "none"  # noqa: S105  # in place of one
_TOLERATED: Final = 0.95
"""A share of the asked life; servers round."""


@dataclass(frozen=True, slots=True)
class Way:
    """The way to a namespace of a remote cluster, without credentials."""

    server: str
    namespace: str
    authorities: str
    """Certificates in PEM that the server's own comes from."""
    server_name: str = ""
    """The name that the server's certificate must have; empty: that in its address."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token as a server granted it."""

    text: str = field(repr=False)
    expires: datetime


def kubeconfig(
    name: Annotated[str, typer.Option("--name", metavar="SECRET", help="Name of the Secret, as regions refer to it.")],
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace of the learners. Default: the context's.")
    ] = None,
    service_account: ServiceAccount = DEFAULT_ACCOUNT,
    context: Context = None,
    file: Kubeconfig = None,
    duration: Annotated[
        str, typer.Option("--duration", metavar="TIME", help="Life of the token, such as 12h or 30d.")
    ] = "30d",
    server: Annotated[
        str | None,
        typer.Option("--server", metavar="URL", help="Address for home, if it is not that in the context."),
    ] = None,
    certificate_authority: Annotated[
        Path | None,
        typer.Option(
            "--certificate-authority",
            metavar="FILE",
            help="Authorities of the server's certificate, in PEM. Default: the context's.",
        ),
    ] = None,
) -> None:
    """Print the Secret with which home's operator reaches a namespace of a remote cluster.

    Asks the remote cluster for a token of the ServiceAccount that 'diloco
    cluster prepare' made, with your own rights there (create on
    serviceaccounts/token). The Secret holds that token, the server's address,
    its certificate authority and the namespace. Apply it at home.

    \b
    Examples:
      diloco cluster kubeconfig --context west -n learners --name west > west.yaml
      diloco cluster kubeconfig -n learners --name west | kubectl --context home apply -f -
      diloco cluster kubeconfig -n learners --name west --server https://192.0.2.7:6443
      diloco cluster kubeconfig -n learners --name west --duration 12h --service-account team-a
    """
    checked_name("--name", name, "Secret")
    checked_name("--service-account", service_account, "ServiceAccount")
    if namespace is not None:
        checked_name("--namespace", namespace, "namespace")
    seconds = parse_life(duration)
    needs_operator()
    api = connect(file, context, os.environ)
    trust, where, address = api.trust, namespace or api.namespace, server or api.url
    way = Way(address, where, authorities(certificate_authority, trust, api.context), trust.server_name)
    # Before there is a token that would be of no use. What else is in the files, such as a key, is left out.
    way = replace(way, authorities=read_by_operator(kubeconfig_text(way, _NO_TOKEN)).authority)
    token = request_token(api, where, service_account, seconds)
    text = kubeconfig_text(way, token.text)
    read_by_operator(text)
    header = _HEADER.format(namespace=where, account=service_account, server=address, expires=token.expires)
    typer.echo(header + yaml_text(secret(name, text)), nl=False)
    granted = (token.expires - datetime.now(UTC)).total_seconds()
    if granted < _TOLERATED * seconds:
        typer.echo(
            f"diloco: the server grants a token of {granted / 3600:.1f} h instead of {seconds / 3600:.1f} h", err=True
        )


def parse_life(text: str) -> int:
    """Seconds of ``12h``, ``30d`` or ``90min``.

    Raises:
        QuantityError, ClusterInputError: it is not a duration, or not within 10 minutes and a year.
    """
    seconds = parse_duration("--duration", text, longest_seconds=_LONGEST_SECONDS)
    if seconds < _SHORTEST_SECONDS:
        raise ClusterInputError(f"--duration: {text!r} is too short; use at least 10min")
    return round(seconds)


def request_token(api: ApiServer, namespace: str, account: str, seconds: int) -> Token:
    """A token of a ServiceAccount, for the API server itself (authentication.k8s.io/v1, TokenRequest).

    Raises:
        ClusterError: the server does not answer or refuses.
        ClusterInputError: there is no such ServiceAccount, or the answer holds no token.
    """
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": seconds},
    }
    answer = api.post(f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", body)
    if answer.status == HTTPStatus.NOT_FOUND:
        raise ClusterInputError(
            f"--service-account: {account} is not in namespace {namespace} of {api.url}; use the one that "
            f"'diloco cluster prepare {namespace}' makes, or apply that first"
        )
    status = answer.said.get("status")
    if answer.status >= HTTPStatus.MULTIPLE_CHOICES or not isinstance(status, dict):
        # A Status has its text in `message`; a TokenRequest, which holds a token, has none.
        why = answer.said.get("message", "the answer holds no token")
        raise ClusterInputError(f"{api.url} gives no token of {namespace}/{account}: {why}")
    text, expires = status.get("token"), status.get("expirationTimestamp")
    try:
        return Token(str(text or ""), datetime.fromisoformat(str(expires)).astimezone(UTC))
    except ValueError:
        raise ClusterInputError(f"{api.url} gives a token of {namespace}/{account} without its end") from None


def read_by_operator(kubeconfig: str) -> "ReadKubeconfig":
    """A kubeconfig as the operator reads it.

    Raises:
        ClusterInputError: it is refused; the text has no secret.
    """
    from diloco_operator.clusters.kubeconfig import KubeconfigError, parse

    try:
        return parse(kubeconfig.encode())
    except KubeconfigError as error:
        raise ClusterInputError(f"the operator would refuse this kubeconfig: {error}") from None


def kubeconfig_text(way: Way, token: str) -> str:
    """A kubeconfig with one context and everything inline."""
    encoded = base64.b64encode(way.authorities.encode()).decode()
    cluster = {"server": way.server, "certificate-authority-data": encoded}
    if way.server_name:
        cluster["tls-server-name"] = way.server_name
    return yaml_text(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": _CLUSTER, "cluster": cluster}],
            "users": [{"name": _USER, "user": {"token": token}}],
            "contexts": [
                {"name": _CONTEXT, "context": {"cluster": _CLUSTER, "user": _USER, "namespace": way.namespace}}
            ],
            "current-context": _CONTEXT,
        }
    )


def secret(name: str, kubeconfig: str) -> dict[str, Any]:
    """The Secret as the operator looks for it."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": {CLUSTER_LABEL: "true"}},
        "type": "Opaque",
        "stringData": {KUBECONFIG_KEY: kubeconfig},
    }


def authorities(file: Path | None, trust: Trust, context: str) -> str:
    """The certificates that the server's own comes from, in PEM: of a file, else of the context.

    Raises:
        ClusterInputError: there are none, or the context skips the check.
        OSError: the file cannot be read.
    """
    if file is not None:
        try:
            return file.read_text(encoding="ascii")
        except UnicodeDecodeError:
            raise ClusterInputError(f"--certificate-authority: {file} is not PEM text; use a file in PEM") from None
    if not trust.verified or not trust.authorities:
        lacks = (
            "skips the check of the server's certificate" if not trust.verified else "names no certificate authority"
        )
        raise ClusterInputError(
            f"--context: {context or 'this pod'} {lacks}; use --certificate-authority FILE: the operator trusts no "
            "other authority"
        )
    return trust.authorities
