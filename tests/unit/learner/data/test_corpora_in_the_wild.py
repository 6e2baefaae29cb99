"""Files as people have them: links, compressed, damaged, of other formats than their names say."""

import logging
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from diloco.learner.data import DataError, make_token_file, open_token_file
from diloco.learner.data.text import open_text
from diloco.spec.training import DocumentsData, TextData
from tests.support.corpora import compressed, write_documents

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0\nsize 73412345\n"
BOM = b"\xef\xbb\xbf"


def texts_of(path: Path | str, **how: object) -> list[str]:
    """The documents that become tokens, in alphabetical order."""
    output = Path(str(path).partition("*")[0]).parent / "out.tokens"
    make_token_file(DocumentsData.model_validate({"path": str(path), **how}), output)
    tokens = open_token_file(output)
    text = "".join("\0" if token == 256 else chr(token) for token in tokens.read(0, len(tokens)))
    return sorted(text.split("\0")[:-1])


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(BOM + b'{"text": "one"}\r\n\r\n\r\n{"text": "two"}')
    assert texts_of(tmp_path / "a.jsonl") == ["one", "two"]
    (tmp_path / "a.txt").write_bytes(BOM + b"one")
    assert texts_of(tmp_path / "a.txt") == ["one"]
    (tmp_path / "a.txt.xz").write_bytes(compressed(BOM + b"one", ".xz"))
    assert texts_of(tmp_path / "a.txt.xz") == ["one"]
    plain = open_text(TextData(path=str(tmp_path / "a.txt")))
    assert plain.read(0, len(plain)).tolist() == [*b"one", 256]
    make_token_file(TextData(path=str(tmp_path / "a.txt")), tmp_path / "out")
    assert open_token_file(tmp_path / "out").read(0, 4).tolist() == [*b"one", 256]


@pytest.mark.parametrize("ending", [".gz", ".zst", ".bz2", ".xz"])
def test_a_long_compressed_text_is_one_document(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diloco.learner.data.token_file_maker._PIECE_BYTES", 100)
    text = "words and words " * 500
    (tmp_path / f"a.txt{ending}").write_bytes(compressed(text.encode(), ending))
    assert texts_of(tmp_path / f"a.txt{ending}") == [text]


def test_what_is_compressed_is_seen_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(compressed(b'{"text": "packed"}', ".gz"))
    (tmp_path / "b.jsonl.gz").write_bytes(b'{"text": "unpacked on the way"}')
    assert texts_of(tmp_path / "*.jsonl*") == ["packed", "unpacked on the way"]


def linked_corpus(folder: Path) -> None:
    """Two files, one of them behind a link to a folder, with links that lead in circles or nowhere."""
    (folder / "disk" / "web").mkdir(parents=True)
    (folder / "corpus" / "own").mkdir(parents=True)
    (folder / "disk" / "web" / "1.jsonl").write_text('{"text": "web"}\n')
    (folder / "corpus" / "own" / "2.jsonl").write_text('{"text": "own"}\n')
    for link, target in (
        ("corpus/web", "../disk/web"),
        ("corpus/own/up", ".."),
        ("corpus/round", "../corpus"),
        ("disk/web/back", "../../corpus"),
        ("corpus/broken.jsonl", "nowhere"),
        ("corpus/broken", "nowhere"),
    ):
        (folder / link).symlink_to(target)


@pytest.mark.parametrize("pattern", ["corpus", "corpus/**/*.jsonl", "c*/**/[0-9].jsonl"])
def test_links_to_folders_are_followed_but_not_in_circles(tmp_path: Path, pattern: str) -> None:
    linked_corpus(tmp_path)
    assert texts_of(tmp_path / pattern) == ["own", "web"]


def test_the_log_says_how_many_files_of_a_folder_are_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    linked_corpus(tmp_path)
    for name in ("a.csv", "b.csv", "LICENSE", "c.txt"):
        (tmp_path / "corpus" / name).write_text("a")
    (tmp_path / "corpus" / "d.jsonl").touch()
    assert texts_of(tmp_path / "corpus", column="text") == ["own", "web"]
    said = f"data.documents.path: 2 of 9 file(s) in {tmp_path}/corpus are read; left out: "
    assert said in caplog.text
    assert "2 x .csv" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "column", "told"),
    [
        ("a.txt", POINTER, None, "is a pointer of git-lfs, not the file itself; run 'git lfs pull'"),
        ("a.parquet", POINTER, "text", "is a pointer of git-lfs"),
        ("train.bin", b"\x0f\x31\x0b\0\x06\x01" * 100, None, "is binary, not text; use text"),
        ("a.jsonl", b"PAR1\x15\x04\x15", "text", "is Parquet, not text; use text"),
        ("a.jsonl", '{"text": "a"}'.encode("utf-16"), "text", "is text in UTF-16 or UTF-32; use UTF-8"),
        ("a.tar.gz", compressed(b"a.txt\0\0\0" + b"a" * 99, ".gz"), None, "is binary, not text; use text"),
        ("a.csv", b"text\na\n", "text", r"has no column text, by the ending of its name; use .parquet, .*, or leave"),
        ("a.csv", b"text\na\n", None, "is a table that is not read; make it Parquet or JSON lines"),
        ("a.jsonl", b' [{"text": "a"},\n{"text": "b"}]', None, "is one array; use one object a line, as jq -c"),
        ("a.jsonl.zst", compressed(b'{"text": "a"}' * 99, ".zst")[:-9], None, ""),
        ("a.jsonl.gz", compressed(b'{"text": "a"}' * 99, ".gz")[:-9], None, ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_is_not_what_it_seems_is_one_line(
    tmp_path: Path, name: str, content: bytes, column: str | None, told: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"^data.documents.path: {tmp_path}/{name}:? {told}") as raised:
        texts_of(tmp_path / name, column=column)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (POINTER, "is a pointer of git-lfs, not the file itself; run 'git lfs pull'"),
        (compressed(b"text", ".bz2"), r"is compressed \(bz2\); use data.documents, which unpacks it"),
        (b"\x93NUMPY\x01\0", "is a NumPy array, not text; use text"),
        (b"\x0b\0\x06\x01", "is binary, not text; use text"),
    ],
    ids=["git-lfs", "bz2", "numpy", "binary"],
)
def test_what_is_no_text_is_refused_as_text(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "b.txt").write_bytes(b"text")
    for path in (tmp_path, tmp_path / "a.txt"):
        with pytest.raises(DataError, match=rf"^data.text.path: {tmp_path}/a.txt {told}$"):
            open_text(TextData(path=str(path)))


