import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diloco.learner.data import DataError, TokenFile, make_token_file, open_token_file, token_file_maker
from diloco.learner.data.opening import open_source
from diloco.learner.data.tokenfile import write_token_file
from diloco.learner.data.tokenizer import open_tokenizer
from diloco.spec.training import DataSpec, TextData
from tests.support.damage import flip
from tests.support.entrypoints import WordTokenizer
from tests.support.watched_disk import watch_disk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data.tokens"


def write(path: Path, count: int = 700_000, vocabulary_size: int = 60_000) -> np.ndarray:
    """More than one MiB, in chunks that do not end where blocks do."""
    tokens = np.random.default_rng(0).integers(0, vocabulary_size, count)
    write_token_file(path, np.array_split(tokens, 7), vocabulary_size, "random")
    return tokens


def rewrite_header(path: Path, **changes: Any) -> None:
    content = path.read_bytes()
    length = int.from_bytes(content[12:16], "little")
    described = json.dumps(json.loads(content[16 : 16 + length]) | changes).encode()
    header = content[:12] + len(described).to_bytes(4, "little") + described
    path.write_bytes(header.ljust(4096, b"\0") + content[4096:])


@pytest.mark.parametrize("vocabulary_size", [0, (1 << 32) + 1])
def test_a_vocabulary_that_no_file_can_have_is_refused(path: Path, vocabulary_size: int) -> None:
    with pytest.raises(DataError, match=f"^tokenizer t: has a vocabulary of {vocabulary_size}$"):
        write_token_file(path, [np.array([0])], vocabulary_size, "t")
    write(path, 10)
    rewrite_header(path, vocabularySize=vocabulary_size)
    with pytest.raises(DataError, match=f"vocabularySize is {vocabulary_size}, count is 10"):
        open_token_file(path)


