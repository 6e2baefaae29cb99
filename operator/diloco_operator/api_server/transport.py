"""HTTP to one API server: its address, whom to trust, and as whom to speak.

Redirections are not followed, and nothing is read from the environment: both may lead to any place that the operator
can reach, and the server may belong to others.
"""

import asyncio
import json
import ssl
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
from yarl import URL


async def _nobody() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Server:
    """An API server, and how to prove who one is."""

    url: str
    """``https://HOST[:PORT][/PATH]``."""
    tls: ssl.SSLContext = field(repr=False)
    """With the client's certificate, if there is one."""
    authorization: Callable[[], Awaitable[str]] = field(default=_nobody, repr=False)
    """Awaited before each request for its header; empty: the certificate is enough."""
    name: str | None = None
    """The name in its certificate; None: the host."""
    proxy: str | None = None


class Transport:
    """Connections to one server, until it is closed."""

    def __init__(self, server: Server) -> None:
        """Needs a running event loop."""
        self._server = server
        self._session = aiohttp.ClientSession(
            # Each watch keeps a connection, eight for a namespace: with a limit, other requests would wait for ever.
            connector=aiohttp.TCPConnector(ssl=server.tls, limit=0),
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        # Also if what awaits this is cancelled meanwhile.
        await asyncio.shield(self.close())

    async def request(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        body: Any,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 # aiohttp's
    ) -> aiohttp.ClientResponse:
        """Send a request; `path` is with its query. The answer, once its head has come."""
        authorization = await self._server.authorization()
        if self._session.closed:
            raise aiohttp.ClientConnectionError("the connections are closed")
        return await self._session.request(
            method,
            URL(f"{self._server.url}{path}", encoded=True),
            headers={
                **headers,
                "User-Agent": "diloco-operator",
                **({"Authorization": authorization} if authorization else {}),
            },
            data=None if body is None else json.dumps(body),
            timeout=timeout,
            allow_redirects=False,
            server_hostname=self._server.name,
            proxy=self._server.proxy,
        )


def tls_of(authority: str, certificate: str = "", key: str = "") -> ssl.SSLContext:
    """Trust in these authorities and in no others, with a client certificate if there is one; all of it PEM.

    Raises:
        ssl.SSLError: a certificate or key is not usable.
    """
    context = ssl.create_default_context(cadata=authority)
    # kubectl does not ask for it either, and the authorities of some managed clusters do not meet it.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if certificate:
        # It can be loaded only from a file; only this user can read it, and it is removed at once.
        with tempfile.NamedTemporaryFile() as file:
            file.write(f"{certificate}\n{key}".encode())
            file.flush()
            context.load_cert_chain(file.name, password="")
    return context
