"""``diloco cluster check``: whether a Secret's kubeconfig is usable, and what its credentials may do, rule by rule."""

import os
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from diloco.cli.cluster_access import (
    ApiServer,
    ClusterError,
    ForbiddenError,
    UnauthorizedError,
    connect,
    connect_inline,
)
from diloco.cli.cluster_findings import (
    Finding,
    NoKubeconfigError,
    Verdict,
    content,
    findings_table,
    of_expiry,
    of_kubeconfig,
    of_labels,
    of_namespace,
    of_rule,
    safe_name,
)
from diloco.cli.cluster_options import (
    KUBECONFIG_KEY,
    ClusterInputError,
    Context,
    Kubeconfig,
    checked_name,
    needs_operator,
)
from diloco.cli.console import new_console
from diloco.runtime.exits import EXIT_OK, EXIT_UNEXPECTED

if TYPE_CHECKING:
    from diloco_operator.clusters.kubeconfig import Kubeconfig as Way
    from diloco_operator.clusters.rules import Permission, Place

_LARGEST_BYTES: Final = 4 << 20
"""Of a file with a Secret, which API servers limit to 1 MiB before base64 and copies in annotations (ours)."""
_ANSWER_SECONDS: Final = 5.0
"""As the operator waits."""
_AT_ONCE: Final = 8
"""Reviews under way: over a link of 150 ms, all of them take about a second."""
_CHECK_ADDRESS: Final = (
    "check the address, and that this machine reaches it; the operator must reach it from home's cluster"
)
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def check(
    secret_file: Annotated[
        str | None,
        typer.Argument(
            metavar="SECRET-FILE", help="A Secret in YAML or JSON; - is standard input.", show_default=False
        ),
    ] = None,
    secret: Annotated[
        str | None, typer.Option("--secret", metavar="NAME", help="A Secret at home, instead of a file.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace of --secret. Default: the context's.")
    ] = None,
    key: Annotated[str, typer.Option("--key", help="Key of the kubeconfig in the Secret.")] = KUBECONFIG_KEY,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Check the Secret for a remote cluster: connect with it, and ask for each right that the operator needs.

    --context and --kubeconfig are those of home, for --secret. A note is about
    something that regions run without; each problem gets a line that says what
    to do.

    \b
    Examples:
      diloco cluster check west.yaml
      diloco cluster check --secret west --namespace training
      diloco cluster kubeconfig --context west -n learners --name west | diloco cluster check -

    \b
    Exit code: 0 if regions can run there, 1 if not, 2 for an error in the input.
    """
    if (secret_file is None) == (secret is None):
        raise ClusterInputError("SECRET-FILE: use either a file or --secret NAME")
    needs_operator()
    held = _from_file(secret_file) if secret_file is not None else _from_home(secret, namespace, context, kubeconfig)
    findings = list(_findings(held, key))
    new_console().print(findings_table(findings))
    for finding in findings:
        if finding.verdict is not Verdict.GOOD:
            typer.echo(f"diloco: {finding.line}", err=True)
    failed = any(finding.verdict is Verdict.PROBLEM for finding in findings)
    raise typer.Exit(EXIT_UNEXPECTED if failed else EXIT_OK)


def _findings(held: Mapping[str, Any], key: str) -> Iterator[Finding]:
    """The checks in order; none after the first that makes the others pointless."""
    from diloco_operator.clusters.kubeconfig import KubeconfigError, parse

    yield of_labels(held)
    try:
        way = parse(content(held, key))
    except NoKubeconfigError as error:
        yield error.finding
        return
    except KubeconfigError as error:
        do = "make a new Secret with 'diloco cluster kubeconfig'"
        yield Finding("kubeconfig", Verdict.PROBLEM, str(error), do)
        return
    yield of_kubeconfig(way)
    with _opened(way) as server:
        yield from of_server(server, way)


def of_server(server: ApiServer, way: "Way") -> Iterator[Finding]:
    """The checks of a server and of what the credentials may do there; ``way``: the kubeconfig that leads to it."""
    from diloco_operator.clusters.diagnose import unsuitable_version
    from diloco_operator.clusters.rules import RULES, Only, Place
    from diloco_operator.clusters.state import ClusterState
    from diloco_operator.clusters.tokens import TokenClaims

    claims = TokenClaims.of(way.token) if way.token else None
    # A ServiceAccount of another namespace cannot be granted its own token by a Role of this one.
    account = claims.account if claims is not None and claims.namespace == way.namespace else ""
    place = Place(way.namespace, safe_name(account))
    try:
        version = server.get("/version", timeout_seconds=_ANSWER_SECONDS)
        if (unsuitable := unsuitable_version(version.said, server.url)) is None:
            yield Finding("version", Verdict.GOOD, f"Kubernetes {_version(version.said)}")
        elif unsuitable.state is ClusterState.UNSUITABLE:
            yield Finding("version", Verdict.PROBLEM, unsuitable.message, "use another cluster, or upgrade this one")
        else:  # whoever it is gets no more requests with the token
            yield Finding("connection", Verdict.PROBLEM, unsuitable.message, _CHECK_ADDRESS)
            return
        granted = _granted(server, place)
        renewed = any(one.rule.only is Only.ACCOUNT and bool(has) for one, has in granted.items())
        expires = claims.expires if claims is not None else _certificate_ends(way)
        what = "token" if way.token else "certificate"
        yield of_expiry(what, expires, datetime.now(UTC), renewed=renewed and bool(way.token))
        for rule in RULES:
            if any(one.rule == rule for one in granted):
                yield of_rule(rule, granted, place)
        yield from _of_namespace(server, way.namespace)
    except UnauthorizedError as error:
        yield Finding("connection", Verdict.PROBLEM, str(error), "make a new Secret with 'diloco cluster kubeconfig'")
    except ForbiddenError as error:
        do = "ask the owner of that cluster to allow what it allows every ServiceAccount by default"
        yield Finding("connection", Verdict.PROBLEM, str(error), do)
    except ClusterError as error:
        yield Finding("connection", Verdict.PROBLEM, str(error), _CHECK_ADDRESS)


def _granted(server: ApiServer, place: "Place") -> dict["Permission", bool | None]:
    """Every permission, and whether the server grants it."""
    from diloco_operator.clusters.rules import is_granted, permissions

    asked = permissions(place)

    def granted(one: "Permission") -> bool | None:
        return is_granted(server.post(_REVIEWS, one.review(), timeout_seconds=_ANSWER_SECONDS).said)

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return dict(zip(asked, threads.map(granted, asked), strict=True))


def _of_namespace(server: ApiServer, name: str) -> Iterator[Finding]:
    try:
        answer = server.get(f"/api/v1/namespaces/{name}", timeout_seconds=_ANSWER_SECONDS)
    except ForbiddenError:
        return  # the rule about it says so
    yield of_namespace(None if answer.status == HTTPStatus.NOT_FOUND else answer.said, name)


def _version(said: Mapping[str, Any]) -> str:
    return str(said.get("gitVersion") or "of an unknown version")


def _certificate_ends(way: "Way") -> datetime | None:
    """When the client certificate expires; None: a token is used."""
    if not way.certificate:
        return None
    from cryptography import x509

    return x509.load_pem_x509_certificates(way.certificate.encode())[0].not_valid_after_utc


@contextmanager
def _opened(way: "Way") -> Iterator[ApiServer]:
    """The server, with the credentials of a kubeconfig; a client's key is in a private folder meanwhile."""
    with TemporaryDirectory(prefix="diloco-") as folder:
        files = None
        if way.certificate:
            files = (Path(folder) / "tls.crt", Path(folder) / "tls.key")
            for file, text in zip(files, (way.certificate, way.key), strict=True):
                file.write_text(text, encoding="ascii")
        yield connect_inline(way, files)


def _from_file(name: str) -> Mapping[str, Any]:
    """A Secret from a file.

    Raises:
        ClusterInputError: it cannot be read, or is not one Secret. The text quotes nothing of it.
        OSError: there is no such file.
    """
    from diloco.spec.document import read_document
    from diloco.spec.errors import SpecError

    if name == "-":
        data = sys.stdin.buffer.read(_LARGEST_BYTES + 1)
    else:
        with Path(name).open("rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
    if len(data) > _LARGEST_BYTES:
        raise ClusterInputError(
            f"SECRET-FILE: {name} is larger than {_LARGEST_BYTES >> 20} MiB; use a file with a Secret"
        )
    try:
        found = read_document(data.decode(), name)
    except UnicodeDecodeError:
        raise ClusterInputError(f"SECRET-FILE: {name} is not text; use a Secret in YAML or JSON") from None
    except SpecError:  # its text may quote a line of the Secret
        raise ClusterInputError(f"SECRET-FILE: {name} is not one document of YAML; use one Secret") from None
    if not isinstance(found, dict) or found.get("kind") != "Secret":
        raise ClusterInputError(f"SECRET-FILE: {name} is not a Secret; use what 'diloco cluster kubeconfig' prints")
    return found


def _from_home(
    name: str | None, namespace: str | None, context: str | None, kubeconfig: Path | None
) -> Mapping[str, Any]:
    checked_name("--secret", str(name), "Secret")
    if namespace is not None:
        checked_name("--namespace", namespace, "namespace")
    home = connect(kubeconfig, context, os.environ)
    where = namespace or home.namespace
    answer = home.get(f"/api/v1/namespaces/{where}/secrets/{name}")
    if answer.status != HTTPStatus.OK:
        raise ClusterInputError(
            f"--secret: {name} is not in namespace {where} of {home.url}; use --namespace or another name"
        )
    return answer.said
