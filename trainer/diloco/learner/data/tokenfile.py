"""A file of tokens that is memory-mapped, so that it may be larger than memory and opens at once.

    0     8 bytes   magic, "DILOCOTK"
    8     u32       version, 1
    12    u32       length of the JSON header
    16    JSON      dtype, vocabularySize, count, tokenizer, digest, endOfDocument; then zeros
    4096            the tokens, little-endian
    ...   u64 each  XXH3-64 of every MiB of tokens

``digest`` is the XXH3-128 of the checksums in order, and so covers every token. Each MiB is checked when it is first
read, so opening stays cheap and a flipped bit is found before it is trained on.
"""

import errno
import json
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from diloco.learner.data.source import DataError, Tokens, unreadable
from diloco.runtime.file_kind import problem_of_pointer
from diloco.runtime.files import open_regular, written_atomically
from diloco.runtime.json_text import parse_json

_MAGIC = b"DILOCOTK"
_VERSION = 1
_PREFIX = struct.Struct("<8sII")
_DATA_OFFSET = 4096
_BLOCK_BYTES = 1 << 20
_DTYPES: Final[dict[str, np.dtype[np.unsignedinteger[Any]]]] = {
    "uint8": np.dtype("u1"),
    "uint16": np.dtype("<u2"),
    "uint32": np.dtype("<u4"),
}
_VOCABULARY_SIZE_LIMIT = 1 << 32


