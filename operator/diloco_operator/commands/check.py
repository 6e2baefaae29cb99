"""``diloco cluster check``: whether a Secret's kubeconfig is usable, and what its credentials may do, rule by rule."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from diloco.runtime.console import new_console
from diloco.runtime.process.exits import EXIT_OK, EXIT_UNEXPECTED
from diloco.spec.names.object_names import checked_name
from diloco_operator.cluster_state import DEFAULT_KEY, ClusterState
from diloco_operator.clusters.rules import RULES, OnlyObject, Permission, RoleScope, permissions
from diloco_operator.commands.findings import (
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
from diloco_operator.commands.shared import NEW_SECRET, CommandError, Context, Kubeconfig, access, run

if TYPE_CHECKING:
    from diloco_operator.api_server.api import Api
    from diloco_operator.clusters.kubeconfig import Kubeconfig as Way

_LARGEST_BYTES: Final = 4 << 20
"""Of a file with a Secret, which API servers limit to 1 MiB before base64 and copies in annotations (ours)."""
_ANSWER_BYTES: Final = 1 << 20
"""Of an answer of a server that somebody else's kubeconfig names, and which is asked only about itself."""
_AT_ONCE: Final = 8
"""Questions under way: over a link of 150 ms, all of them take about a second."""
_CHECK_ADDRESS: Final = (
    "check the address, and that this machine reaches it; the operator must reach it from home's cluster"
)


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
    key: Annotated[str, typer.Option("--key", help="Key of the kubeconfig in the Secret.")] = DEFAULT_KEY,
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
        raise CommandError("SECRET-FILE: use either a file or --secret NAME")
    if secret_file is not None:
        held = _from_file(secret_file)
    else:
        held = run(_from_home(str(secret), namespace, context, kubeconfig))
    findings = run(_findings(held, key))
    new_console().print(findings_table(findings))
    for finding in findings:
        if finding.verdict is not Verdict.GOOD:
            typer.echo(f"diloco: {finding.line}", err=True)
    failed = any(finding.verdict is Verdict.PROBLEM for finding in findings)
    raise typer.Exit(EXIT_UNEXPECTED if failed else EXIT_OK)


async def _findings(held: Mapping[str, Any], key: str) -> list[Finding]:
    """The checks in order; none after the first that makes the others pointless."""
    from diloco_operator import labels
    from diloco_operator.api_server.api import Api
    from diloco_operator.api_server.limits import REMOTE
    from diloco_operator.api_server.transport import Transport
    from diloco_operator.clusters.kubeconfig import KubeconfigError, parse
    from diloco_operator.clusters.remote import server_of

    found = [of_labels(held)]
    try:
        way = parse(content(held, key))
        server = server_of(way)
    except NoKubeconfigError as error:
        return [*found, error.finding]
    except KubeconfigError as error:
        return [*found, Finding("kubeconfig", Verdict.PROBLEM, str(error), NEW_SECRET)]
    found.append(of_kubeconfig(way))
    limits = replace(REMOTE, checks_objects=False, answer_bytes=_ANSWER_BYTES)
    async with Transport(server) as transport:
        return [*found, *[one async for one in of_server(Api(transport, labels.FIELD_MANAGER, limits=limits), way)]]


