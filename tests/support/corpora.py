"""Small corpora in every format that is read, and a tokenizer for them, as files."""

import bz2
import gzip
import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = ("the", "cat", "sat", "on", "a", "mat")
END = 7
"""The id that ends a document."""


def write_tokenizer(folder: Path, **config: Any) -> Path:
    """One id for each of WORDS from 1 on, 0 for others, and an added end of document; a document is cut and padded."""
    vocabulary = {"[UNK]": 0} | {word: index for index, word in enumerate(WORDS, 1)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=5)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config or {"eos_token": {"content": "<end>"}}))
    return folder


def compressed(content: bytes, ending: str) -> bytes:
    """As one, or for .gz two, of the parts that such a file may have."""
    half = len(content) // 2
    match ending:
        case ".gz":
            return gzip.compress(content[:half]) + gzip.compress(content[half:])
        case ".zst":
            return bytes(pa.compress(content, codec="zstd", asbytes=True))
        case ".bz2":
            return bz2.compress(content)
        case _:
            return lzma.compress(content)


def write_documents(path: Path, texts: Sequence[object], column: str = "text") -> Path:
    """The texts at ``path``, in the format that its name says; a name without an ending is a saved dataset's folder."""
    rows = [json.dumps({"id": index, column: text}) for index, text in enumerate(texts)]
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"id": list(range(len(texts))), column: list(texts)})
    match path.suffix.lower():
        case ".parquet":
            parquet.write_table(table, path, row_group_size=2)
        case ".gz" | ".zst" | ".bz2" | ".xz":
            path.write_bytes(compressed("\n".join(rows).encode(), path.suffix))
        case ".jsonl" | ".json" | ".ndjson":
            path.write_text("\n".join(rows) + "\n\n")
        case _:
            path.mkdir()
            name = "data-00000-of-00001.arrow"
            with pa.ipc.new_stream(str(path / name), table.schema) as stream:
                stream.write_table(table, max_chunksize=2)
            (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    return path
