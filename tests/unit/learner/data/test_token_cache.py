import fcntl
import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from diloco.learner.data import DataError, DataUnavailableError, TokenFile, token_cache
from diloco.learner.data.opening import open_source
from diloco.learner.data.source import DataStoppedError
from diloco.learner.data.token_cache import cached_tokens
from diloco.learner.data.tokenizer import FolderTokenizer
from diloco.runtime.cache import VARIABLE, cache_folder
from diloco.runtime.object_store import ObjectStore
from diloco.spec.training import DataSpec, DocumentsData
from tests.support.corpora import END, write_documents, write_tokenizer
from tests.support.machine_limits import files_of_at_most

FIELD = "data.documents"


@pytest.fixture
def documents(tmp_path: Path) -> DocumentsData:
    path = write_documents(tmp_path / "a.parquet", ["the cat"] * 1000)
    return DocumentsData(path=str(path), tokenizer=str(write_tokenizer(tmp_path / "words")))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "made" / "cache"


def made_in(cache: Path) -> list[str]:
    return sorted(path.suffix for path in cache.iterdir())


def refuse(*_: object) -> None:
    raise AssertionError("tokenized again")


def test_documents_are_tokenized_once(documents: DocumentsData, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cached_tokens(documents, cache, FIELD)
    assert (len(first), first.read(0, 4).tolist()) == (3000, [1, 2, END, 1])
    monkeypatch.setattr(token_cache, "_make", refuse)
    assert cached_tokens(documents, cache, FIELD).info == first.info
    assert made_in(cache) == ["", ".tokens"]


@pytest.mark.parametrize("change", ["content", "column", "tokenizer", "end"])
def test_other_documents_or_another_tokenizer_are_tokenized_anew(
    documents: DocumentsData, cache: Path, tmp_path: Path, change: str
) -> None:
    first = cached_tokens(documents, cache, FIELD)
    changes: dict[str, Any] = {}
    match change:
        case "content":
            os.utime(documents.path, ns=(0, 0))
        case "column":
            write_documents(tmp_path / "a.parquet", ["the cat"] * 1000, column="body")
            changes = {"column": "body"}
        case "tokenizer":
            changes = {"tokenizer": None}
        case _:
            write_tokenizer(tmp_path / "words", eos_token="mat")
    other = cached_tokens(documents.model_copy(update=changes), cache, FIELD)
    assert other.info != first.info or change in {"content", "column"}
    assert made_in(cache) == ["", ".tokens", ".tokens"]


def test_tokens_of_changed_documents_are_removed_unless_they_are_read(
    documents: DocumentsData, cache: Path, tmp_path: Path
) -> None:
    """Those of other documents stay."""
    other = DocumentsData(path=str(write_documents(tmp_path / "b.parquet", ["a mat"])))
    cached_tokens(other, cache, FIELD)
    read = cached_tokens(documents, cache, FIELD)
    for changed in (1, 2, 3):
        os.utime(documents.path, ns=(0, changed))
        cached_tokens(documents, cache, FIELD)
        assert made_in(cache) == ["", ".tokens", ".tokens", ".tokens"]
    assert read.read(0, 4).tolist() == [1, 2, END, 1]
    del read
    os.utime(documents.path, ns=(0, 4))
    cached_tokens(documents, cache, FIELD)
    assert made_in(cache) == ["", ".tokens", ".tokens"]


@pytest.mark.parametrize("there", [True, False])
def test_tokens_removed_before_they_are_open_are_made_again(
    documents: DocumentsData, cache: Path, monkeypatch: pytest.MonkeyPatch, *, there: bool
) -> None:
    if there:
        cached_tokens(documents, cache, FIELD)
    opened = token_cache._opened

    def open_late(path: Path) -> TokenFile:
        monkeypatch.setattr(token_cache, "_opened", opened)
        with (cache / "lock").open("w") as lock:
            if token_cache._has_locked(lock):  # as another process whose documents are newer
                path.unlink()
        return opened(path)

    monkeypatch.setattr(token_cache, "_opened", open_late)
    assert len(cached_tokens(documents, cache, FIELD)) == 3000


def test_one_process_makes_the_tokens_and_the_others_wait(
    documents: DocumentsData, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    begun, waiting, made = threading.Event(), threading.Event(), []
    make, lock = token_cache._make, token_cache._lock

    def slowly(*arguments: Any) -> None:
        begun.set()
        assert waiting.wait(20)
        made.append(arguments)
        make(*arguments)

    def watched(*arguments: Any) -> None:
        if begun.is_set():
            waiting.set()
        lock(*arguments)

    monkeypatch.setattr(token_cache, "_make", slowly)
    monkeypatch.setattr(token_cache, "_lock", watched)
    opened: list[TokenFile] = []
    threads = [threading.Thread(target=lambda: opened.append(cached_tokens(documents, cache, FIELD))) for _ in "ab"]
    threads[0].start()
    assert begun.wait(20)
    threads[1].start()
    for thread in threads:
        thread.join(20)
    assert [len(file) for file in opened] == [3000, 3000]
    assert len(made) == 1


def test_a_process_that_is_to_stop_stops_tokenizing_and_waiting(documents: DocumentsData, cache: Path) -> None:
    def stopped() -> None:
        with pytest.raises(DataStoppedError):
            cached_tokens(documents, cache, FIELD, lambda: True)

    stopped()
    (lock,) = cache.iterdir()
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        stopped()
    assert made_in(cache) == [""]


def test_what_a_killed_process_has_left_is_removed(documents: DocumentsData, cache: Path) -> None:
    cached_tokens(documents, cache, FIELD)
    (made,) = cache.glob("*.tokens")
    made.rename(cache / f".{made.name}.x1.part")
    (cache / ".copy.x1.part").mkdir()
    (cache / ".of_other_documents.tokens.x1.part").touch()
    assert len(cached_tokens(documents, cache, FIELD)) == 3000
    assert made_in(cache) == ["", ".tokens"]


@pytest.mark.parametrize("pattern", ["*.jsonl", "a.jsonl"])
def test_files_of_a_store_are_copied_one_by_one_only_to_be_tokenized(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        write_documents(tmp_path / "bucket" / name, ["the cat"])
    (tmp_path / "bucket" / "a.txt").touch()
    seen: list[list[str]] = []
    download = ObjectStore.download

    def watched(self: ObjectStore, name: str, path: Path, size_bytes: int) -> str:
        digest = download(self, name, path, size_bytes)
        seen.append([one.name for one in cache.rglob("*.jsonl")])
        return digest

    monkeypatch.setattr(ObjectStore, "download", watched)
    documents = DocumentsData(path=f"file://{tmp_path}/bucket/{pattern}")
    made = cached_tokens(documents, cache, FIELD)
    assert cached_tokens(documents, cache, FIELD).info == made.info
    assert sorted(seen) == ([["a.jsonl"], ["b.jsonl"]] if "*" in pattern else [["a.jsonl"]])
    assert len(made) == 8 * len(seen)
    assert made_in(cache) == ["", ".tokens"]


def test_what_is_wrong_with_a_store_or_its_files_is_one_line(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_documents(tmp_path / "bucket" / "a.jsonl", ["the cat"])
    url = f"file://{tmp_path}/bucket"
    with pytest.raises(DataError, match=f"^data.documents.path: {url}/none matches no file with content; use BUCKET"):
        cached_tokens(DocumentsData(path=f"{url}/none"), cache, FIELD)
    download = ObjectStore.download

    def late(*arguments: Any) -> str:
        os.utime(path, ns=(0, 0))
        return download(*arguments)

    monkeypatch.setattr(ObjectStore, "download", late)
    with pytest.raises(DataError, match=rf"^data.documents.path: a.jsonl in {url} has changed; start again when it"):
        cached_tokens(DocumentsData(path=f"{url}/*"), cache, FIELD)
    grown = path.read_bytes()
    path.write_bytes(b" ")

    def larger(*arguments: Any) -> str:
        path.write_bytes(grown)
        return download(*arguments)

    monkeypatch.setattr(ObjectStore, "download", larger)
    with pytest.raises(DataUnavailableError, match=rf"^data.documents.path: {url}: a.jsonl is larger than 1 bytes$"):
        cached_tokens(DocumentsData(path=f"{url}/*"), cache, FIELD)
    assert made_in(cache) == [""]


def test_a_disk_without_room_is_one_line_that_names_the_variable(
    documents: DocumentsData, cache: Path, tmp_path: Path
) -> None:
    told = rf"^{FIELD}: {cache}/[\w-]+.tokens cannot be written; free space, or name another folder in {VARIABLE}: "
    with files_of_at_most(4096), pytest.raises(DataError, match=f"{told}File too large$"):
        cached_tokens(documents, cache, FIELD)
    assert made_in(cache) == [""]
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="Not a directory"):
        cached_tokens(documents, tmp_path / "file" / "cache", FIELD)


def test_the_manifests_documents_are_kept_where_the_variable_says(
    documents: DocumentsData, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DataSpec(documents=documents)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert len(open_source(data, cache)) == 3000
    monkeypatch.setenv(VARIABLE, str(tmp_path / "named"))
    assert len(open_source(data, cache)) == 3000
    assert made_in(tmp_path / "named") == made_in(cache) == ["", ".tokens"]


def test_the_cache_is_in_the_home_directory_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/.cache/diloco")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 12345)  # in no list of users
    assert cache_folder() == Path.cwd() / ".cache" / "diloco"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, " has no tokenizer.json; make it with transformers'"),
        ("{}", "/tokenizer.json is not a tokenizer"),
        ("PK\x03\x04", "/tokenizer.json is not a tokenizer"),
        ("version https://git-lfs.github.com/spec/v1\n", "/tokenizer.json is a pointer of git-lfs, not the file"),
    ],
)
def test_a_folder_without_a_tokenizer_is_refused(
    documents: DocumentsData, cache: Path, tmp_path: Path, content: str | None, told: str
) -> None:
    path = tmp_path / "words" / "tokenizer.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(DataError, match=rf"^data.documents.tokenizer: {tmp_path / 'words'}{told}") as raised:
        cached_tokens(documents, cache, FIELD)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("special_tokens_map.json", {"eos_token": {"content": "mat"}}),
        ("special_tokens_map.json", {"eos_token": "mat"}),
        ("generation_config.json", {"eos_token_id": 6}),
        ("generation_config.json", {"eos_token_id": [6, 7]}),
        ("config.json", {"eos_token_id": [6]}),
    ],
)
def test_any_file_of_a_tokenizer_may_name_the_end(tmp_path: Path, name: str, value: object) -> None:
    folder = write_tokenizer(tmp_path / "words", eos_token=None)
    (folder / name).write_text(json.dumps(value))
    assert FolderTokenizer(folder, "tokenizer").end_of_document == 6


