"""Sends requests to a server whose address, authority and credentials are values and not files.

It has the two methods of a kubernetes.aio ApiClient that `Api` uses. That one reads proxies and passwords from the
environment and follows redirections, which may lead to any place that the operator can reach.
"""

import json
import ssl
import tempfile
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import aiohttp
from yarl import URL

READ_BYTES: Final = 1 << 21
"""Of a watch, a line may take twice this: the largest object has 1.5 MiB."""


@dataclass(frozen=True, slots=True)
class Address:
    """A server, and how to prove who one is."""

    server: str
    """``https://HOST[:PORT][/PATH]``."""
    server_name: str = ""
    """The name in its certificate; empty: the host."""
    authority: str = field(default="", repr=False)
    """PEM of the certificates that its own comes from."""
    token: str = field(default="", repr=False)
    certificate: str = field(default="", repr=False)
    """PEM; empty: there is a token."""
    key: str = field(default="", repr=False)


class _Prepared(NamedTuple):
    method: str
    url: str
    headers: dict[str, str]
    body: str | None


@dataclass(frozen=True, slots=True)
class _Answer:
    response: aiohttp.ClientResponse


class InlineClient:
    """Connections to one server, until it is closed."""

    def __init__(self, address: Address) -> None:
        """Needs a running event loop.

        Raises:
            ssl.SSLError: a certificate or key is not usable.
        """
        self._server = address.server
        self._token = address.token
        self._name = address.server_name or None
        connector = aiohttp.TCPConnector(ssl=tls(address))
        self._session = aiohttp.ClientSession(
            connector=connector, trust_env=False, cookie_jar=aiohttp.DummyCookieJar(), read_bufsize=READ_BYTES
        )

    async def close(self) -> None:
        """Close its connections."""
        await self._session.close()

    async def param_serialize(  # noqa: PLR0913 # the ApiClient's
        self,
        method: str,
        path: str,
        *,
        query_params: list[tuple[str, str]],
        header_params: dict[str, str],
        body: Any,
        auth_settings: list[str],  # noqa: ARG002 # the ApiClient's; there is one way here
    ) -> _Prepared:
        """Everything about a request but its time limits."""
        headers = {**header_params, "User-Agent": "diloco-operator"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        query = f"?{urlencode(query_params)}" if query_params else ""
        return _Prepared(method, f"{self._server}{path}{query}", headers, None if body is None else json.dumps(body))

    async def call_api(  # the ApiClient's
        self, method: str, url: str, headers: dict[str, str], body: str | None, *, _request_timeout: Any
    ) -> _Answer:
        """Send a request. A redirection is returned as it is."""
        return _Answer(
            await self._session.request(
                method,
                URL(url, encoded=True),
                headers=headers,
                data=body,
                timeout=_request_timeout,
                allow_redirects=False,
                server_hostname=self._name,
            )
        )


def tls(address: Address) -> ssl.SSLContext:
    """Trust in the address's authority and in no other, with its client certificate if it has one.

    Raises:
        ssl.SSLError: a certificate or key is not usable.
    """
    context = ssl.create_default_context(cadata=address.authority)
    # kubectl does not ask for it either, and the authorities of some managed clusters do not meet it.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if address.certificate:
        # It can be loaded only from a file; only this user can read it, and it is removed at once.
        with tempfile.NamedTemporaryFile() as file:
            file.write(f"{address.certificate}\n{address.key}".encode())
            file.flush()
            context.load_cert_chain(file.name, password="")
    return context
