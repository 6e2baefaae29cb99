"""``diloco cluster kubeconfig``: the Secret by which home's operator reaches its namespace of a remote cluster."""

import base64
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from diloco.runtime.yaml_text import yaml_text
from diloco.spec.names.object_names import checked_name
from diloco.spec.quantities import parse_duration
from diloco_operator.cluster_state import CLUSTER_LABEL, DEFAULT_KEY
from diloco_operator.commands.shared import (
    DEFAULT_ACCOUNT,
    Access,
    CommandError,
    Context,
    Kubeconfig,
    ServiceAccount,
    access,
    run,
)

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
    text = run(_text(file, context, _Wanted(name, namespace, service_account, seconds, server, certificate_authority)))
    typer.echo(text, nl=False)


@dataclass(frozen=True, slots=True)
class _Wanted:
    name: str
    namespace: str | None
    account: str
    seconds: int
    server: str | None
    authority: Path | None


async def _text(file: Path | None, context: str | None, wanted: _Wanted) -> str:
    async with access(file, context) as server:
        where, address = wanted.namespace or server.namespace, wanted.server or server.url
        name = str(server.connection.configuration.tls_server_name or "")
        way = Way(address, where, authorities(wanted.authority, server, context), name)
        # Before there is a token that would be of no use. What else is in the files, such as a key, is left out.
        way = replace(way, authorities=read_by_operator(kubeconfig_text(way, _NO_TOKEN)).authority)
        token, expires = await request_token(server, where, wanted.account, wanted.seconds)
    text = kubeconfig_text(way, token)
    read_by_operator(text)
    granted = (expires - datetime.now(UTC)).total_seconds()
    if granted < _TOLERATED * wanted.seconds:
        short = f"of {granted / 3600:.1f} h instead of {wanted.seconds / 3600:.1f} h"
        typer.echo(f"diloco: the server grants a token {short}", err=True)
    header = _HEADER.format(namespace=where, account=wanted.account, server=address, expires=expires)
    return header + yaml_text(secret(wanted.name, text))


def parse_life(text: str) -> int:
    """Seconds of ``12h``, ``30d`` or ``90min``.

    Raises:
        QuantityError, CommandError: it is not a duration, or not within 10 minutes and a year.
    """
    seconds = parse_duration("--duration", text, longest_seconds=_LONGEST_SECONDS)
    if seconds < _SHORTEST_SECONDS:
        raise CommandError(f"--duration: {text!r} is too short; use at least 10min")
    return round(seconds)


async def request_token(server: Access, namespace: str, account: str, seconds: int) -> tuple[str, datetime]:
    """A token of a ServiceAccount, and when it expires.

    Raises:
        ApiError: the server does not answer or refuses.
        CommandError: there is no such ServiceAccount, or the token does not say when it ends.
    """
    from diloco_operator.api_server.errors import NotFoundError
    from diloco_operator.clusters.tokens import TokenClaims

    try:
        token = await server.api.token(namespace, account, seconds)
    except NotFoundError:
        raise CommandError(
            f"--service-account: {account} is not in namespace {namespace} of {server.url}; use the one that "
            f"'diloco cluster prepare {namespace}' makes, or apply that first"
        ) from None
    claims = TokenClaims.of(token)
    if claims is None:
        raise CommandError(f"{server.url} gives a token of {namespace}/{account} without its end")
    return token, claims.expires


def read_by_operator(kubeconfig: str) -> "ReadKubeconfig":
    """A kubeconfig as the operator reads it.

    Raises:
        CommandError: it is refused; the text has no secret.
    """
    from diloco_operator.clusters.kubeconfig import KubeconfigError, parse

    try:
        return parse(kubeconfig.encode())
    except KubeconfigError as error:
        raise CommandError(f"the operator would refuse this kubeconfig: {error}") from None


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
        "stringData": {DEFAULT_KEY: kubeconfig},
    }


def authorities(file: Path | None, server: Access, context: str | None) -> str:
    """The certificates that the server's own comes from, in PEM: of a file, else of the context.

    Raises:
        CommandError: there are none, or the context skips the check.
        OSError: the file cannot be read.
    """
    configuration = server.connection.configuration
    chosen = file or (Path(configuration.ssl_ca_cert) if configuration.ssl_ca_cert else None)
    if file is None and (not configuration.verify_ssl or chosen is None):
        skips = "skips the check of the server's certificate"
        lacks = skips if not configuration.verify_ssl else "names no certificate authority"
        raise CommandError(
            f"--context: {context or 'the current one'} {lacks}; use --certificate-authority FILE: the operator trusts "
            "no other authority"
        )
    try:
        return chosen.read_text(encoding="ascii") if chosen is not None else ""
    except UnicodeDecodeError:
        raise CommandError(f"--certificate-authority: {chosen} is not PEM text; use a file in PEM") from None
