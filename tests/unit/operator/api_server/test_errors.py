import pytest

from diloco_operator.api_server import errors
from diloco_operator.api_server.errors import ApiError, Call, of_status, of_text

CALL = Call("patch", "statefulsets.apps", "ns", "job-a-b")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, errors.InvalidError),
        (401, errors.UnauthorizedError),
        (403, errors.ForbiddenError),
        (404, errors.NotFoundError),
        (409, errors.ConflictError),
        (410, errors.GoneError),
        (418, ApiError),
        (422, errors.InvalidError),
        (429, errors.TooManyRequestsError),
        (500, errors.UnavailableError),
        (503, errors.UnavailableError),
        (504, errors.UnavailableError),
    ],
)
def test_each_code_has_its_type(code: int, kind: type[ApiError]) -> None:
    error = of_status(CALL, code, {"kind": "Status", "message": "because"})
    assert type(error) is kind
    assert str(error) == "patch statefulsets.apps ns/job-a-b: because"
    assert error.code == code


@pytest.mark.parametrize(
    "cause",
    [
        "failed to create typed patch object (ns/a; apps/v1, Kind=StatefulSet): .spec.x: field not declared in schema",
        "failed to convert new object (ns/a; apps/v1, Kind=StatefulSet) to proper version: unable to convert",
    ],
)
def test_a_malformed_object_counts_as_refused_although_the_answer_is_500(cause: str) -> None:
    error = of_status(CALL, 500, {"message": cause})
    assert type(error) is errors.MalformedError
    assert isinstance(error, errors.REFUSED)


def test_a_refusal_because_the_namespace_goes_is_told_from_others() -> None:
    causes = [{"reason": "NamespaceTerminating", "message": "namespace ns is being terminated", "field": "x"}]
    assert type(of_status(CALL, 403, {"details": {"causes": causes}})) is errors.NamespaceGoingError
    assert type(of_status(CALL, 403, {"details": {"causes": ["?", {}]}})) is errors.ForbiddenError


def test_an_answer_about_an_object_is_told_from_one_about_a_kind() -> None:
    body = {"kind": "Status", "details": {"name": "demo", "kind": "dilocojobs"}}
    assert of_status(CALL, 404, body).about == "demo"
    assert of_text(CALL, 404, "404 page not found").about == ""
    assert of_status(CALL, 404, {"details": {"name": ["demo"]}}).about == ""


def test_the_wait_is_taken_from_the_header_or_else_from_the_status() -> None:
    body = {"details": {"retryAfterSeconds": 7}}
    assert of_status(CALL, 429, body, "3").retry_after_seconds == 3.0
    assert of_status(CALL, 429, body).retry_after_seconds == 7.0
    assert of_status(CALL, 429, {}, "Fri, 31 Dec 1999 23:59:59 GMT").retry_after_seconds == 0.0


@pytest.mark.parametrize("text", ["", "<html>\n bad gateway</html>", "[]", "null", '{"message": 5, "details": 3}'])
def test_the_page_of_a_proxy_is_an_error_like_another(text: str) -> None:
    error = of_text(CALL, 502, text)
    assert isinstance(error, errors.UnavailableError)
    assert "\n" not in str(error)
