import pytest

from diloco.runtime.yaml_text import yaml_documents, yaml_text


@pytest.mark.parametrize("text", ["12e4", "-1E5", ".5e3", "1.e+2", "0o17", "1.5", "17", "true", "2026-11-28"])
def test_text_that_another_reader_takes_for_something_else_is_quoted(text: str) -> None:
    assert yaml_text({"name": text}) == f"name: '{text}'\n"
    assert yaml_documents([text]) == f"--- '{text}'\n"


@pytest.mark.parametrize("text", ["e4", "12e", "1e5x", "0o18", "v1.5"])
def test_other_text_is_plain(text: str) -> None:
    assert yaml_text({"name": text}) == f"name: {text}\n"
