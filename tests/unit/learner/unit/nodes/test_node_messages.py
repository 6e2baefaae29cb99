"""Messages between nodes come back as they were; whatever else comes is refused in one line."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diloco.learner.unit.nodes.node_messages import LONGEST_BYTES, Hello, Kind, NodeMessageError, Said, decoded, encoded
from tests.support.examples import examples

HELLO = Hello("a/b/0", 1, "uid", "pod-1")


@settings(max_examples=examples(40))
@example("\U0010ffff" * 600, Kind.ENDED, 0)
@example("\0" * 600, Kind.ENDED, 0)
@example("\ud800\n\x1b", Kind.ENDED, 0)
@given(st.text(max_size=100), st.sampled_from(Kind), st.integers(0, 65535))
def test_any_text_fits_a_line_and_is_printable_at_the_other_end(text: str, kind: Kind, port: int) -> None:
    line = encoded(Said(kind, text, port))
    assert len(line) <= LONGEST_BYTES
    assert line.count(b"\n") == 1
    said = decoded(Said, line)
    assert (said.kind, said.port) == (kind, port)
    assert said.text.isprintable()
    if text.isprintable():
        assert said.text == text[:512]


def test_a_hello_comes_back_as_it_was() -> None:
    assert decoded(Hello, encoded(HELLO)) == HELLO


@settings(max_examples=examples(60))
@given(
    st.binary(max_size=60)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode)
)
def test_anything_else_is_refused_in_one_line(line: bytes) -> None:
    with pytest.raises(NodeMessageError) as no_hello:
        decoded(Hello, line)
    with pytest.raises(NodeMessageError) as not_said:
        decoded(Said, line)
    assert [len(str(one.value).splitlines()) for one in (no_hello, not_said)] == [1, 1]


@pytest.mark.parametrize(
    "changes",
    [{"node": -1}, {"node": 65536}, {"node": "1"}, {"node": 1.5}, {"host": "x" * 513}, {"more": 1}, {"learner": None}],
)
def test_a_hello_with_a_wrong_field_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(NodeMessageError):
        decoded(Hello, json.dumps(json.loads(encoded(HELLO)) | changes).encode())