async def of_server(api: "Api", way: "Way") -> AsyncIterator[Finding]:
    """The checks of a server and of what the credentials may do there; ``way``: the kubeconfig that leads to it."""
    from diloco_operator.api_server.errors import ApiError
    from diloco_operator.clusters.diagnose import diagnose, unsuitable_version
    from diloco_operator.clusters.tokens import TokenClaims

    claims = TokenClaims.of(way.token) if way.token else None
    # A ServiceAccount of another namespace cannot be granted its own token by a Role of this one.
    account = claims.account if claims is not None and claims.namespace == way.namespace else ""
    scope = RoleScope(way.namespace, safe_name(account))
    try:
        version = await api.version()
        if (unsuitable := unsuitable_version(version, way.server)) is None:
            told = str(version.get("gitVersion") or "of an unknown version")
            yield Finding("version", Verdict.GOOD, f"Kubernetes {told}")
        elif unsuitable.state is ClusterState.UNSUITABLE:
            yield Finding("version", Verdict.PROBLEM, unsuitable.message, "use another cluster, or upgrade this one")
        else:  # whoever it is gets no more requests with the token
            yield Finding("connection", Verdict.PROBLEM, unsuitable.message, _CHECK_ADDRESS)
            return
        granted = await _granted(api, scope)
        life = way.certificate_life
        expires = claims.expires if claims is not None else life.expires if life is not None else None
        renewed = bool(way.token) and any(one.rule.only is OnlyObject.ACCOUNT and has for one, has in granted.items())
        yield of_expiry("token" if way.token else "certificate", expires, datetime.now(UTC), renewed=renewed)
        for rule in RULES:
            if any(one.rule == rule for one in granted):
                yield of_rule(rule, granted, scope)
        for finding in await _of_namespace(api, way.namespace):
            yield finding
    except ApiError as error:
        found = diagnose(error, way.server)
        if found is None:
            do = "ask the owner of that cluster to allow what it allows every ServiceAccount by default"
            yield Finding("connection", Verdict.PROBLEM, str(error), do)
        else:
            do = NEW_SECRET if found.state is ClusterState.UNAUTHORIZED else _CHECK_ADDRESS
            yield Finding("connection", Verdict.PROBLEM, found.message, do)


async def _granted(api: "Api", scope: RoleScope) -> dict[Permission, bool]:
    """Every permission, and whether the server grants it."""
    from diloco_operator.api_server.errors import Call

    free = asyncio.Semaphore(_AT_ONCE)

    async def granted(one: Permission) -> bool:
        verb, _, resource = str(one).partition(" ")
        async with free:
            return await api.may(Call(verb, resource, scope.namespace, one.name))

    asked = permissions(scope)
    return dict(zip(asked, await asyncio.gather(*map(granted, asked)), strict=True))


async def _of_namespace(api: "Api", name: str) -> tuple[Finding, ...]:
    from diloco_operator.api_server.errors import ForbiddenError, NotFoundError
    from diloco_operator.api_server.kinds import NAMESPACE

    try:
        return (of_namespace(await api.get(NAMESPACE, None, name), name),)
    except NotFoundError:
        return (of_namespace(None, name),)
    except ForbiddenError:
        return ()  # the rule about it says so


def _from_file(name: str) -> Mapping[str, Any]:
    """A Secret from a file.

    Raises:
        CommandError: it cannot be read, or is not one Secret. The text quotes nothing of it.
        OSError: there is no such file.
    """
    from diloco.spec.errors import SpecError
    from diloco.spec.reading.document import read_document

    if name == "-":
        data = sys.stdin.buffer.read(_LARGEST_BYTES + 1)
    else:
        with Path(name).open("rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
    if len(data) > _LARGEST_BYTES:
        raise CommandError(f"SECRET-FILE: {name} is larger than {_LARGEST_BYTES >> 20} MiB; use a file with a Secret")
    try:
        found = read_document(data.decode(), name)
    except UnicodeDecodeError:
        raise CommandError(f"SECRET-FILE: {name} is not text; use a Secret in YAML or JSON") from None
    except SpecError:  # its text may quote a line of the Secret
        raise CommandError(f"SECRET-FILE: {name} is not one document of YAML; use one Secret") from None
    if not isinstance(found, dict) or found.get("kind") != "Secret":
        raise CommandError(f"SECRET-FILE: {name} is not a Secret; use what 'diloco cluster kubeconfig' prints")
    return found


async def _from_home(
    name: str, namespace: str | None, context: str | None, kubeconfig: Path | None
) -> Mapping[str, Any]:
    from diloco_operator.api_server.errors import NotFoundError
    from diloco_operator.api_server.kinds import SECRET

    checked_name("--secret", name, "Secret")
    if namespace is not None:
        checked_name("--namespace", namespace, "namespace")
    async with access(kubeconfig, context) as home:
        where = namespace or home.namespace
        try:
            return await home.api.get(SECRET, where, name)
        except NotFoundError:
            raise CommandError(
                f"--secret: {name} is not in namespace {where} of {home.url}; use --namespace or another name"
            ) from None