@pytest.mark.parametrize("special", [True, False])
def test_the_name_of_a_control_token_in_a_text_is_text(tmp_path: Path, *, special: bool) -> None:
    folder = write_tokenizer(tmp_path / "words")
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"special": true', f'"special": {json.dumps(special)}'))
    assert FolderTokenizer(folder, "tokenizer").encode(b"the cat<end> <end>") == [1, 0, 0]


def test_a_control_token_that_no_text_becomes_needs_no_place_in_the_model(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "words")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["[PAD]"])
    tokenizer.save(str(folder / "tokenizer.json"))
    assert (tokenizer.token_to_id("[PAD]"), FolderTokenizer(folder, "tokenizer").vocabulary_size) == (END + 1, END + 1)


@pytest.mark.parametrize(
    ("config", "model", "told"),
    [
        ({"eos_token": None}, '{"eos_token_id": [6, 7]}', None),
        ({"eos_token": "<none>"}, "{}", "the end of document <none> is not in its vocabulary"),
        ({"other": 1}, '{"eos_token_id": 8}', "the end of document 8 is not in its vocabulary"),
        ({"other": 1}, "{}", "no end of document"),
        ({"other": 1}, "{", "not JSON"),
    ],
)
def test_the_end_of_a_document_is_the_tokenizers_or_the_models(
    tmp_path: Path, config: dict[str, Any], model: str, told: str | None
) -> None:
    folder = write_tokenizer(tmp_path / "words", **config)
    (folder / "config.json").write_text(model)
    if told is None:
        assert FolderTokenizer(folder, "tokenizer").end_of_document == 6
    else:
        with pytest.raises(DataError, match=f"^tokenizer: .*{told}"):
            FolderTokenizer(folder, "tokenizer")