@dataclass(frozen=True, slots=True)
class TokenFileInfo:
    """A token file's header."""

    dtype: str
    """uint8, uint16 or uint32."""
    vocabulary_size: int
    count: int
    tokenizer: str
    digest: str
    """Digest of all tokens, hexadecimal."""
    end_of_document: int | None = None
    """The id that ends each document. None: not known."""

    @property
    def data_bytes(self) -> int:
        """Size of the tokens."""
        return self.count * _DTYPES[self.dtype].itemsize

    @property
    def blocks(self) -> int:
        """Number of checksums."""
        return -(-self.data_bytes // _BLOCK_BYTES)


class TokenFile:
    """A ``TokenSource`` that reads a token file. Created by ``open_token_file``."""

    def __init__(self, path: Path, info: TokenFileInfo, checksums: NDArray[np.uint64]) -> None:
        self._path = path
        self.info = info
        self._checksums = checksums
        self._checked = np.zeros(info.blocks, dtype=np.bool_)
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r", offset=_DATA_OFFSET, shape=(info.data_bytes,))
        self._tokens = self._bytes.view(_DTYPES[info.dtype])

    @property
    def vocabulary_size(self) -> int:
        """As the header says."""
        return self.info.vocabulary_size

    @property
    def end_of_document(self) -> int | None:
        """As the header says."""
        return self.info.end_of_document

    def __len__(self) -> int:
        return self.info.count

    def read(self, start: int, stop: int) -> Tokens:
        """Tokens ``start`` to ``stop``, a view of the mapped file.

        Raises:
            DataError: they are damaged.
        """
        width = self._tokens.itemsize
        for block in range(start * width // _BLOCK_BYTES, -(-stop * width // _BLOCK_BYTES)):
            if not self._checked[block]:
                self._check(block)
        return self._tokens[start:stop]

    def _check(self, block: int) -> None:
        content = self._bytes[block * _BLOCK_BYTES : (block + 1) * _BLOCK_BYTES]
        if xxhash.xxh3_64_intdigest(content.data) != int(self._checksums[block]):
            first = _DATA_OFFSET + block * _BLOCK_BYTES
            raise DataError(f"{self._path}: is damaged between bytes {first} and {first + len(content)}; recreate it")
        self._checked[block] = True


def open_token_file(path: Path) -> TokenFile:
    """Open a token file and check its header, length and checksums' digest; the tokens are checked when they are read.

    Raises:
        DataError: it is missing, not a token file, of another version, truncated or damaged; the text names it.
    """
    try:
        with open_regular(path) as file:
            info = _read_header(path, file)
            wanted = _DATA_OFFSET + info.data_bytes + 8 * info.blocks
            there = os.fstat(file.fileno()).st_size
            if there != wanted:
                raise DataError(f"{path}: has {there} bytes, its header says {wanted}; it was cut off or written to")
            file.seek(_DATA_OFFSET + info.data_bytes)
            row = file.read(8 * info.blocks)
    except OSError as error:
        raise unreadable(str(path), error) from error
    if xxhash.xxh3_128_hexdigest(row) != info.digest:
        raise DataError(f"{path}: its checksums are damaged; recreate it")
    return TokenFile(path, info, np.frombuffer(row, dtype="<u8"))


def write_token_file(
    path: Path, chunks: Iterable[Tokens], vocabulary_size: int, tokenizer: str, end_of_document: int | None = None
) -> TokenFileInfo:
    """Write ``chunks`` of tokens, one after the other, as a token file: complete and on disk, or not at all.

    Raises:
        DataError: there are no tokens, or an id is outside the vocabulary.
        OSError: it could not be written; what was at ``path`` before is unchanged. A device or pipe is not replaced.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "is not a regular file; use one", str(path))
    with written_atomically(path) as file:
        info = _write(file, chunks, vocabulary_size, tokenizer, end_of_document)
        file.seek(0)
        file.write(_header(info))
    return info


def _write(
    file: IO[bytes], chunks: Iterable[Tokens], vocabulary_size: int, tokenizer: str, end_of_document: int | None
) -> TokenFileInfo:
    """All but the header."""
    if not 1 <= vocabulary_size <= _VOCABULARY_SIZE_LIMIT:
        raise DataError(f"tokenizer {tokenizer}: has a vocabulary of {vocabulary_size}")
    dtype = next(name for name, kind in _DTYPES.items() if vocabulary_size <= 1 << 8 * kind.itemsize)
    checksums: list[int] = []
    pending = bytearray()
    count = 0
    file.seek(_DATA_OFFSET)
    for chunk in chunks:
        if not len(chunk):
            continue
        if chunk.min() < 0 or chunk.max() >= vocabulary_size:
            wrong = int(chunk.min()) if chunk.min() < 0 else int(chunk.max())
            raise DataError(f"tokenizer {tokenizer}: made token id {wrong}, its vocabulary has {vocabulary_size}")
        count += len(chunk)
        pending += chunk.astype(_DTYPES[dtype]).tobytes()
        whole = len(pending) // _BLOCK_BYTES * _BLOCK_BYTES
        checksums += [
            _write_block(file, pending[first : first + _BLOCK_BYTES]) for first in range(0, whole, _BLOCK_BYTES)
        ]
        del pending[:whole]
    if not count:
        raise DataError("there are no tokens to write")
    if pending:
        checksums.append(_write_block(file, pending))
    row = struct.pack(f"<{len(checksums)}Q", *checksums)
    file.write(row)
    return TokenFileInfo(dtype, vocabulary_size, count, tokenizer, xxhash.xxh3_128_hexdigest(row), end_of_document)


def _write_block(file: IO[bytes], block: bytearray) -> int:
    file.write(block)
    return xxhash.xxh3_64_intdigest(block)


def _header(info: TokenFileInfo) -> bytes:
    described = json.dumps(
        {
            "dtype": info.dtype,
            "vocabularySize": info.vocabulary_size,
            "count": info.count,
            "tokenizer": info.tokenizer[:256],
            "digest": info.digest,
            "endOfDocument": info.end_of_document,
        }
    ).encode()
    return (_PREFIX.pack(_MAGIC, _VERSION, len(described)) + described).ljust(_DATA_OFFSET, b"\0")


def _read_header(path: Path, file: IO[bytes]) -> TokenFileInfo:
    block = file.read(_DATA_OFFSET)
    if len(block) < _PREFIX.size or block[: len(_MAGIC)] != _MAGIC:
        problem = problem_of_pointer(block) or "is not a token file; make one with `diloco tokens`"
        raise DataError(f"{path}: {problem}")
    _, version, length = _PREFIX.unpack_from(block)
    if version != _VERSION:
        raise DataError(f"{path}: is a token file of version {version}, this diloco reads version {_VERSION}")
    if len(block) < _DATA_OFFSET or length > _DATA_OFFSET - _PREFIX.size:
        raise DataError(f"{path}: is a token file that was cut off or damaged in its header")
    try:
        return _info(parse_json(block[_PREFIX.size : _PREFIX.size + length]))
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise DataError(f"{path}: its header is damaged ({error})") from error


def _text(plain: dict[str, Any], key: str) -> str:
    if not isinstance(plain[key], str):
        raise TypeError(f"{key} is not text")
    return str(plain[key])


def _info(plain: dict[str, Any]) -> TokenFileInfo:
    info = TokenFileInfo(
        dtype=_text(plain, "dtype"),
        vocabulary_size=int(plain["vocabularySize"]),
        count=int(plain["count"]),
        tokenizer=_text(plain, "tokenizer"),
        digest=_text(plain, "digest"),
        end_of_document=plain.get("endOfDocument"),
    )
    if info.dtype not in _DTYPES:
        raise ValueError(f"dtype is {info.dtype}, allowed are {', '.join(_DTYPES)}")
    if not 1 <= info.vocabulary_size <= _VOCABULARY_SIZE_LIMIT or info.count < 1:
        raise ValueError(f"vocabularySize is {info.vocabulary_size}, count is {info.count}")
    return info
