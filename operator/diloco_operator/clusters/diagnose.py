"""Tells from an error of a remote API server what state the cluster is in, with one line that says why.

The line is the same for as long as the cause is, and quotes nothing that the other side may choose freely: whoever
writes a kubeconfig chooses the server, and the line is in the status of a job. Pure.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from diloco_operator.api_server.errors import (
    ApiError,
    Call,
    ForbiddenError,
    NotFoundError,
    TooManyRequestsError,
    UnansweredError,
    UnauthorizedError,
    UnavailableError,
    UntrustedError,
)
from diloco_operator.cluster_state import ClusterState

OLDEST: Final = (1, 28)
"""The oldest version of Kubernetes that regions run on: the pods of its StatefulSets have an index as a label."""
_MOST_NAMED: Final = 6
_NUMBER: Final = re.compile(r"[0-9]{1,4}")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A state that is not ready, and why."""

    state: ClusterState
    message: str


def diagnose(error: ApiError, server: str) -> Diagnosis | None:
    """The state of a cluster that answered with this error.

    Args:
        error: of a request to it.
        server: its address.

    Returns:
        None: the error is about one object and says nothing of the cluster. A 403 is among these: `forbidden` needs
        to know what the cluster says when it is asked about its rules.
    """
    match error:
        case UntrustedError():
            return Diagnosis(ClusterState.UNTRUSTED, f"{server} is not trusted: {error.message}")
        case UnauthorizedError():
            text = f"{server} rejects the credentials of the kubeconfig ({_http(error.code)})"
            return Diagnosis(ClusterState.UNAUTHORIZED, text)
        case NotFoundError() if error.call.verb == "list":
            return Diagnosis(ClusterState.UNSUITABLE, f"{server} has no {error.call.resource}")
    why = _why_unreachable(error)
    return Diagnosis(ClusterState.UNREACHABLE, f"{server} {why}") if why else None


def _why_unreachable(error: ApiError) -> str:
    match error:
        case UnansweredError():
            return f"does not answer: {error.message}"
        case UnavailableError() if error.code < HTTPStatus.INTERNAL_SERVER_ERROR:
            return "breaks off or answers, but not as an API server"
        case NotFoundError() if error.call.resource == "version":
            return "answers, but not as an API server"
        # A redirection is not followed: it may lead to any place that the operator can reach.
        case _ if isinstance(error, UnavailableError | TooManyRequestsError) or error.code < HTTPStatus.BAD_REQUEST:
            return f"answers with {_http(error.code)}"
    return ""


def forbidden(calls: Iterable[Call], server: str) -> Diagnosis:
    """The state of a cluster that does not allow these requests, and says so when it is asked."""
    named = sorted({f"{call.verb} {call.resource}" for call in calls})
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    places = sorted({call.namespace or "" for call in calls} - {""})
    where = f" in namespace {places[0]}" if len(places) == 1 else ""
    return Diagnosis(
        ClusterState.FORBIDDEN, f"{server} does not allow to {', '.join(named[:_MOST_NAMED])}{more}{where}"
    )


def rights_asked(error: ApiError) -> bool:
    """Whether an error may be due to a missing rule, so that the cluster is asked about it."""
    return type(error) is ForbiddenError


def unsuitable_version(answer: Any, server: str) -> Diagnosis | None:
    """What is wrong with the answer to ``/version``; None: it is recent enough."""
    version = _version(answer)
    if version is None:
        return Diagnosis(ClusterState.UNREACHABLE, f"{server} answers, but not as an API server")
    if version < OLDEST:
        told, oldest = (".".join(map(str, one)) for one in (version, OLDEST))
        return Diagnosis(ClusterState.UNSUITABLE, f"{server} is Kubernetes {told}; use {oldest} or later")
    return None


def _version(answer: Any) -> tuple[int, int] | None:
    # Managed clusters write 28+ as the minor version.
    if not isinstance(answer, dict):
        return None
    found = [_NUMBER.match(str(answer.get(part, ""))) for part in ("major", "minor")]
    numbers = [int(one.group()) for one in found if one is not None]
    return (numbers[0], numbers[1]) if len(numbers) == len(found) else None


def _http(code: int) -> str:
    try:
        return f"HTTP {code} ({HTTPStatus(code).phrase})"
    except ValueError:
        return f"HTTP {code}"
