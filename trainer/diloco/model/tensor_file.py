"""Writes and reads safetensors files in one pass, with the SHA-256 of every byte taken on the way.

A written file is not read back: that would show the page cache and not the disk. What is torn or changed later is found
at loading, when the digest of the bytes that were read is compared with the one that was written elsewhere.
"""

import hashlib
import json
import math
import operator
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import torch
from torch import Tensor

from diloco.core.buffers import bytes_of
from diloco.model.errors import ModelError
from diloco.runtime.files import UnusableFileError, open_regular
from diloco.runtime.json_text import parse_json

_TYPES: Final = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES: Final = {dtype: name for name, dtype in _TYPES.items()}
_METADATA: Final = "__metadata__"
_LENGTH_BYTES: Final = 8
_HEADER_BYTES: Final = 100_000_000
"""Most bytes of a header, as in the library."""
_BLOCK_BYTES: Final = 1 << 20
"""What is hashed, and written or read, in one go: it fits a core's cache."""

Boxes = Mapping[str, tuple[slice, ...]]
"""Which elements of tensors, by name; ``()``: all of one."""


class TensorType(NamedTuple):
    """Type and shape of a tensor in a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def fits_a_file(tensor: Tensor) -> bool:
    """Whether the format has the tensor's type, and a place for all of its values."""
    return tensor.dtype in _NAMES and tensor.layout is torch.strided and tensor.device.type != "meta"


def write_tensor_file(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> str:
    """Write ``tensors``, on any device, to ``path``, and wait until they are on disk; returns the file's SHA-256.

    Raises:
        OSError: it could not be written; a part of it may be there.
        ValueError: a tensor's type has no name in the format.
    """
    # As the library orders them, so that each is aligned.
    names = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in _NAMES:
            raise ValueError(f"{name}: its type is {tensor.dtype}; use one of {', '.join(map(str, _NAMES))}")
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    digest = hashlib.sha256()
    try:
        with path.open("wb") as file:
            for data in _contents(text, (tensors[name] for name in names)):
                for block in _blocks(data):
                    digest.update(block)
                    file.write(block)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = str(path)  # which a write does not name
        raise
    return digest.hexdigest()


class TensorFile:
    """A file that is open for reading; see `opened`."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        """Raises UnusableFileError: it is not a safetensors file, or not a whole one."""
        self._path, self._file = path, file
        size = os.fstat(file.fileno()).st_size
        start = file.read(_LENGTH_BYTES)
        length = int.from_bytes(start, "little")
        if len(start) + length > size or not 0 < length <= _HEADER_BYTES:
            raise UnusableFileError(f"{path}: not a whole safetensors file")
        text = file.read(length)
        self._digest = hashlib.sha256(start)
        self._digest.update(text)
        self.metadata: dict[str, str] = {}
        self.tensors: dict[str, TensorType] = {}
        """In the order of their data. Together they are as large as the file says."""
        try:
            self._parse(parse_json(text), size - len(start) - length)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UnusableFileError(f"{path}: not a whole safetensors file ({type(error).__name__})") from error

    def _parse(self, header: Any, data_bytes: int) -> None:
        self.metadata = header.pop(_METADATA, {})
        if not all(isinstance(text, str) for text in self.metadata.values()):
            raise ValueError(_METADATA)
        end = 0
        for name, said in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            found = TensorType(_TYPES[said["dtype"]], tuple(map(operator.index, said["shape"])))
            begin, end = end, end + _size_of(found)
            if said["data_offsets"] != [begin, end]:
                raise ValueError(name)
            self.tensors[name] = found
        if end != data_bytes:
            raise ValueError(data_bytes)

    def read(self, boxes: Boxes, digest: str) -> dict[str, Tensor]:
        """What lies in ``boxes``, by name, in memory of its own. Call it once; it reads the file to its end.

        Raises:
            UnusableFileError: the SHA-256 of the whole file is not ``digest``.
            OSError: it could not be read.
        """
        found = {}
        rest = memoryview(bytearray(_BLOCK_BYTES))
        for name, one in self.tensors.items():
            if name in boxes:
                values = torch.empty(one.shape, dtype=one.dtype)
                for block in _blocks(bytes_of(values)):
                    self._fill(block)
                inside = values[boxes[name]]
                found[name] = values if inside.shape == values.shape else inside.clone()
            else:
                size = _size_of(one)
                for first in range(0, size, _BLOCK_BYTES):
                    self._fill(rest[: size - first])
        if self._digest.hexdigest() != digest:
            raise UnusableFileError(f"{self._path}: its digest does not match: it was changed or damaged")
        return found

    def _fill(self, block: memoryview) -> None:
        if self._file.readinto(block) != len(block):  # type: ignore[attr-defined]
            raise UnusableFileError(f"{self._path}: it became shorter while it was read")
        self._digest.update(block)


@contextmanager
def opened(path: Path) -> Iterator[TensorFile]:
    """A safetensors file, for its header and then one `TensorFile.read`.

    Raises:
        UnusableFileError: it is missing, cannot be read, or is not a whole safetensors file; one line.
    """
    try:
        with open_regular(path) as file:
            yield TensorFile(path, file)
    except OSError as error:
        raise UnusableFileError(f"{path}: {error.strerror or error}") from error


def _size_of(one: TensorType) -> int:
    """Bytes of a tensor's data; ValueError: torch can have no such tensor."""
    if min(one.shape, default=0) < 0 or math.prod(max(size, 1) for size in one.shape) >> 60:
        raise ValueError(one.shape)
    return math.prod(one.shape) * one.dtype.itemsize


def _contents(header: bytes, tensors: Iterator[Tensor]) -> Iterator[memoryview]:
    """All bytes of a file; of tensors that lie elsewhere or otherwise, one at a time is copied."""
    yield memoryview(len(header).to_bytes(_LENGTH_BYTES, "little"))
    yield memoryview(header)
    for tensor in tensors:
        yield bytes_of(tensor.detach().cpu().contiguous())


def _blocks(data: memoryview) -> Iterator[memoryview]:
    for first in range(0, len(data), _BLOCK_BYTES):
        yield data[first : first + _BLOCK_BYTES]


def check_tensors(path: Path, wanted: Mapping[str, Tensor], tensors: dict[str, Tensor]) -> None:
    """Check that a file's tensors have the names and shapes of a model's.

    Raises:
        ModelError: they have not; the text names the file and one of them.
    """
    different = sorted(wanted.keys() ^ tensors.keys())
    if different:
        where = "the file" if different[0] in wanted else "the model"
        raise ModelError(f"{path}: is of another model: {where} has no tensor {different[0]}")
    for name, tensor in wanted.items():
        if tensor.shape != tensors[name].shape:
            raise ModelError(
                f"{path}: is of another model: {name} has shape {tuple(tensors[name].shape)}, not {tuple(tensor.shape)}"
            )
