import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from diloco.learner.data import DataError, documents, make_token_file, open_token_file
from diloco.learner.data.documents import formats
from diloco.learner.data.tokenizer import FolderTokenizer
from diloco.spec.training import DocumentsData
from tests.support.corpora import END, write_documents, write_tokenizer

if TYPE_CHECKING:
    from diloco.learner.data.token_file_maker import Progress

TEXTS = ["the cat sat on a mat", "", "a dog", "mat"]
TOKENS = [1, 2, 3, 4, 5, 6, END, 5, 0, END, 6, END]


def tokens_of(path: str | Path, tokenizer: Path, column: str | None = None) -> list[int]:
    output = tokenizer / "out.tokens"
    made = DocumentsData(path=str(path), column=column)
    make_token_file(made, output, FolderTokenizer(tokenizer, "tokenizer"))
    file = open_token_file(output)
    assert file.vocabulary_size == END + 1
    return [int(token) for token in file.read(0, len(file))]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "tokenizer")


@pytest.mark.parametrize(
    "name",
    [
        *("a.parquet", "a.jsonl", "a.json", "a.ndjson", "a.JSONL", "saved"),
        *("a.jsonl.gz", "c4-train.00000-of-01024.json.gz", "a.jsonl.zst", "a.jsonl.bz2", "a.ndjson.xz", "A.JSON.GZ"),
    ],
)
def test_documents_of_every_kind_become_the_same_tokens(tmp_path: Path, tokenizer: Path, name: str) -> None:
    path = write_documents(tmp_path / "corpus" / name, TEXTS, column="body")
    assert tokens_of(path, tokenizer, "body") == TOKENS
    assert tokens_of(path / "*.arrow" if path.is_dir() else path.with_name("*"), tokenizer, "body") == TOKENS


def test_a_folder_and_a_pattern_give_all_documents(tmp_path: Path, tokenizer: Path) -> None:
    for index, word in enumerate(("the", "cat", "sat", "on", "mat")):
        write_documents(tmp_path / "corpus" / f"{index}.parquet", [word])
    for path in (tmp_path / "corpus", tmp_path / "c*" / "**" / "*.parquet"):
        assert sorted(tokens_of(path, tokenizer)) == [1, 2, 3, 4, 6, *[END] * 5]


def test_documents_are_tokenized_by_what_they_name(tmp_path: Path, tokenizer: Path) -> None:
    path = write_documents(tmp_path / "a.parquet", ["the cat"])
    make_token_file(DocumentsData(path=str(path), tokenizer=str(tokenizer)), tmp_path / "out")
    assert open_token_file(tmp_path / "out").read(0, 3).tolist() == [1, 2, END]


def test_text_that_the_tokenizer_does_not_know_is_named(tmp_path: Path, tokenizer: Path) -> None:
    path = tokenizer / "tokenizer.json"
    path.write_text(path.read_text().replace('"unk_token": "[UNK]"', '"unk_token": "none"'))
    with pytest.raises(DataError, match=r"a.parquet: row 0 or later: Exception: WordLevel error: Missing"):
        tokens_of(write_documents(tmp_path / "a.parquet", ["the dog"]), tokenizer)


def test_a_plain_file_is_one_document(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat\nsat")
    assert tokens_of(tmp_path / "a.txt", tokenizer) == [1, 2, 3, END]


def test_categories_and_large_text_are_text(tmp_path: Path, tokenizer: Path) -> None:
    path = tmp_path / "a.parquet"
    for kind in (pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        parquet.write_table(pa.table({"text": pa.array(["cat", "cat"]).cast(kind)}), path)
        assert tokens_of(path, tokenizer) == [2, END, 2, END]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"text": "a"}\n{"text": \n', r"line 2: is not JSON \(.*\); use one object a line"),
        (b'{"text": "a"}\n["text"]', "line 2: is a list; use one object a line"),
        (b'\n\n[{"text": "a"}]', "line 3: is a list; use one object a line"),
        (b'{"body": "a"}', "line 1: has no text; use text in every line"),
        (b'{"text": null}', "line 1: text is of type NoneType; use text in every line"),
        (b'{"text": "\xff"}', r"line 1: is not JSON"),
        (b'{"text": "\\ud800"}', r"line 1: is not JSON"),
        (b'\n\n{"text": "' + b"a" * 200 + b'"}', "line 3: is longer than 0 MiB; use one object a line"),
    ],
)
def test_a_wrong_line_is_named(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, told: str
) -> None:
    monkeypatch.setattr(formats, "_LINE_BYTES", 100)
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=rf"^data.documents.path: {tmp_path / 'a.jsonl'}: {told}") as raised:
        tokens_of(tmp_path / "a.jsonl", tokenizer)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["a.parquet", "saved"])
def test_a_wrong_column_or_row_is_named(tmp_path: Path, tokenizer: Path, name: str) -> None:
    path = write_documents(tmp_path / name, ["a", "b", "c", None])
    for column, told in (
        ("other", "column other is not there once; use a column of text: text"),
        ("id", "column id is int64; use a column of text: text"),
        (
            "text",
            r"row 3: text is null; use text in every row \(1 of 4 rows have no usable text, but badRows is 0.001\)",
        ),
    ):
        with pytest.raises(DataError, match=rf"^data.documents.path: {path}.*: {told}$"):
            tokens_of(path, tokenizer, column)


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.gz", "saved/data-00000-of-00001.arrow"])
def test_a_truncated_file_is_named(tmp_path: Path, tokenizer: Path, name: str) -> None:
    path = write_documents(tmp_path / name.partition("/")[0], ["the cat"] * 100)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-60])
    with pytest.raises(DataError, match=rf"^data.documents.path: {path}.*") as raised:
        tokens_of(path, tokenizer)
    assert "\n" not in str(raised.value)