@given(st.binary(max_size=300), st.sampled_from([".txt", ".jsonl", ".json.gz", ".parquet", ".zst", ".arrow", ".xyz"]))
def test_any_bytes_are_tokens_or_one_line(content: bytes, ending: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, f"a{ending}")
        path.write_bytes(content)
        told = []
        for source in (DocumentsData(path=str(path), bad_rows=1.0), TextData(path=str(path))):
            try:
                make_token_file(source, Path(folder, "out"))
            except DataError as error:
                told.append(str(error))
        assert not any("\n" in line for line in told)


# Rows without usable text -------------------------------------------------------------------------------------------

BAD = (b'{"text": null}', b'{"text": "\\ud800"}', b'{"other": 1}', b'{"text": "cut')


def test_bad_rows_are_left_out_counted_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = [b'{"text": "a"}'] * 5000
    lines[10:10] = BAD[:3]
    lines.append(BAD[3])
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    assert texts_of(tmp_path) == ["a"] * 5000
    for where in ("line 11: text is of type NoneType", "line 12: is not JSON", "line 13: has no text", "line 5004"):
        assert f"left out {tmp_path}/a.jsonl: {where}" in caplog.text
    assert f"{tmp_path}/latin.txt: is not UTF-8; use UTF-8" in caplog.text
    assert "left out 5 of 5005 rows, which have no usable text" in caplog.text


def test_too_many_bad_rows_are_an_error_that_names_the_first(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([b'{"text": "a"}'] * 90 + [BAD[0]] * 10))
    with pytest.raises(DataError, match=r"a.jsonl: line 91: text is .* \(10 of 100 rows .*, but badRows is 0.05\)"):
        texts_of(tmp_path / "a.jsonl", bad_rows=0.05)
    with pytest.raises(DataError, match=r"line 91: .* \(1 of 91 rows"):
        texts_of(tmp_path / "a.jsonl", bad_rows=0)
    assert len(texts_of(tmp_path / "a.jsonl", bad_rows=0.1)) == 90


def test_a_corpus_of_bad_rows_is_not_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"{}\n" * 100_000)
    with pytest.raises(DataError, match=r"line 1: has no text; .* \(101 of 101 rows"):
        texts_of(tmp_path / "a.jsonl")


def test_rows_of_a_table_are_left_out_too(tmp_path: Path) -> None:
    surrogate = pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xed\xa0\x80"], pa.binary()).buffers())
    parquet.write_table(pa.table({"text": surrogate}), tmp_path / "a.parquet")
    write_documents(tmp_path / "b.parquet", ["b", None])
    assert texts_of(tmp_path, bad_rows=0.5) == ["a", "b"]