def test_a_file_is_forced_to_disk_before_its_rename_and_readable_by_all(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = watch_disk(monkeypatch)
    write(path, 1000)
    whole = path.read_bytes()
    assert done == [("forced", ".", whole), ("named", path.name, whole), ("forced", path.parent.name, b"")]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.parametrize(("length", "opens"), [(4080, True), (4081, False)])
def test_a_header_may_fill_its_block_and_no_more(path: Path, length: int, *, opens: bool) -> None:
    write(path, 10)
    content = path.read_bytes()
    described = content[16:4096].rstrip(b"\0").ljust(4080)
    path.write_bytes(content[:12] + length.to_bytes(4, "little") + described + content[4096:])
    if opens:
        assert len(open_token_file(path)) == 10
    else:
        with pytest.raises(DataError, match="cut off or damaged in its header"):
            open_token_file(path)


@pytest.mark.parametrize(
    ("vocabulary_size", "dtype"),
    [
        (1, "uint8"),
        (256, "uint8"),
        (257, "uint16"),
        (65_536, "uint16"),
        (65_537, "uint32"),
        (1 << 32, "uint32"),
    ],
)
def test_tokens_come_back_in_the_smallest_type_that_holds_them(path: Path, vocabulary_size: int, dtype: str) -> None:
    tokens = [0, vocabulary_size - 1]
    write_token_file(path, [np.array(tokens)], vocabulary_size, "t" * 300)
    file = open_token_file(path)
    assert (file.info.dtype, file.vocabulary_size, file.info.tokenizer) == (dtype, vocabulary_size, "t" * 256)
    assert file.read(0, 2).tolist() == tokens


def test_any_stretch_is_read(path: Path) -> None:
    tokens = write(path)
    file = open_token_file(path)
    assert len(file) == len(tokens)
    for start, stop in [(0, 1), (524_280, 524_300), (699_999, 700_000), (10, 10)]:
        assert file.read(start, stop).tolist() == tokens[start:stop].tolist()


def test_a_flipped_bit_is_found_where_it_is_first_read_and_only_there(path: Path) -> None:
    write(path)
    flip(path, 4096 + (1 << 20) + 5)
    file = open_token_file(path)
    file.read(0, 1000)
    with path.open("r+b") as there:  # the same file, which stays mapped
        there.seek(4096)
        there.write(b"\xff\xff")
    file.read(0, 1000)
    with pytest.raises(DataError, match=r"data.tokens: is damaged between bytes 1052672 and"):
        file.read(524_280, 524_300)


def test_damaged_files_are_refused_when_they_are_opened(path: Path) -> None:
    def cut() -> None:
        path.write_bytes(path.read_bytes()[:-1])

    def cut_to_nothing() -> None:
        path.write_bytes(b"")

    def cut_in_header() -> None:
        path.write_bytes(path.read_bytes()[:100])

    def version() -> None:
        path.write_bytes(b"DILOCOTK" + (2).to_bytes(4, "little") + bytes(4))

    def pipe() -> None:
        path.unlink()
        os.mkfifo(path)

    def foreign() -> None:
        path.write_bytes(b"\x89PNG" + path.read_bytes()[4:])

    def pointer() -> None:
        path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 9\n")

    for damage, message in [
        (cut, r"has \d+ bytes, its header says \d+; it was cut off or written to"),
        (cut_to_nothing, "is not a token file; make one with `diloco tokens`"),
        (cut_in_header, "cut off or damaged in its header"),
        (version, "is a token file of version 2, this diloco reads version 1"),
        (foreign, "is not a token file"),
        (pointer, "is a pointer of git-lfs, not the file itself; run 'git lfs pull'"),
        (lambda: flip(path, path.stat().st_size - 1), "its checksums are damaged"),
        (lambda: flip(path, 16), "its header is damaged"),
        (lambda: rewrite_header(path, count=10**15), "its header says"),
        (lambda: rewrite_header(path, count=-1), "its header is damaged"),
        (lambda: rewrite_header(path, count=float("inf")), "its header is damaged"),
        (lambda: rewrite_header(path, tokenizer=json.loads("[" * 200 + "]" * 200)), "its header is damaged"),
        (lambda: rewrite_header(path, dtype="float64"), "dtype is float64, allowed are uint8, uint16, uint32"),
        (path.unlink, "No such file"),
        (pipe, "is not a regular file; use one"),
    ]:
        write(path, 5000)
        damage()
        with pytest.raises(DataError, match=message) as raised:
            open_token_file(path)
        assert str(path) in str(raised.value)
        assert "\n" not in str(raised.value)


def test_the_manifests_token_file_is_opened_and_its_field_named(path: Path) -> None:
    data = DataSpec.model_validate({"tokens": {"path": str(path)}})
    with pytest.raises(DataError, match=r"^data.tokens.path: .*data.tokens: No such file"):
        open_source(data)
    write(path, 100)
    assert isinstance(open_source(data), TokenFile)


def test_a_folder_of_text_becomes_the_tokens_that_data_text_would_give(tmp_path: Path, path: Path) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"some words\n" * 500_000)  # more than one piece
    (folder / "b.txt").write_bytes(bytes(range(1, 256)))
    (folder / "c.txt").write_bytes(b"\x80" * (5 << 20))  # no UTF-8
    text = TextData(path=str(folder))
    info = make_token_file(text, path)
    file, source = open_token_file(path), open_source(DataSpec(text=text))
    assert info == file.info
    assert (info.tokenizer, info.vocabulary_size) == ("bytes", 257)
    assert np.array_equal(file.read(0, len(file)), source.read(0, len(source)))


def test_a_tokenizer_of_the_users_own_makes_the_tokens(tmp_path: Path, path: Path) -> None:
    (tmp_path / "a.txt").write_text("one three\na")
    tokenizer = open_tokenizer("tests.support.entrypoints:word_tokenizer")
    info = make_token_file(TextData(path=str(tmp_path)), path, tokenizer)
    assert (info.tokenizer, info.vocabulary_size) == ("words", 10)
    assert open_token_file(path).read(0, 4).tolist() == [3, 5, 1, 9]


class PiecesTokenizer:
    """Keeps what it is given, which must be whole characters."""

    name = "pieces"
    vocabulary_size = 2
    end_of_document = 1

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def encode(self, piece: bytes) -> list[int]:
        self.pieces.append(piece.decode())
        return [0]


def pieces_of(path: Path, text: str, piece_bytes: int) -> list[str]:
    """The pieces, of so many bytes, that a tokenizer is given of a text."""
    (path.parent / "a.txt").write_text(text)
    tokenizer = PiecesTokenizer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_file_maker, "_PIECE_BYTES", piece_bytes)
        make_token_file(TextData(path=str(path.parent)), path, tokenizer)
    return tokenizer.pieces


