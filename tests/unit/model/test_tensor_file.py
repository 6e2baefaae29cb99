"""Safetensors files: as the library has them, hashed in one pass, and refused unless they are whole and true."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from diloco.model.tensor_file import _TYPES, opened, write_tensor_file
from diloco.runtime.files import UnusableFileError, sha256_file
from tests.support.damage import DAMAGES
from tests.support.machine_limits import files_of_at_most

TENSORS = {
    "b": torch.arange(6.0).view(2, 3),
    "a": torch.tensor([True]).view(()),
    "none": torch.zeros(0, 4),
    "naïve": torch.arange(3, dtype=torch.bfloat16),
    "count": torch.tensor([1 << 40]),
}
SAID = {"of": '"us", naïve'}


def bytes_read_and_written() -> tuple[int, int]:
    """By this thread, so far."""
    counts = dict(line.split(": ") for line in Path("/proc/thread-self/io").read_text().splitlines())
    return int(counts["rchar"]), int(counts["wchar"])


@pytest.mark.parametrize("said", [None, SAID])
def test_a_file_is_the_librarys_to_the_byte(tmp_path: Path, said: dict[str, str] | None) -> None:
    digest = write_tensor_file(tmp_path / "ours", TENSORS, said)
    save_file(TENSORS, tmp_path / "theirs", said)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert sha256_file(tmp_path / "ours") == digest
    with opened(tmp_path / "theirs") as file:
        assert file.metadata == (said or {})
        found = file.read(dict.fromkeys(TENSORS, ()), sha256_file(tmp_path / "theirs"))
    for name, tensor in TENSORS.items():
        assert torch.equal(found[name], tensor)
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)


@pytest.mark.parametrize("dtype", _TYPES.values(), ids=_TYPES)
def test_every_type_comes_back_here_and_in_the_library(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.tensor([0, 1, 1, 0, 1]).to(dtype)
    digest = write_tensor_file(tmp_path / "file", {"a": tensor})
    with opened(tmp_path / "file") as file:
        found = file.read({"a": ()}, digest)["a"]
    for one in (found, load_file(tmp_path / "file")["a"]):
        assert one.dtype == dtype
        assert torch.equal(one.view(torch.uint8), tensor.view(torch.uint8))


def test_a_type_without_a_name_in_the_format_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^a: its type is torch.complex128; use one of torch.float64, "):
        write_tensor_file(tmp_path / "file", {"a": torch.zeros(1, dtype=torch.complex128)})
    assert not (tmp_path / "file").exists()


def test_parts_of_larger_tensors_are_written_and_read(tmp_path: Path) -> None:
    whole = torch.arange(1 << 20).view(1 << 10, 1 << 10)
    digest = write_tensor_file(tmp_path / "file", {"turned": whole.t(), "part": whole[3:5, :7], "other": whole})
    with opened(tmp_path / "file") as file:
        found = file.read({"turned": (slice(2, 4), slice(0, 9)), "part": ()}, digest)
    assert found.keys() == {"turned", "part"}
    assert torch.equal(found["turned"], whole.t()[2:4, :9])
    assert found["turned"].untyped_storage().nbytes() == found["turned"].nbytes  # the rest is freed
    assert torch.equal(found["part"], whole[3:5, :7])


def test_every_byte_is_written_once_and_read_once(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(1 << 20), "b": torch.ones(3)}
    before = bytes_read_and_written()
    digest = write_tensor_file(tmp_path / "file", tensors)
    between = bytes_read_and_written()
    with opened(tmp_path / "file") as file:
        file.read({"a": ()}, digest)
    after = bytes_read_and_written()
    size, slack = (tmp_path / "file").stat().st_size, 1 << 16
    assert between[0] - before[0] < slack
    assert size <= between[1] - before[1] < size + slack
    assert size <= after[0] - between[0] < size + slack


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with files_of_at_most(3000), pytest.raises(OSError, match=r"too large.*/file'"):
        write_tensor_file(tmp_path / "file", {"a": torch.ones(3000)})


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("wanted", [{}, {"a": ()}], ids=["header only", "all"])
def test_a_damaged_file_is_refused(
    tmp_path: Path, damage: Callable[[Path], object], wanted: dict[str, tuple[slice, ...]]
) -> None:
    path = tmp_path / "file"
    digest = write_tensor_file(path, {"a": torch.ones(3000)})
    damage(path)
    with pytest.raises(UnusableFileError, match=f"^{path}: ") as raised, opened(path) as file:
        file.read(wanted, digest)
    assert "\n" not in str(raised.value)


def header(data: int = 8, **changed: Any) -> Callable[[Path], object]:
    said = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changed}).encode()
    return lambda path: path.write_bytes(struct.pack("<Q", len(said)) + said + bytes(data))


def text(said: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(struct.pack("<Q", len(said)) + said)


HOSTILE = {
    "longer than it says": header(12),
    "shorter than it says": header(4),
    "a hole before the first": header(12, data_offsets=[4, 12]),
    "an end that does not fit": header(data_offsets=[0, 4]),
    "no offsets": header(data_offsets=None),
    "an unknown type": header(dtype="F3"),
    "a type that is a list": header(dtype=["F32"]),
    "a shape that is a number": header(shape=2),
    "half a row": header(shape=[2.0]),
    "negative sizes": header(shape=[-1, -2]),
    "no values, in more rows than there can be": header(0, shape=[0, 1 << 62], data_offsets=[0, 0]),
    "more values than there is memory": header(shape=[1 << 50], data_offsets=[0, 1 << 52]),
    "a list": text(b"[]"),
    "a tensor that is a list": text(b'{"a":[]}'),
    "metadata that is a list": text(b'{"__metadata__":[]}'),
    "metadata that is no text": text(b'{"__metadata__":{"a":1}}'),
    "a header beyond the end": lambda path: path.write_bytes(struct.pack("<Q", 1 << 62)),
}


@pytest.mark.parametrize("attack", HOSTILE.values(), ids=HOSTILE)
def test_a_header_that_cannot_be_is_refused_before_memory_is_taken(
    tmp_path: Path, attack: Callable[[Path], object]
) -> None:
    attack(tmp_path / "file")
    with pytest.raises(UnusableFileError, match="not a whole safetensors file"), opened(tmp_path / "file"):
        pass