def test_text_that_is_no_utf_8_is_named_with_its_row(tmp_path: Path, tokenizer: Path) -> None:
    raw = pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xff\xfe"], pa.binary()).buffers())
    parquet.write_table(pa.table({"text": raw}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a.parquet: row 1: text is not UTF-8; use UTF-8"):
        tokens_of(tmp_path / "a.parquet", tokenizer)


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = write_documents(tmp_path / "a.jsonl", ["a", "b"])
    files = documents.find_document_files(DocumentsData(path=str(path)), "data.documents")
    rows = files.rows(0)
    assert next(rows)[0] == b"a"
    with path.open("a") as file:
        file.write('{"text": "c"}')
    with pytest.raises(DataError, match=r"a.jsonl: has changed while it was read; start again when it is complete"):
        list(rows)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("missing", "missing does not exist"),
        ("*.parquet", "matches no file"),
        (".", r"no file in .* matches \*.parquet, .*; give a file or other patterns"),
        ("empty.jsonl", "every file there is empty"),
        ("splits", "has several splits; use the folder of one, such as .*splits/train"),
        ("broken", "state.json is not that of a saved dataset"),
        ("partly", "has no data-0.arrow, which its state.json names"),
    ],
)
def test_what_is_wrong_with_the_path_of_documents_is_said(tmp_path: Path, path: str, told: str) -> None:
    (tmp_path / "nothing").mkdir()
    for folder, name, content in (
        ("splits", "dataset_dict.json", {}),
        ("broken", "state.json", []),
        ("partly", "state.json", {"_data_files": [{"filename": "data-0.arrow"}]}),
    ):
        (tmp_path / "nothing" / folder).mkdir()
        (tmp_path / "nothing" / folder / name).write_text(json.dumps(content))
    if path == "empty.jsonl":
        (tmp_path / "nothing" / path).touch()
    if path == ".":
        path = "partly/.."
        for name in ("splits/dataset_dict.json", "broken/state.json", "partly/state.json"):
            (tmp_path / "nothing" / name).unlink()
    with pytest.raises(DataError, match=rf"^data.documents.path: .*{told}"):
        documents.find_document_files(DocumentsData(path=str(tmp_path / "nothing" / path)), "data.documents")


def test_documents_without_any_text_are_refused(tmp_path: Path, tokenizer: Path) -> None:
    with pytest.raises(DataError, match="there are no tokens to write"):
        tokens_of(write_documents(tmp_path / "a.parquet", ["", ""]), tokenizer)


def test_a_missing_package_names_the_extra(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_documents(tmp_path / "a.parquet", ["a"])
    made = FolderTokenizer(tokenizer, "tokenizer")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(DataError, match=r"needs the package pyarrow; run pip install '\.\[data\]' in a clone"):
        make_token_file(DocumentsData(path=str(path)), tmp_path / "out", made)
    with pytest.raises(
        DataError, match=r"^tokenizer: needs the package tokenizers; run pip install '\.\[data\]' in a clone"
    ):
        FolderTokenizer(tokenizer, "tokenizer")


def test_documents_are_bytes_without_a_tokenizer(tmp_path: Path) -> None:
    make_token_file(DocumentsData(path=str(write_documents(tmp_path / "a.parquet", ["ab", "c"]))), tmp_path / "out")
    assert open_token_file(tmp_path / "out").read(0, 5).tolist() == [*b"ab", 256, *b"c", 256]


def test_texts_of_an_iterator_are_documents_with_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diloco.learner.data.token_file_maker._BATCH_BYTES", 3)
    told: list[Progress] = []
    make_token_file((text for text in ("ab", "", b"c", "de")), tmp_path / "out", tell=told.append)
    tokens = open_token_file(tmp_path / "out")
    assert tokens.read(0, len(tokens)).tolist() == [*b"ab", 256, *b"c", 256, *b"de", 256]
    assert [now.done_bytes for now in told] == [3, 5]
    assert str(told[-1]._replace(done_bytes=2_000_000, tokens=30, seconds=10.0)) == "tokenized 2.0 MB, 3 tokens/s"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("corpus.txt", "is one text; use an iterable of texts, or TextData(path=...)"),
        (["a", 1], "document 1 is a int; use str or bytes"),
        (["a", "\ud800"], "source: document 1 has half of a surrogate pair; use valid Unicode"),
        ([], "there are no tokens to write"),
    ],
)
def test_what_is_no_iterator_of_texts_is_one_line(tmp_path: Path, source: Any, told: str) -> None:
    with pytest.raises(DataError, match=f"{re.escape(told)}$"):
        make_token_file(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_progress_grows_with_the_files_and_ends_with_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.parquet", "b.jsonl"):
        write_documents(tmp_path / "corpus" / name, ["the cat"] * 10)
    monkeypatch.setattr("diloco.learner.data.token_file_maker._BATCH_BYTES", 20)
    told: list[Progress] = []
    make_token_file(DocumentsData(path=str(tmp_path / "corpus")), tmp_path / "out", tell=told.append)
    done = [now.done_bytes for now in told]
    assert done == sorted(done)
    assert done[0] < done[-1] <= told[0].all_bytes
    assert told[-1].tokens == 8 * 20
    assert str(told[-1]._replace(done_bytes=50, all_bytes=100, tokens=30, seconds=10.0)) == (
        "tokenized 50% of 0.0 MB, 3 tokens/s, 0:00:10 left"
    )
