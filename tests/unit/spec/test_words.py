import pytest

from diloco.spec.reading.translate import job_schema, path_text
from diloco.spec.words import listed


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("spec.suspend", "true or false"),
        ("spec.sync.quorum", "an integer from 1 to 10000"),
        ("spec.training.optimizer.clipNorm", "a number of at least 0"),
        ("spec.syncer.resources", "a mapping"),
    ],
)
def test_a_field_says_what_it_allows(path: str, words: str) -> None:
    reader = job_schema()
    assert reader.allowed(reader.node(path.split("."))) == words


def test_names_are_listed_as_people_do() -> None:
    assert [listed([]), listed("a"), listed("ab"), listed("abc", "and")] == ["", "a", "a or b", "a, b and c"]


def test_a_path_is_written_as_in_the_manifest() -> None:
    assert path_text(("spec", "regions", 1, "pools", 0, "name")) == "spec.regions[1].pools[0].name"
