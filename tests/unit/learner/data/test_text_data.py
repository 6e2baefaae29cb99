from pathlib import Path

import pytest

from diloco.learner.data import DataError, DataUnavailableError
from diloco.learner.data.opening import open_source
from diloco.learner.data.text import ByteText, Document, open_text
from diloco.spec.training import DataSpec, TextData
from tests.support.machine_limits import no_file_left

INCLUDE = ("*.txt", "*.py")


def text_of(path: Path) -> ByteText:
    return open_text(TextData(path=str(path), include=INCLUDE))


def test_documents_are_their_bytes_each_with_an_end(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"abc")
    other.write_bytes(b"\xff")
    source = ByteText([Document(one, 3), Document(other, 1)])
    assert len(source) == 6
    assert source.vocabulary_size == 257
    assert source.read(0, 6).tolist() == [97, 98, 99, 256, 255, 256]


def test_any_stretch_reads_the_same_as_the_whole(tmp_path: Path) -> None:
    for index, size in enumerate([1, 5, 2, 9]):
        (tmp_path / f"{index}.txt").write_bytes(bytes(range(1, 1 + size)))
    source = text_of(tmp_path)
    whole = source.read(0, len(source)).tolist()
    for start in range(len(source)):
        for stop in range(start, len(source) + 1):
            assert source.read(start, stop).tolist() == whole[start:stop]


def test_the_order_depends_on_relative_paths_only(tmp_path: Path) -> None:
    orders = []
    for folder in (tmp_path / "here", tmp_path / "elsewhere"):
        (folder / "sub").mkdir(parents=True)
        for name in ("b.txt", "a.txt", "sub/c.txt", "sub/d.py"):
            (folder / name).write_text(name)
        orders.append([document.path.relative_to(folder).as_posix() for document in text_of(folder).documents])
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == ["a.txt", "b.txt", "sub/c.txt", "sub/d.py"]
    assert orders[0] != sorted(orders[0])


def test_hidden_empty_and_other_files_are_left_out(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    for name in (".git/x.txt", ".hidden.txt", "picture.png", "empty.txt"):
        (tmp_path / name).write_text("" if name == "empty.txt" else "x")
    (tmp_path / "kept.txt").write_text("kept")
    assert [document.path.name for document in text_of(tmp_path).documents] == ["kept.txt"]


def test_what_is_wrong_with_the_path_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "empty.txt").touch()
    for name, message in [
        ("missing", "data.text.path: .*missing does not exist"),
        ("nothing", r"data.text.path: no file in .*nothing matches \*.txt, \*.py; give a file or other patterns"),
        ("only", "data.text.path: every file there is empty"),
    ]:
        with pytest.raises(DataError, match=message):
            text_of(tmp_path / name)


@pytest.mark.parametrize(("now", "told"), [("short", "had 11 bytes when .* restore it"), (None, "No such file")])
def test_a_file_that_becomes_shorter_or_disappears_is_found_out(tmp_path: Path, now: str | None, told: str) -> None:
    path = tmp_path / "corpus.bin"  # a file that is named outright counts whatever its name
    path.write_text("a long text")
    source = text_of(path)
    path.unlink()
    if now is not None:
        path.write_text(now)
    assert source.read(11, 12).tolist() == [256]
    with pytest.raises(DataError, match=f"corpus.bin.*{told}"):
        source.read(0, 12)


def test_the_default_corpus_is_the_standard_library_without_its_tests() -> None:
    source = open_source(DataSpec.model_validate({"text": {}}))
    assert isinstance(source, ByteText)
    assert len(source) > 5_000_000
    paths = [document.path for document in source.documents]
    assert any(path.name == "argparse.py" for path in paths)
    assert not any({"site-packages", "test", "tests"} & set(path.parts) for path in paths)
    assert source.read(1000, 1010).max() < 257


def test_a_machine_without_a_file_left_is_no_mistake_in_the_data(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text")
    text = text_of(tmp_path)
    with no_file_left(), pytest.raises(DataUnavailableError, match=r"a\.txt: Too many open files"):
        text.read(0, 4)
    with no_file_left(), pytest.raises(DataUnavailableError, match="Too many open files"):
        text_of(tmp_path)
