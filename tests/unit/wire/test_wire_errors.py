import grpc
import pytest

from diloco.wire.errors import (
    LONGEST_TEXT,
    CorruptedError,
    DeadlineError,
    PeerFailedError,
    RefusedError,
    RevokedError,
    UnavailableError,
    WireError,
    error_of,
    one_line,
)

CLASSES = sorted(WireError.__subclasses__(), key=lambda cls: cls.__name__)


def test_a_connection_that_cannot_be_written_to_is_broken() -> None:
    found = error_of(grpc.StatusCode.INTERNAL, "Internal error from Core")
    assert (type(found), str(found)) == (UnavailableError, "the connection broke")
    assert type(error_of(grpc.StatusCode.INTERNAL, "it failed")) is PeerFailedError


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_crosses_the_wire_as_itself(cls: type[WireError]) -> None:
    there = error_of(cls.status, str(cls("fragment 3 is not wanted")))
    assert type(there) is cls
    assert str(there) == "fragment 3 is not wanted"


@pytest.mark.parametrize("text", ["CANCELLED", "", None])
def test_a_call_that_somebody_else_cancelled_is_tried_again(text: str | None) -> None:
    assert type(error_of(grpc.StatusCode.CANCELLED, text)) is UnavailableError


def test_every_class_has_a_status_of_its_own() -> None:
    assert len({cls.status for cls in CLASSES}) == len(CLASSES)


@pytest.mark.parametrize("status", list(grpc.StatusCode))
def test_every_status_is_some_wire_error(status: grpc.StatusCode) -> None:
    assert isinstance(error_of(status, None), WireError)
    assert status.name in str(error_of(status, None))


def test_a_text_is_one_printable_line_of_bounded_length() -> None:
    assert one_line("a\nb\r\n\tc \x00 d\u2028e") == "a b c d e"
    assert len(one_line("x" * 10_000)) == LONGEST_TEXT
    assert str(RefusedError("no\nsuch\nthing")) == "no such thing"


def test_only_what_can_pass_by_itself_is_worth_another_try() -> None:
    worth = {cls for cls in CLASSES if cls.retryable}
    assert worth == {CorruptedError, DeadlineError, PeerFailedError, RevokedError, UnavailableError}