@pytest.mark.parametrize("letters", ["\N{CJK UNIFIED IDEOGRAPH-4E2D}", "\xe9", "\N{GRINNING FACE}", "a"])
@pytest.mark.parametrize("before", range(4))
def test_a_long_line_is_cut_between_characters(path: Path, letters: str, before: int) -> None:
    text = "a" * before + letters * 40
    pieces = pieces_of(path, text, 21)
    assert len(pieces) > 1
    assert "".join(pieces) == text


def test_a_long_line_of_words_is_cut_between_words(path: Path) -> None:
    assert pieces_of(path, "one two three four", 10) == ["one two ", "three four"]


def test_json_lines_are_no_text_unless_they_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.jsonl").write_text('{"text": "no"}')
    assert len(open_source(DataSpec(text=TextData(path=str(tmp_path))))) == 5
    assert len(open_source(DataSpec(text=TextData(path=str(tmp_path), include=("*.jsonl",))))) == 15


def test_a_document_that_the_tokenizer_does_not_take_is_named(tmp_path: Path, path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"tokenizer words: .*latin.txt: UnicodeDecodeError"):
        make_token_file(TextData(path=str(tmp_path)), path, open_tokenizer("tests.support.entrypoints:word_tokenizer"))


@pytest.mark.parametrize("encoded", ["text", ["te", "xt"], [0.5], [[1, 2]], 3, None])
def test_a_tokenizer_that_returns_no_token_ids_is_named(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch, encoded: object
) -> None:
    (tmp_path / "a.txt").write_text("text")
    tokenizer = open_tokenizer("tests.support.entrypoints:word_tokenizer")
    monkeypatch.setattr(WordTokenizer, "encode", lambda *_: encoded)
    with pytest.raises(DataError, match=r"tokenizer words: .*a.txt: encode returned .* not a list of token ids"):
        make_token_file(TextData(path=str(tmp_path)), path, tokenizer)


def test_an_entrypoint_that_is_no_tokenizer_is_refused() -> None:
    with pytest.raises(DataError, match="returned a object without name, vocabulary_size, end_of_document and encode"):
        open_tokenizer("tests.support.entrypoints:no_module")


@pytest.mark.parametrize(("field", "value"), [("name", 3), ("vocabulary_size", "10"), ("end_of_document", "end")])
def test_a_tokenizer_whose_numbers_are_text_is_refused(
    monkeypatch: pytest.MonkeyPatch, field: str, value: object
) -> None:
    monkeypatch.setattr(WordTokenizer, field, value)
    with pytest.raises(DataError, match=rf"word_tokenizer: {field} is {value!r}; use "):
        open_tokenizer("tests.support.entrypoints:word_tokenizer")


def test_ids_outside_the_vocabulary_are_refused_and_nothing_is_left(path: Path) -> None:
    for chunk, wrong in (([3, 7, 1], 7), ([0, 9], 9), ([-1, 3], -1), ([-2, 9], -2)):
        with pytest.raises(DataError, match=f"tokenizer t: made token id {wrong}, its vocabulary has 7"):
            write_token_file(path, [np.array([1, 2]), np.array(chunk)], 7, "t")
    with pytest.raises(DataError, match="no tokens"):
        write_token_file(path, [], 7, "t")
    assert not list(path.parent.iterdir())


def test_a_full_disk_leaves_the_file_that_was_there(path: Path) -> None:
    tokens = write(path, 100)

    def chunks() -> Iterator[np.ndarray]:
        yield np.arange(5)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_token_file(path, chunks(), 60_000, "t")
    assert open_token_file(path).read(0, 100).tolist() == tokens.tolist()
    assert [left.name for left in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_or_device_is_not_replaced_by_a_token_file(tmp_path: Path, *, linked: bool) -> None:
    (tmp_path / "a.txt").write_text("text")
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    with pytest.raises(DataError, match=r"cannot be written: is not a regular file; use one"):
        make_token_file(TextData(path=str(tmp_path / "a.txt")), link if linked else pipe)
    assert pipe.is_fifo()
    assert link.is_symlink()


def test_an_output_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(DataError, match=r"missing/out: cannot be written: No such file or directory"):
        make_token_file(TextData(path=str(tmp_path)), tmp_path / "missing" / "out")
