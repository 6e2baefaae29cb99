"""Documents in a bucket of a real S3 server."""

from pathlib import Path

import pytest

from diloco.learner.data.token_cache import cached_tokens
from diloco.runtime.object_store import open_store
from diloco.spec.training import DocumentsData
from tests.support.corpora import write_documents
from tests.support.s3_server import s3_server

pytestmark = pytest.mark.processes


def test_a_file_of_a_bucket_that_changes_is_tokenized_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one has as many bytes as the first."""
    cache = tmp_path / "cache"
    with s3_server(monkeypatch) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        store, documents = open_store("s3://kept/corpus"), DocumentsData(path="s3://kept/corpus/*.jsonl")
        for name, text in (("a", "the cat"), ("b", "a mat"), ("b", "a dog")):
            source = write_documents(tmp_path / f"{name}.jsonl", [text])
            store.upload(source, source.name, lambda _: True)
            tokens = cached_tokens(documents, cache, "data.documents")
            again = cached_tokens(documents, cache, "data.documents")
            assert again.info == tokens.info
            assert text.encode() in tokens.read(0, len(tokens)).astype("u1").tobytes()
    assert len(tokens) == len("the cat") + len("a dog") + 2
