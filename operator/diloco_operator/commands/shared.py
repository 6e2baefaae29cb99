"""Flags that several commands of ``diloco cluster`` share, and their way to the API server that kubectl would use."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

if TYPE_CHECKING:
    from diloco_operator.api_server.api import Api
    from diloco_operator.api_server.connection import Connection

DEFAULT_ACCOUNT: Final = "diloco-home"
"""The ServiceAccount that ``prepare`` makes and ``kubeconfig`` uses, unless another is named."""
NEW_SECRET: Final = "make a new Secret with 'diloco cluster kubeconfig'"  # noqa: S105  # no password
MOST_PAGES: Final = 1000
"""Most pages of a list (ours): half a million objects. A server that always names a next page is not followed on."""

Context = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig. Default: the current one.")]
Kubeconfig = Annotated[
    Path | None,
    typer.Option("--kubeconfig", metavar="FILE", help="Kubeconfig. Default: $KUBECONFIG, or ~/.kube/config."),
]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace. Default: the context's.")]
ServiceAccount = Annotated[
    str,
    typer.Option("--service-account", metavar="NAME", help="ServiceAccount that the operator uses in that namespace."),
]
_Result = TypeVar("_Result")


class CommandError(RuntimeError):
    """A command cannot go on: its input is unusable, or a server does not do what is asked. The text is one line."""


@dataclass(frozen=True, slots=True)
class Access:
    """An API server, with a user's credentials."""

    api: "Api"
    connection: "Connection"
    namespace: str
    """The default namespace."""

    @property
    def url(self) -> str:
        """Of the server."""
        return str(self.connection.configuration.host)


@asynccontextmanager
async def access(kubeconfig: Path | None, context: str | None) -> AsyncIterator[Access]:
    """The server that kubectl would use, within an ``async with``.

    Raises:
        NoConnectionError: there is none.
    """
    from diloco_operator import labels
    from diloco_operator.api_server.api import Api
    from diloco_operator.api_server.connection import connect
    from diloco_operator.api_server.limits import Limits

    connection = await connect(kubeconfig, context)
    async with connection.open() as transport:
        api = Api(transport, labels.FIELD_MANAGER, limits=Limits(most_pages=MOST_PAGES))
        yield Access(api, connection, connection.namespace)


def run(work: Coroutine[None, None, _Result]) -> _Result:
    """What a command's work results in.

    Raises:
        CommandError: a server cannot be reached or refuses.
    """
    from diloco_operator.api_server.connection import NoConnectionError
    from diloco_operator.api_server.errors import ApiError

    try:
        return asyncio.run(work)
    except (ApiError, NoConnectionError) as error:
        raise CommandError(str(error)) from error
