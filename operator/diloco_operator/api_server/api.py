"""Requests to an API server: plain dicts in, plain dicts out, typed errors.

Writes are server-side apply with force: the operator owns what it sets (KEP-555). Nothing is cached here and nothing is
retried: callers decide whether and when to retry.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import aiohttp

from diloco_operator.api_server.errors import (
    Call,
    GarbledError,
    NotFoundError,
    TooLongError,
    UnavailableError,
    of_status,
)
from diloco_operator.api_server.intake import UnreadableError, received, received_page
from diloco_operator.api_server.kinds import REVIEW, SERVICE_ACCOUNT, Kind, Object
from diloco_operator.api_server.limits import Limits, bounded
from diloco_operator.api_server.requests import JSON, Query, Request, RequestHooks, Requests, parsed, part
from diloco_operator.api_server.transport import Transport

WATCH_SECONDS: Final = 290
"""The server ends a watch after this long; the next one resumes where it ended."""
SILENCE_SECONDS: Final = 90.0
"""A watch without a message for this long counts as broken: servers send a bookmark a minute (KEP-956)."""
SKIPPED: Final = "SKIPPED"
"""The type of an event of a watch that is too long to be read: which object it was about is not known."""
_FEWER: Final = 8
"""A page that is too long is asked for again with this fraction of the objects."""

_METADATA_ONLY: Final = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class Selection:
    """The objects of a kind that a list or a watch selects."""

    kind: Kind
    namespace: str | None = None
    """None: all."""
    labels: str = ""
    """Label selector, as a query parameter has it."""
    fields: str = ""
    """Field selector."""
    metadata_only: bool = False

    def __str__(self) -> str:
        return self.kind.resource if self.namespace is None else f"{self.kind.resource} in {self.namespace}"

    @property
    def query(self) -> Query:
        """The selectors as query parameters."""
        return [(key, text) for key, text in (("labelSelector", self.labels), ("fieldSelector", self.fields)) if text]


class Api:
    """The API server, as far as the operator needs it."""

    def __init__(
        self, transport: Transport, field_manager: str, hooks: RequestHooks | None = None, limits: Limits | None = None
    ) -> None:
        """The caller closes `transport`."""
        self._field_manager = field_manager
        self._limits = limits or Limits()
        self._requests = Requests(transport, hooks or RequestHooks(), self._limits)

    async def get(
        self, kind: Kind, namespace: str | None, name: str, *, timeout_seconds: float | None = None
    ) -> Object:
        """Get one object; `namespace` None: it is in none.

        Raises:
            NotFoundError: it does not exist.
            ApiError: as in `errors`; so does every other method here.
        """
        call = Call("get", kind.resource, namespace, name)
        request = Request(call, "GET", kind.path(namespace, name), timeout=self._limits.within(timeout_seconds))
        return await self._object(kind, namespace, request)

    async def find_metadata(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """An object's metadata; None: there is no such object."""
        call = Call("get", kind.resource, namespace, name)
        request = Request(call, "GET", kind.path(namespace, name), accept=_METADATA_ONLY.format(""))
        try:
            return await self._object(kind, namespace, request, metadata_only=True)
        except NotFoundError:
            return None

    async def apply(self, kind: Kind, body: Object, *, force: bool = True) -> Object:
        """Apply the fields of `body` to an object, or create it; returns the result. Other owners' fields stay.

        Raises:
            ConflictError: without `force`, another manager has set one of them; the text names it.
        """
        return await self._patch(kind, body, _APPLY, query=[("force", str(force).lower())])

    async def apply_status(self, kind: Kind, body: Object) -> Object:
        """As `apply`, for the status subresource. Never creates an object.

        With ``metadata.resourceVersion`` in `body`, only that version is written to. (A uid is not enough: the server
        does not check it for a status, and the object may be a later one of the same name.)

        Raises:
            NotFoundError: there is no such object.
            ConflictError: it is of another version.
        """
        return await self._patch(kind, body, _APPLY, query=[("force", "true")], subresource="status")

    async def overwrite(self, kind: Kind, patch: Object, *, subresource: str | None = None) -> Object:
        """Change an object by a merge patch (RFC 7396), regardless of who owns the fields; returns the result.

        Raises:
            ConflictError: its uid is not that of `patch`.
        """
        return await self._patch(kind, patch, _MERGE, subresource=subresource)

    async def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        preconditions: Mapping[str, str],
        *,
        grace_seconds: int | None = None,
    ) -> None:
        """Delete an object in the background if it has the uid and, if given, the resourceVersion of `preconditions`.

        `grace_seconds` is the time that a pod has to end; 0: its node is not asked; None: as the pod says.

        Raises:
            ConflictError: it has another uid or resourceVersion by now.
            NotFoundError: it does not exist.
        """
        body: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": dict(preconditions),
        }
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        call = Call("delete", kind.resource, namespace, name)
        await self._requests.json(Request(call, "DELETE", kind.path(namespace, name), body=body))

    async def try_deletion(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Ask whether an object with this uid may be deleted. It stays.

        Raises:
            ApiError: as of `delete`.
        """
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}, "dryRun": ["All"]}
        call = Call("delete", kind.resource, namespace, name)
        await self._requests.json(Request(call, "DELETE", kind.path(namespace, name), body=body))

    async def create(self, kind: Kind, body: Object, *, timeout_seconds: float | None = None) -> Object:
        """Create an object.

        Raises:
            ConflictError: an object of this name exists.
        """
        namespace, name = body["metadata"]["namespace"], body["metadata"].get("name")
        request = Request(
            Call("create", kind.resource, namespace, name),
            "POST",
            kind.path(namespace),
            query=[("fieldManager", self._field_manager)],
            body=body,
            timeout=self._limits.within(timeout_seconds),
        )
        return await self._object(kind, namespace, request)

    async def replace(self, kind: Kind, body: Object, *, timeout_seconds: float | None = None) -> Object:
        """Replace a whole object, if it still has the resourceVersion of `body`.

        Raises:
            ConflictError: it has another one.
        """
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        request = Request(
            Call("update", kind.resource, namespace, name),
            "PUT",
            kind.path(namespace, name),
            query=[("fieldManager", self._field_manager)],
            body=body,
            timeout=self._limits.within(timeout_seconds),
        )
        return await self._object(kind, namespace, request)

    async def version(self) -> Object:
        """What the server says of its version."""
        return await self._requests.json(Request(Call("get", "version"), "GET", "/version"))

    async def time(self) -> datetime:
        """The time by the server's clock, to the second.

        Raises:
            UnavailableError: it does not say.
        """
        call = Call("get", "version")
        response = await self._requests.send(Request(call, "GET", "/version"))
        response.release()
        try:
            return parsedate_to_datetime(response.headers.get("Date", "")).astimezone(UTC)
        except ValueError:
            raise UnavailableError(call, "the answer does not say the server's time (header Date)") from None

    async def serves(self, kind: Kind) -> bool:
        """Whether discovery names the kind, that is, whether its definition is installed and in force.

        A new group is in the list of groups some time after its kinds can be listed, and kopf looks at both, once.
        """
        call = Call("get", kind.resource)
        if kind.group not in await self._groups(call):
            return False
        try:
            found = await self._requests.json(Request(call, "GET", f"/apis/{kind.group}/{kind.version}"))
        except NotFoundError:
            return False
        return any(one.get("name") == kind.plural for one in found.get("resources") or ())

    async def assigns_users(self) -> bool:
        """Whether the platform chooses user and groups of pods, as OpenShift does, and refuses others."""
        return "security.openshift.io" in await self._groups(Call("get", "apis"))

    async def _groups(self, call: Call) -> set[Any]:
        groups = (await self._requests.json(Request(call, "GET", "/apis"))).get("groups") or ()
        return {one.get("name") for one in groups}

    async def may(self, call: Call) -> bool:
        """Whether the server's rules allow this request, as it says when it is asked (SelfSubjectAccessReview)."""
        resource, _, subresource = call.resource.partition("/")
        plural, _, group = resource.partition(".")
        asked = {"verb": call.verb, "group": group, "resource": plural, "subresource": subresource}
        asked |= {"namespace": call.namespace or "", "name": call.name or ""}
        review = {"apiVersion": REVIEW.api_version, "kind": REVIEW.name, "spec": {"resourceAttributes": asked}}
        request = Request(Call("create", REVIEW.resource), "POST", REVIEW.path(None), body=review)
        status = (await self._requests.json(request)).get("status")
        return isinstance(status, dict) and status.get("allowed") is True

    async def token(self, namespace: str, account: str, seconds: int) -> str:
        """A new token of a ServiceAccount (TokenRequest), to last that long if the server grants it.

        Raises:
            UnavailableError: the answer holds none.
        """
        kind = SERVICE_ACCOUNT
        call = Call("create", f"{kind.resource}/token", namespace, account)
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        answer = await self._requests.json(Request(call, "POST", kind.path(namespace, account, "token"), body=body))
        status = answer.get("status")
        token = status.get("token") if isinstance(status, dict) else None
        if not isinstance(token, str) or not token:
            raise UnavailableError(call, "the answer has no token")
        return token

    async def pages(self, selection: Selection, page_objects: int | None = None) -> AsyncIterator[Object]:
        """A list, page by page; all pages are of one resource version. Large objects come in smaller pages.

        Raises:
            GoneError: the list took so long that its version has expired.
            UnavailableError: it has more pages than the limits allow.
            TooLongError: a single object is longer than they allow.
        """
        kind, following, count = selection.kind, "", 0
        size = most = page_objects or self._limits.page_objects
        call = Call("list", kind.resource, selection.namespace)
        accept = _METADATA_ONLY.format("List") if selection.metadata_only else JSON
        while True:
            query = [*selection.query, ("limit", str(size)), *([("continue", following)] if following else [])]
            request = Request(call, "GET", kind.path(selection.namespace), query=query, accept=accept)
            try:
                page = await self._requests.json(request)
            except TooLongError:
                if size == 1:
                    raise
                size = max(size // _FEWER, 1)
                continue
            size = min(2 * size, most)
            if self._limits.checks_objects:
                page = _readable(call, received_page, selection, page)
            yield page
            following = page["metadata"].get("continue") or ""
            if not following:
                return
            count += 1
            if count == self._limits.most_pages:
                raise UnavailableError(call, f"the list has more than {count} pages of {size}")

    async def items(self, selection: Selection) -> list[Object]:
        """All selected objects."""
        return [item async for page in self.pages(selection) for item in page.get("items") or ()]

    async def watch(self, selection: Selection, resource_version: str) -> AsyncGenerator[Object]:
        """Watch events since `resource_version`, bookmarks and `SKIPPED` among them, until the server ends the watch.

        Raises:
            GoneError: that version is too old.
        """
        kind = selection.kind
        call = Call("watch", kind.resource, selection.namespace)
        query = [
            *selection.query,
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", resource_version),
            ("timeoutSeconds", str(WATCH_SECONDS)),
        ]
        begun_seconds = self._limits.silence_seconds or self._limits.request_seconds
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=begun_seconds, sock_read=SILENCE_SECONDS)
        accept = _METADATA_ONLY.format("") if selection.metadata_only else JSON
        request = Request(call, "GET", kind.path(selection.namespace), query=query, accept=accept, timeout=timeout)
        # The server sends the head of its answer at once, however long it then has nothing to report.
        response = await part(call, bounded(begun_seconds, self._requests.send(request)))
        try:
            async with aclosing(self._requests.lines(call, response)) as lines:
                async for line in lines:
                    yield {"type": SKIPPED} if line is None else self._event(call, selection, line)
        finally:
            response.close()

    def _event(self, call: Call, selection: Selection, line: bytes) -> Object:
        event = parsed(call, line)
        if event.get("type") == "ERROR":
            status = event.get("object") or {}
            raise of_status(call, int(status.get("code") or 0), status)
        if self._limits.checks_objects and event.get("type") != "BOOKMARK":
            event["object"] = _readable(call, received, selection, event.get("object"))
        return event

    async def _patch(
        self, kind: Kind, body: Object, content_type: str, *, query: Query | None = None, subresource: str | None = None
    ) -> Object:
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        resource = f"{kind.resource}/{subresource}" if subresource else kind.resource
        request = Request(
            Call("patch", resource, namespace, name),
            "PATCH",
            kind.path(namespace, name, subresource),
            query=[("fieldManager", self._field_manager), *(query or [])],
            body=body,
            content_type=content_type,
        )
        return await self._object(kind, namespace, request)

    async def _object(
        self, kind: Kind, namespace: str | None, request: Request, *, metadata_only: bool = False
    ) -> Object:
        answer = await self._requests.json(request)
        if not self._limits.checks_objects:
            return answer
        return _readable(request.call, received, Selection(kind, namespace, metadata_only=metadata_only), answer)


def _readable(call: Call, check: Callable[..., Object], selection: Selection, value: Any) -> Object:
    try:
        return check(selection.kind, selection.namespace, value, metadata_only=selection.metadata_only)
    except UnreadableError as error:
        raise GarbledError(call, f"the answer is not one of an API server: {error}") from None
