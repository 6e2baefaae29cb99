"""Errors of requests to an API server, as types, and the one place that chooses the type.

Callers of the API handle types, never status codes.
"""

import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar

import aiohttp


@dataclass(frozen=True, slots=True)
class Call:
    """One request, in the words of RBAC rules."""

    verb: str
    """get, list, watch, create, update, patch, delete."""
    resource: str
    """Plural and group, with the subresource: ``statefulsets.apps``, ``dilocojobs.diloco.dev/status``."""
    namespace: str | None = None
    name: str | None = None

    def __str__(self) -> str:
        place = "/".join(part for part in (self.namespace, self.name) if part)
        return f"{self.verb} {self.resource}{' ' if place else ''}{place}"


class ApiError(Exception):
    """A request that did not succeed."""

    reason: ClassVar[str] = "ApiError"
    """The label in metrics; one of a fixed set."""

    def __init__(
        self, call: Call, message: str, *, code: int = 0, retry_after_seconds: float = 0.0, about: str = ""
    ) -> None:
        """`code` is 0 if there was no answer."""
        super().__init__(f"{call}: {message}")
        self.call = call
        self.message = message
        self.code = code
        self.retry_after_seconds = retry_after_seconds
        """As the server requests; 0: it did not say."""
        self.about = about
        """The name of the object that the answer is about; empty: it names none. A server that does not serve a kind,
        or not yet, names none in its 404."""


class NotFoundError(ApiError):
    """404: no such object, or no such kind."""

    reason = "NotFound"


class ConflictError(ApiError):
    """409: another write came first, a precondition does not hold, or the object exists already."""

    reason = "Conflict"


class GoneError(ApiError):
    """410: the resource version or the continue token is too old; list again."""

    reason = "Gone"


class InvalidError(ApiError):
    """400, 413, 415, 422: the same request will be refused again."""

    reason = "Invalid"


class MalformedError(ApiError):
    """500: the applied object has a field that its kind does not know, or a value of another type.

    The cause is the applied object alone, not the live one. Any other kind of write would silently drop the field.
    """

    reason = "Malformed"


class ForbiddenError(ApiError):
    """403: RBAC, a quota or an admission plugin rejects it. The text names verb and resource."""

    reason = "Forbidden"


class NamespaceGoingError(ApiError):
    """403: the namespace is being deleted, so no object can be created in it, and those in it are deleted too."""

    reason = "NamespaceGoing"


class UnauthorizedError(ApiError):
    """401: the credentials are rejected. They are read again for the next request."""

    reason = "Unauthorized"


class TooManyRequestsError(ApiError):
    """429: the server is busy; `retry_after_seconds` says for how long."""

    reason = "TooManyRequests"


class UnavailableError(ApiError):
    """5xx, no connection, no answer in time: whether the request took effect is not known."""

    reason = "Unavailable"


class TooLongError(UnavailableError):
    """The answer is longer than the limits allow."""

    reason = "TooLong"


class GarbledError(UnavailableError):
    """The answer is not what an API server sends. Only of other clusters' servers is that checked."""

    reason = "Garbled"


class UnansweredError(UnavailableError):
    """No connection, or no answer in time. The text is ours, and the same for as long as the cause is."""


class UntrustedError(UnansweredError):
    """The server's certificate is expired, of another authority, or of another host. Nothing was sent."""

    reason = "Untrusted"


REFUSED = (InvalidError, MalformedError, ForbiddenError, ConflictError)
"""The same request gets the same answer again until something in the cluster changes."""

_BY_CODE: Mapping[int, type[ApiError]] = {
    HTTPStatus.BAD_REQUEST: InvalidError,
    HTTPStatus.UNAUTHORIZED: UnauthorizedError,
    HTTPStatus.FORBIDDEN: ForbiddenError,
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.CONFLICT: ConflictError,
    HTTPStatus.GONE: GoneError,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: InvalidError,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: InvalidError,
    HTTPStatus.UNPROCESSABLE_ENTITY: InvalidError,
    HTTPStatus.TOO_MANY_REQUESTS: TooManyRequestsError,
}
_NOT_OF_ITS_KIND = ("failed to create typed patch object", "failed to convert new object")
"""Beginnings of the API server's message that an applied object has a field that its kind does not know, or a value of
another type. Server-side apply finds this before any validation, and answers 500 (apimachinery's managedfields)."""
_LONGEST_MESSAGE = 2000
_NAMESPACE_GOING = "NamespaceTerminating"
"""The cause that the API server's NamespaceLifecycle admission gives for its refusal."""


def of_status(call: Call, code: int, body: Any, retry_after: str | None = None) -> ApiError:
    """The error for an answer with `code` whose body is, or should be, a ``Status`` object (API convention).

    Args:
        call: the request.
        code: of HTTP, or the ``code`` of a Status in a watch.
        body: parsed JSON, or the text of a proxy that answered in the server's place.
        retry_after: the header, in seconds.
    """
    message, details = _message(body), _details(body)
    if code == HTTPStatus.INTERNAL_SERVER_ERROR and message.startswith(_NOT_OF_ITS_KIND):
        return MalformedError(call, message, code=code)
    wished = _seconds(retry_after) or _seconds(details.get("retryAfterSeconds"))
    kind = _BY_CODE.get(code, UnavailableError if code >= HTTPStatus.INTERNAL_SERVER_ERROR else ApiError)
    if kind is ForbiddenError and _NAMESPACE_GOING in _causes(details):
        kind = NamespaceGoingError
    about = details.get("name")
    return kind(
        call,
        message or f"answered {code}",
        code=code,
        retry_after_seconds=wished,
        about=about if isinstance(about, str) else "",
    )


def of_text(call: Call, code: int, text: str, retry_after: str | None = None) -> ApiError:
    """As `of_status`, from the text of an answer."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = text
    return of_status(call, code, body, retry_after)


def of_exception(call: Call, error: Exception) -> ApiError:
    """The error for a request that got no complete answer."""
    if isinstance(error, TimeoutError):
        return UnansweredError(call, "no answer in time")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        why = getattr(error.certificate_error, "verify_message", "") or "its certificate is not valid"
        return UntrustedError(call, f"certificate of {error.host}:{error.port}: {why}")
    if isinstance(error, aiohttp.ClientConnectorError):
        return UnansweredError(call, f"cannot connect to {error.host}:{error.port}: {_why_no_connection(error)}")
    return UnavailableError(call, f"{type(error).__name__}: {error}")


def _why_no_connection(error: aiohttp.ClientConnectorError) -> str:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "the host name does not resolve"
    if isinstance(error.os_error, ssl.SSLError):
        return f"TLS: {error.os_error.reason or 'handshake failed'}"
    # The error's own text contains an address, of which a host may have several.
    number = error.os_error.errno
    return os.strerror(number) if number and number > 0 else error.strerror or "no route"


def _message(body: Any) -> str:
    text = body.get("message", "") if isinstance(body, dict) else body if isinstance(body, str) else ""
    return " ".join(str(text).split())[:_LONGEST_MESSAGE]


def _details(body: Any) -> Mapping[str, Any]:
    details = body.get("details") if isinstance(body, dict) else None
    return details if isinstance(details, dict) else {}


def _causes(details: Mapping[str, Any]) -> set[str]:
    causes = details.get("causes")
    return {str(one.get("reason")) for one in causes if isinstance(one, dict)} if isinstance(causes, list) else set()


def _seconds(value: Any) -> float:
    # The header may also be a date (RFC 9110); API servers send seconds, and a date is ignored.
    try:
        return max(float(value), 0.0)
    except (TypeError, ValueError):
        return 0.0
