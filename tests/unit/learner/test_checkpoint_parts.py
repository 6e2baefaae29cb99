"""What a process reads of the parts of a checkpoint, and parts that cannot be."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from diloco.learner.checkpoint_parts import Fault, PartError, Places, part_paths, read_parts, write_part
from diloco.model.sharded import Place
from diloco.runtime.files import sha256_file
from tests.support.damage import flip

WHOLE = torch.arange(24.0).view(4, 6)


def box(first: tuple[int, int], shape: tuple[int, int], how: str = "") -> Places:
    whole = shape if how else (4, 6)
    return {"exp_avg.w": Place(first, shape, whole, how), "step.w": Place((), (), ())}


def inside(place: Place) -> Tensor:
    (row, column), (rows, columns) = place.first, place.shape
    return WHOLE[row : row + rows, column : column + columns].contiguous()


def write(folder: Path, *parts: Places) -> tuple[list[Path], list[str]]:
    paths = part_paths(folder, 1, len(parts))
    digests = []
    for path, places in zip(paths, parts, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {"exp_avg.w": inside(places["exp_avg.w"]), "step.w": torch.tensor(3.0)}
        digests.append(write_part(path, tensors, {}, places))
    return paths, digests


QUARTERS = [box(first, (2, 3)) for first in ((0, 0), (0, 3), (2, 0), (2, 3))]


@pytest.mark.parametrize(
    ("first", "shape"), [((0, 0), (4, 6)), ((1, 0), (2, 6)), ((0, 2), (4, 2)), ((2, 3), (2, 3)), ((4, 0), (0, 6))]
)
@pytest.mark.parametrize("own", [0, 3, 9])
def test_any_box_is_put_together_from_any(
    tmp_path: Path, first: tuple[int, int], shape: tuple[int, int], own: int
) -> None:
    wanted = box(first, shape)
    found = read_parts(*write(tmp_path, *QUARTERS), own, wanted).optimizer
    assert torch.equal(found["exp_avg.w"], inside(wanted["exp_avg.w"]))
    assert found["step.w"] == 3.0


def test_parts_without_anything_that_is_needed_are_not_missed(tmp_path: Path) -> None:
    paths, digests = write(tmp_path, *QUARTERS)
    for path in paths[2:]:
        path.unlink()
    assert torch.equal(read_parts(paths, digests, 1, box((0, 0), (2, 6))).optimizer["exp_avg.w"], WHOLE[:2])
    with pytest.raises(PartError, match=r"state-00002-of-00004\.safetensors is missing"):
        read_parts(paths, digests, 1, box((0, 0), (3, 6)))


def test_a_state_without_tensors_is_one(tmp_path: Path) -> None:
    paths = part_paths(tmp_path, 1, 2)
    for path in paths:
        path.parent.mkdir(parents=True)
    digests = [write_part(path, {}, {}, QUARTERS[0]) for path in paths]
    assert read_parts(paths, digests, 1, QUARTERS[1]) == ({}, {})


def test_what_is_no_box_fits_only_where_it_was_parted_alike(tmp_path: Path) -> None:
    paths, digests = write(tmp_path, box((0, 0), (2, 6), "a 0"), box((0, 0), (2, 6), "a 1"))
    found = read_parts(paths, digests, 1, box((0, 0), (2, 6), "a 1"))
    assert torch.equal(found.optimizer["exp_avg.w"], WHOLE[:2])
    with pytest.raises(PartError, match="does not fit"):
        read_parts(paths, digests, 1, box((0, 0), (2, 6), "b 1"))


def rewrite(place: Any = None, values: Tensor = WHOLE[:2], name: str = "exp_avg.w") -> Callable[[Path], None]:
    said = None if place is None else {"places": json.dumps({name: place})}
    return lambda path: save_file({f"optimizer.{name}": values.clone()}, path, said)


def lie_about_sizes(path: Path) -> None:
    header = json.dumps({"optimizer.exp_avg.w": {"dtype": "F32", "shape": [1 << 40, 6], "data_offsets": [0, 24 << 40]}})
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(48))


HOSTILE = {
    "rows beyond the end": (rewrite([[3, 0], [4, 6], ""]), Fault.UNUSABLE),
    "rows before the first": (rewrite([[-1, 0], [4, 6], ""]), Fault.UNUSABLE),
    "another whole": (rewrite([[2, 0], [9, 6], ""]), Fault.UNUSABLE),
    "another number of dimensions": (rewrite([[0], [24], ""], WHOLE.flatten()), Fault.UNUSABLE),
    "dimensions that differ": (rewrite([[0], [4, 6], ""]), Fault.UNUSABLE),
    "halves of rows": (rewrite([[0.5, 0], [4, 6], ""]), Fault.UNUSABLE),
    "rows as text": (rewrite([["a", "b"], [4, 6], ""]), Fault.UNUSABLE),
    "places that are a number": (rewrite(7), Fault.UNUSABLE),
    "whole, of another shape": (rewrite(), Fault.UNUSABLE),
    "another type": (rewrite([[2, 0], [4, 6], ""], WHOLE[:2].half()), Fault.UNUSABLE),
    "of no parameter": (rewrite(None, WHOLE, "exp_avg.x"), Fault.UNUSABLE),
    "no JSON": (lambda path: save_file({"optimizer.exp_avg.w": WHOLE}, path, {"places": "{"}), Fault.UNUSABLE),
    "a list of places": (
        lambda path: save_file({"optimizer.exp_avg.w": WHOLE}, path, {"places": "[]"}),
        Fault.UNUSABLE,
    ),
    "sizes that are not there": (lie_about_sizes, Fault.DAMAGED),
    "a header beyond the file": (lambda path: path.write_bytes(struct.pack("<Q", 1 << 62)), Fault.DAMAGED),
}


@pytest.mark.parametrize(("attack", "fault"), HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("own", [0, 1])
def test_a_part_that_cannot_be_is_refused(
    tmp_path: Path, attack: Callable[[Path], None], fault: Fault, own: int
) -> None:
    paths, digests = write(tmp_path, box((0, 0), (2, 6)), box((2, 0), (2, 6)))
    attack(paths[1])
    digests[1] = sha256_file(paths[1])  # as a manifest has it
    with pytest.raises(PartError) as raised:
        read_parts(paths, digests, own, box((0, 0), (4, 6)))
    assert (raised.value.index, raised.value.fault) == (1, fault)
    assert "\n" not in str(raised.value)


def test_parts_that_lack_some_rows_are_refused(tmp_path: Path) -> None:
    twice = write(tmp_path, box((0, 0), (2, 6)), box((0, 0), (2, 6)))
    with pytest.raises(PartError, match="does not fit"):
        read_parts(*twice, 0, box((0, 0), (4, 6)))


def test_residuals_are_of_the_first_part_or_of_none(tmp_path: Path) -> None:
    paths, digests = write(tmp_path, *[box((0, 0), (4, 6))] * 2)
    residuals = {3: torch.arange(5.0)}
    digests[0] = write_part(paths[0], {"exp_avg.w": WHOLE, "step.w": torch.tensor(3.0)}, residuals, QUARTERS[0])
    assert torch.equal(read_parts(paths, digests, 0, box((0, 0), (4, 6))).residuals[3], residuals[3])
    flip(paths[0], -1)
    assert read_parts(paths, digests, 1, box((0, 0), (4, 6))).residuals == {}
    with pytest.raises(PartError, match=r"state\.safetensors is damaged"):
        read_parts(paths, digests, 0, box((0, 0), (4, 6)))
